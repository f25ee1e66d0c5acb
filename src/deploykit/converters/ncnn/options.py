"""What `--option` means for ncnn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PRECISIONS = {"float32": "fp32", "fp16": "fp16"}


def stored(options: Mapping[str, Any], precision: str) -> str:
    """The precision of the weights: what `weights` says, without it that of the ONNX.

    Raises UsageError (DK527) for a wrong value.
    """
    kind = str(options.get("weights") or ("fp16" if precision == "fp16" else "float32"))
    if kind not in _PRECISIONS:
        raise UsageError(
            f"option 'weights' is one of {', '.join(_PRECISIONS)}, and was {kind!r}",
            code="DK527",
            target="ncnn",
            hint="--option weights=fp16",
        )
    return _PRECISIONS[kind]
