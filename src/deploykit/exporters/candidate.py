"""The exported file as the side under proof: the reference, or onnxruntime with the user's operators in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit import graph
from deploykit.errors import VendorError
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
    try:
        return Reference(path)
    except VendorError as problem:
        domains = sorted({node.domain for node in graph.all_nodes(graph.load(path))} - {"", "ai.onnx"})
        if domains:
            problem.hint = f"--custom-ops LIBRARY, the extension library of onnxruntime with {', '.join(domains)}"
        raise
