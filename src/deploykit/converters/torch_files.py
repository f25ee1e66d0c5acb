"""What PyTorch's two archive formats share here: the interface kept inside, and the module called with arrays."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.errors import InvalidFileError, UnavailableError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs

# An extra file of the archive, which PyTorch keeps for its users.
ENTRY = "deploykit.json"
_MOST = 16 << 20


def tag(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], precision: str, **facts: Any) -> str:
    """The entry's content."""
    told = {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "precision": precision,
        **facts,
    }
    return json.dumps(told, sort_keys=True)


def read_tag(path: Path) -> dict[str, Any] | None:
    """The entry of an archive; None in one that was made elsewhere. Raises InvalidFileError (DK528) for no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = next((info for info in archive.infolist() if info.filename.endswith(f"extra/{ENTRY}")), None)
            if found is None or found.file_size > _MOST:
                return None
            facts = json.loads(archive.read(found))
            for kind in ("inputs", "outputs"):
                facts[kind] = tuple(TensorSpec.from_dict(row) for row in facts[kind])
            return dict(facts)
    except (zipfile.BadZipFile, OSError, EOFError) as problem:
        raise damaged(path, str(problem)) from problem
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def members(path: Path) -> list[str]:
    """Names of what is in the archive. Raises InvalidFileError (DK528) for no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError) as problem:
        raise damaged(path, str(problem)) from problem


def damaged(path: Path, why: str) -> InvalidFileError:
    """The error (DK528) for a file that cannot be read."""
    return InvalidFileError(
        f"{path.name} cannot be read: {' '.join(why.split())[:300]}",
        code="DK528",
        file=path,
        hint="make or download it again",
    )


def settled(archive: bytes) -> bytes:
    """The archive without what depends on the machine it was made on: source paths for debugging, and its hash.

    Members stay where PyTorch maps them from: stored, each at a multiple of 64 bytes.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            if info.filename.endswith((".debug_pkl", ".data/serialization_id")):
                continue
            entry = zipfile.ZipInfo(info.filename)
            entry.external_attr = 0
            start = made.tell() + 30 + len(info.filename.encode())
            room = -(start + 4) % 64
            entry.extra = b"FB" + room.to_bytes(2, "little") + b"Z" * room
            new.writestr(entry, old.read(info))
    return made.getvalue()


class TorchRuntime(Runtime):
    """A program of PyTorch as a function of arrays."""

    def __init__(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        call: Callable[[Sequence[Any]], Any],
        options: RuntimeOptions,
        kind: str,
    ) -> None:
        """call: takes the inputs' tensors in order. Raises UnavailableError (DK502) for another device than the CPU."""
        import torch

        if options.device not in ("cpu", "all"):
            raise UnavailableError(
                f"deploykit runs {kind} on the CPU, not on {options.device}", code="DK502", hint="leave --device away"
            )
        self._torch = torch
        if options.threads:
            torch.set_num_threads(options.threads)
        self.inputs, self.outputs = inputs, outputs
        self._call = call
        self.engine = f"torch {torch.__version__} ({kind}, CPU)"

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name in the program's dtypes. Raises what the program raises for sizes that it does not take."""
        given = [self._tensor(np.asarray(feeds[spec.name]), spec) for spec in self.inputs]
        with self._torch.no_grad():
            found = list(leaves(self._call(given)))
        names = [spec.name for spec in self.outputs] or _numbered(len(found))
        return dict(zip(names, map(self._array, found), strict=True))

    def _tensor(self, array: np.ndarray[Any, Any], spec: TensorSpec) -> Any:
        # Its own memory: a program may write into its input.
        if spec.dtype == "bfloat16":
            return self._torch.from_numpy(array.astype(np.float32)).to(self._torch.bfloat16)
        return self._torch.from_numpy(np.array(array))

    def _array(self, value: Any) -> np.ndarray[Any, Any]:
        if not isinstance(value, self._torch.Tensor):
            return np.asarray(value)
        if value.dtype == self._torch.bfloat16:
            import ml_dtypes

            narrow: np.ndarray[Any, Any] = value.float().numpy().astype(ml_dtypes.bfloat16)
            return narrow
        array: np.ndarray[Any, Any] = value.detach().numpy()
        return array

    def close(self) -> None:
        """Frees the program."""
        del self._call


def leaves(value: Any) -> Any:
    """Tensors and numbers of what a program gives, in order; None left out."""
    if value is None:
        return
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def _numbered(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output_{place}" for place in range(count)]


def described(path: Path, format: str, facts: Mapping[str, Any], operators: Mapping[str, int]) -> dict[str, Any]:
    """What `inspect` tells of an archive."""
    inputs = facts["inputs"]
    return {
        "format": format,
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in facts["outputs"]],
        "operators": dict(sorted(operators.items())),
        "nodes": sum(operators.values()),
        "precision": facts["precision"],
        "dynamic_dims": sorted({size for spec in inputs for size in spec.shape or () if isinstance(size, str)}),
        "files": {path.name: path.stat().st_size},
        "size_bytes": path.stat().st_size,
        **({"method": facts["method"]} if "method" in facts else {}),
    }
