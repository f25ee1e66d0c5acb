"""What `--option` means for MNN."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PRECISIONS = {"float32": "fp32", "fp16": "fp16", "int8": "int8-weights", "int4": "int4-weights"}
_BITS = {"int8": "8", "int4": "4"}


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """How weights are stored.

    kind: "float32", "fp16", "int8", "int4". block: group size, None for one scale a channel. hqq: slower and closer.
    """

    kind: str
    block: int | None = None
    hqq: bool = False

    @property
    def precision(self) -> str:
        """Of the artifact."""
        return _PRECISIONS[self.kind]

    @property
    def arguments(self) -> list[str]:
        """Of the converter."""
        if self.kind == "fp16":
            return ["--fp16"]
        if self.kind not in _BITS:
            return []
        # Its default, symmetric by the largest magnitude of a channel, moves weights that are on a grid of int8
        # already; with a zero point they stay where they are.
        how = ["--weightQuantBits", _BITS[self.kind], "--weightQuantAsymmetric"]
        how += ["--weightQuantBlock", str(self.block)] if self.block else []
        return [*how, "--hqq"] if self.hqq else how


def storage(options: Mapping[str, Any], precision: str) -> Storage:
    """What the options ask for; without `weights` what the ONNX has. Raises UsageError (DK527) for a wrong value."""
    # MNN quantizes anew: into its own grid of 16 values, which loses what int4 weights had left (22 dB), or of 256.
    stored = {made: kind for kind, made in _PRECISIONS.items()} | {"int4-weights": "int8"}
    kind = str(options.get("weights") or stored.get(precision, "float32"))
    if kind not in _PRECISIONS:
        raise _wrong("weights", kind, f"one of {', '.join(_PRECISIONS)}", "weights=fp16")
    given = [name for name in ("block", "hqq") if options.get(name) is not None]
    if given and kind not in _BITS:
        raise _wrong(given[0], str(options[given[0]]), "for weights=int8 and weights=int4 only", "weights=int4")
    block, hqq = options.get("block"), str(options.get("hqq", False)).lower()
    if block is not None and not (str(block).isdecimal() and int(block) > 0):
        raise _wrong("block", str(block), "a number of inputs", "block=32")
    if hqq not in ("true", "false"):
        raise _wrong("hqq", hqq, "true or false", "hqq=true")
    return Storage(kind, int(block) if block is not None else None, hqq == "true")


def _wrong(name: str, value: str, accepted: str, example: str) -> UsageError:
    return UsageError(
        f"option {name!r} is {accepted}, and was {value!r}", code="DK527", target="mnn", hint=f"--option {example}"
    )
