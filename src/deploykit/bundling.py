"""Build bundles: where a target's artifact cannot be made here, a folder that makes it on the machine that can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.target import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from deploykit.target import Target

SUFFIX = ".bundle"


def bundled_because(target: Target, output: Path) -> str | None:
    """Why a build bundle is written and not the artifact; None where the artifact is made."""
    if target.bundle is None:
        return None
    if target.converter is None:
        return f"{target.title} comes from its vendor and from no package index"
    if target.suffix and output.suffix != target.suffix:
        return "a folder was asked for, which is a build bundle"
    reason: Callable[[], str | None] = resolve(target.builds_on) if target.builds_on else _nothing
    return reason()


def why_not_built(target: Target) -> str | None:
    """Why the target's artifact is not made on this machine, where a bundle is written instead."""
    from pathlib import Path

    return bundled_because(target, Path(f"artifact{target.suffix}"))


def _nothing() -> str | None:
    return None


def output_path(target: Target, output: Path, options: Mapping[str, Any]) -> tuple[Path, str | None]:
    """Where the artifact or its bundle goes, and the suffix that it has to have, if any.

    A bundle is a folder and never has an artifact's suffix: for `m.engine` it is `m.bundle`.
    """
    suffix = target.suffix_for(options) or None
    if target.bundle is None or suffix is None:
        return output, suffix
    if output.suffix in ("", SUFFIX):
        return output, None
    bundled = output.suffix == suffix and bundled_because(target, output) is not None
    return (output.with_suffix(SUFFIX), None) if bundled else (output, suffix)
