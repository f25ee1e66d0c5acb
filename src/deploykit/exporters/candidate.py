"""The exported file as the side under proof: the reference, or onnxruntime with the user's operators in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.reference import Reference
from deploykit.runtime import Runtime, RuntimeOptions, open_runtime

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def open_candidate(path: Path, libraries: Mapping[str, str] | None = None) -> Reference | Runtime:
    """The file, loaded with graph optimisation off.

    libraries: extension libraries by target name; with one of onnxruntime's its runtime loads the file, since the
    reference knows the standard's operators only. Raises what they raise.
    """
    if libraries and "onnxruntime" in libraries:
        return open_runtime(path, RuntimeOptions(optimize=False, custom_ops=dict(libraries)))
    return Reference(path)
