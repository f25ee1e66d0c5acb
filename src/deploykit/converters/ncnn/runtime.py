"""ncnn networks in ncnn's own engine, on the CPU."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import ncnn
import numpy as np

from deploykit.converters.ncnn.interface import Door, claimed, doors
from deploykit.converters.ncnn.tool import NAME, look_into, versions
from deploykit.errors import DataError, UnavailableError, VendorError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs

    Array = np.ndarray[Any, np.dtype[Any]]

_NO_BATCH = 233
# Everything that computes or keeps numbers in fewer bits than they have, or in tiles that lose some of them.
_LOSSY = (
    "use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage", "use_bf16_packed",
    "use_int8_packed", "use_int8_storage", "use_int8_arithmetic", "use_winograd43_convolution",
    "use_winograd63_convolution",
)  # fmt: skip


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The network in ncnn.

    Raises InvalidFileError (DK528), ModelError (DK203), UnavailableError (DK502) for another device than the CPU.
    """
    return NcnnRuntime(path, options)


class NcnnRuntime(Runtime):
    """A network of one sample, which a batch goes through sample by sample."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """See `load`."""
        if options.device not in ("cpu", "all"):
            raise UnavailableError(
                f"ncnn runs on the CPU here, not on {options.device}",
                code="DK502",
                target=NAME,
                hint="leave --device away",
            )
        layers, found = look_into(path, trusted=claimed(path) is not None)
        self._given, self._made, _ = doors(path, layers, found)
        self.inputs = tuple(door.spec for door in self._given)
        self.outputs = tuple(door.spec for door in self._made)
        inner = {blob for layer in layers for blob in layer.outputs} - {
            door.blob for door in (*self._given, *self._made)
        }
        self.taps = tuple(name for name in options.taps if name in inner)
        self._network = ncnn.Net()
        choices = self._network.opt
        choices.num_threads = options.threads or _cores()
        choices.use_vulkan_compute = False
        if not options.spin:
            choices.openmp_blocktime = 0
        if options.exact:
            for name in _LOSSY:
                if hasattr(choices, name):
                    setattr(choices, name, False)
        if self.taps:  # otherwise what is read once is freed
            choices.lightmode = False
        if self._network.load_param(str(path)) != 0 or self._network.load_model(str(path.with_suffix(".bin"))) != 0:
            raise VendorError(f"ncnn does not load {path.name}", target=NAME, file=path)
        self.engine = f"ncnn {versions()['ncnn']} (CPU)"

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name. Raises DataError (DK547, DK548), VendorError where ncnn computes nothing for the shape."""
        rows = [self._one(given) for given in self._samples(feeds)]
        joined = {}
        for door in self._made:
            parts = [row[door.spec.name] for row in rows]
            if len(parts) > 1 and door.batch is None:
                raise DataError(
                    f"output {door.spec.name!r} has no batch axis: the network takes one sample, and {len(parts)} came",
                    code="DK547",
                    tensor=door.spec.name,
                    hint="feed single samples",
                )
            joined[door.spec.name] = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=door.batch or 0)
        return {**joined, **{name: rows[0][name] for name in self.taps if len(rows) == 1}}

    def _samples(self, feeds: Feeds) -> Iterator[list[tuple[Door, Array]]]:
        arrays = [(door, _as_held(np.asarray(feeds[door.spec.name]), door)) for door in self._given]
        sizes = {door.spec.name: array.shape[door.batch] for door, array in arrays if door.batch is not None}
        if len(set(sizes.values())) > 1:
            told = ", ".join(f"{name!r} has {size}" for name, size in sizes.items())
            raise DataError(f"the inputs are of different numbers of samples: {told}", code="DK547")
        for index in range(next(iter(sizes.values()), 1)):
            yield [(door, array if door.batch is None else _sample(array, door.batch, index)) for door, array in arrays]

    def _one(self, given: list[tuple[Door, Array]]) -> dict[str, Array]:
        found = {}
        with self._network.create_extractor() as extractor:
            if self.taps:
                extractor.set_light_mode(False)
            # ncnn reads where the array lies, and does not keep it.
            held = [
                ncnn.Mat(array, batch_index=_NO_BATCH if door.batch is None else door.batch).clone()
                for door, array in given
            ]
            for (door, _), mat in zip(given, held, strict=True):
                extractor.input(door.blob, mat)
            for door in self._made:
                found[door.spec.name] = _as_declared(_extracted(extractor, door.blob, door.batch), door)
            for name in self.taps:
                found[name] = _extracted(extractor, name, 0)
        return found

    def close(self) -> None:
        """Frees the network."""
        self._network.clear()


def _extracted(extractor: Any, blob: str, batch: int | None) -> Array:
    code, mat = extractor.extract(blob)
    if code != 0 or mat.empty():
        raise VendorError(f"ncnn computes no {blob!r} for this shape (code {code})", target=NAME)
    return np.array(mat.numpy(batch_index=_NO_BATCH if batch is None else batch))


def _as_held(array: Array, door: Door) -> Array:
    """float32, or int32 where the model has integers. DataError (DK548) for one beyond 32 bits."""
    if array.dtype.kind not in "iu":
        return np.ascontiguousarray(array, dtype=np.float32)
    limits = np.iinfo(np.int32)
    if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        raise DataError(
            f"input {door.spec.name!r} is int32 in ncnn, and the values are {int(array.min())}..{int(array.max())}",
            code="DK548",
            tensor=door.spec.name,
            hint=f"give values of {limits.min}..{limits.max}",
        )
    return np.ascontiguousarray(array, dtype=np.int32)


def _as_declared(array: Array, door: Door) -> Array:
    typed = array.astype(door.spec.dtype)
    # ncnn has no tensors of rank 0.
    return typed.reshape(()) if door.spec.shape == () and typed.size == 1 else typed


def _sample(array: Array, axis: int, index: int) -> Array:
    return np.ascontiguousarray(np.take(array, [index], axis=axis))


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
