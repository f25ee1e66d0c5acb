"""A static look into a TensorRT-RTX plan, for machines without a driver.

The layout is not documented: this is a reading of plans that version 1.7 wrote (header, total size, version, and the
compiler's readable listing), a heuristic. It proves that the file is whole and for which GPUs it was compiled, not
that it computes the right thing. `IRuntime.get_engine_validity` is no help: it calls every plan invalid without a GPU.
"""

from __future__ import annotations

import dataclasses
import mmap
import re
from typing import TYPE_CHECKING, Any

from deploykit.errors import InvalidFileError

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = b"vtrt"
_HEADER_BYTES = 64
_ACCELERATORS = re.compile(rb"accelerators=\{([^}]{1,400})\}")
_LAYER = re.compile(rb"\[ONNX Layer: ([^\]\x00]{1,400})\]")
_TF32 = re.compile(rb"\btf32=([01])\b")


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a plan's bytes say. accelerators: `sm89`, ...; layers: names of ONNX nodes found in it."""

    version: str
    size_bytes: int
    accelerators: tuple[str, ...]
    layers: tuple[str, ...]
    tf32: bool

    def as_metrics(self) -> dict[str, Any]:
        """For reports; `method` says what kind of evidence it is."""
        return {
            "method": "heuristic reading of the plan's bytes, nothing was executed",
            "tensorrt_rtx_version": self.version,
            "bytes": self.size_bytes,
            "accelerators": list(self.accelerators),
            "onnx_layers": len(self.layers),
            "tf32": self.tf32,
        }


def read_plan(path: Path) -> Plan:
    """Reads what can be read statically.

    Raises InvalidFileError (DK528) when the file is not a TensorRT-RTX plan or is cut off.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        header = stream.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES or header[:4] != _MAGIC or header[28:32] != _MAGIC:
            raise InvalidFileError(
                f"{path} is not a TensorRT-RTX engine",
                code="DK528",
                file=path,
                hint="a classic TensorRT engine has the same suffix: build it with --to tensorrt-rtx for this target",
            )
        declared = int.from_bytes(header[16:24], "little")
        if declared != size:
            raise InvalidFileError(
                f"{path} is cut off or has been changed: it says {declared} bytes and has {size}",
                code="DK528",
                file=path,
                hint="copy or build it again",
            )
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # A listing for "any accelerator" has a `*` there: code that only copies or reshapes.
            accelerators = {
                name.decode("ascii", "replace")
                for found in _ACCELERATORS.finditer(data)
                for name in found[1].split()
                if name != b"*"
            }
            layers = {found[1].decode("utf-8", "replace") for found in _LAYER.finditer(data)}
            tf32 = any(found[1] == b"1" for found in _TF32.finditer(data))
    return Plan(
        version=".".join(str(byte) for byte in header[24:28]),
        size_bytes=size,
        accelerators=tuple(sorted(accelerators, key=lambda name: (len(name), name))),
        layers=tuple(sorted(layers)),
        tf32=tf32,
    )
