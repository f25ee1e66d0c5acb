"""MNN models in MNN's own engine, on the CPU."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.mnn.interface import NAME, as_declared, as_held, interface
from deploykit.converters.mnn.profile import Profile, can_profile
from deploykit.converters.mnn.quiet import on_stderr
from deploykit.converters.mnn.tool import interface_of, look_into, versioned
from deploykit.errors import UnavailableError, VendorError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.runtime import Feeds, Kernel, Outputs

# MNN's HintMode WINOGRAD_MEMORY_LEVEL, 0..3. Its usual tiles (3) lose three digits of a 3x3 convolution: 74 dB on
# DNSMOS, where small ones reach 120.
_WINOGRAD, _SMALL_TILES = 3, 1


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The model in MNN. Raises InvalidFileError (DK528), UnavailableError (DK502) for another device than the CPU."""
    return MnnRuntime(path, options)


class MnnRuntime(Runtime):
    """A model as a module with its inputs and outputs by name."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """See `load`."""
        if options.device not in ("cpu", "all"):
            raise UnavailableError(
                f"MNN's Python package runs on the CPU only, not on {options.device}",
                code="DK502",
                target=NAME,
                hint="leave --device away",
            )
        self._path, self._exact = path, options.exact
        self._threads = options.threads or _cores()
        self._profile: Profile | None = None
        with on_stderr():
            self._load(path, options)
        self.engine = f"mnn {versioned()} (CPU)"

    def _load(self, path: Path, options: RuntimeOptions) -> None:
        facts = look_into(path) if options.taps else interface_of(path)
        from MNN import expr, nn

        self._expr = expr
        self.inputs, self.outputs = interface(facts)
        have = {row["name"]: row for row in facts["inputs"]}
        self._fed = [spec for spec in self.inputs if spec.name in have]
        # Channels in groups of four: a file says for each input whether it wants it so, and computes garbage otherwise.
        self._packed = {name for name, row in have.items() if row["layout"] == "NC4HW4"}
        inner = set(facts.get("tensors", ())) - {spec.name for spec in self.outputs} - set(have)
        self.taps = tuple(name for name in options.taps if name in inner)
        self._names = [*(spec.name for spec in self.outputs), *self.taps]
        manager = nn.create_runtime_manager(
            ({"backend": "CPU", "precision": "high" if options.exact else "normal", "numThread": self._threads},)
        )
        if options.exact:
            manager.set_hint(_WINOGRAD, _SMALL_TILES)
        self._module: Any = nn.load_module_from_file(
            str(path), [spec.name for spec in self._fed], self._names, runtime_manager=manager, shape_mutable=True
        )

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name in the model's dtypes. Raises DataError (DK548), VendorError where MNN computes nothing."""
        given = [self._variable(np.asarray(feeds[spec.name]), spec) for spec in self._fed]
        made = self._module.forward(given)
        if len(made) != len(self._names):
            raise _failed(f"MNN gives {len(made)} of {len(self._names)} outputs")
        found = {}
        for name, spec, variable in zip(self._names, self._specs(), made, strict=True):
            array = self._array(variable, name)
            found[name] = array if spec is None else as_declared(array, spec)
        return found

    def kernels(self, feeds: Feeds) -> list[Kernel] | None:
        """The operators of one call, timed by MNN's sessions; None for models with branches or loops."""
        if self._profile is None:
            if not can_profile(look_into(self._path)["operators"]) or any(spec.shape == () for spec in self._fed):
                return None
            with on_stderr():
                hints = [(_WINOGRAD, _SMALL_TILES)] if self._exact else []
                self._profile = Profile(self._path, self._threads, hints, "high" if self._exact else "normal")
        return self._profile.kernels({spec.name: as_held(np.asarray(feeds[spec.name]), spec) for spec in self._fed})

    def _specs(self) -> Sequence[TensorSpec | None]:
        return [*self.outputs, *(None for _ in self.taps)]

    def _variable(self, array: np.ndarray[Any, Any], spec: TensorSpec) -> Any:
        expr = self._expr
        held = as_held(array, spec)
        kind = expr.float if held.dtype == np.float32 else expr.int
        variable = expr.const(held.reshape(-1), list(held.shape), expr.NCHW, kind)
        return expr.convert(variable, expr.NC4HW4) if spec.name in self._packed else variable

    def _array(self, variable: Any, name: str) -> np.ndarray[Any, Any]:
        plain = self._expr.convert(variable, self._expr.NCHW)
        shape, values = plain.shape, plain.read()
        if values is None or np.size(values) != int(np.prod(shape)):
            raise _failed(f"MNN gives no values of {name!r}: it could not compute this shape")
        return np.array(values).reshape(shape)

    def close(self) -> None:
        """Frees the module."""
        self._profile = None
        del self._module


def _failed(text: str) -> VendorError:
    with on_stderr():  # what it has said of that, and not written yet
        return VendorError(text, target=NAME)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
