"""What `--option` means for TensorRT-RTX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DEFAULT_SM = ("89", "120")  # Ada and Blackwell: the GeForce generations sold since 2022


def compute_capabilities(options: Mapping[str, Any], known: Iterable[str]) -> list[str]:
    """The `ComputeCapability` members that `sm` names, in ascending order: `sm=89,120`, a list, or one number.

    known: member names of this TensorRT-RTX. Raises UsageError (DK522) for one it does not have.
    """
    # CURRENT asks the driver; an engine for "whatever was in the build machine" is not reproducible either.
    valid = sorted((name for name in known if name.startswith("SM")), key=lambda name: int(name[2:]))
    value = options.get("sm", DEFAULT_SM)
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    wanted = {f"SM{str(part).strip().lower().removeprefix('sm').replace('.', '')}" for part in parts}
    wrong = sorted(wanted - set(valid))
    if wrong or not wanted:
        raise UsageError(
            f"TensorRT-RTX cannot build for {', '.join(name.lower() for name in wrong) or 'no GPU at all'}",
            code="DK522",
            target="tensorrt-rtx",
            context=[f"it builds for: {', '.join(name.lower() for name in valid)}"],
            hint="--option sm=89,120",
        )
    return [name for name in valid if name in wanted]
