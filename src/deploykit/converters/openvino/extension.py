"""OpenVINO with a user's extension library in it (runs in the worker)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import openvino as ov


def core_with(library: str | Path | None) -> ov.Core:
    """OpenVINO's core, the operators and conversions of the library added. Raises UsageError (DK231)."""
    import openvino as ov

    core = ov.Core()
    extend(core, library)
    return core


def extend(owner: Any, library: str | Path | None) -> None:
    """Adds a library to a core or a front-end. Raises UsageError (DK231) when OpenVINO does not take it."""
    if library is None:
        return
    try:
        owner.add_extension(str(library))
    except RuntimeError as problem:
        raise UsageError(
            f"OpenVINO does not load {library}: {' '.join(str(problem).split())[:400]}",
            code="DK231",
            file=library,
            target="openvino",
            hint="--custom-ops takes a library built for this OpenVINO, with OPENVINO_CREATE_EXTENSIONS in it",
        ) from problem
