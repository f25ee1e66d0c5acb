"""What is in an exported program (runs in the worker)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from deploykit.converters.pt2.runtime import own_interface, read
from deploykit.converters.torch_files import described, read_tag


def describe(path: str | Path) -> dict[str, Any]:
    """Inputs, outputs, operators, precision, dynamic dimensions and size; nothing of it is run.

    Raises InvalidFileError (DK528) for what is no exported program, ModelError (DK605) for one with pickled objects.
    """
    file = Path(path)
    program = read(file)
    operators = Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")
    return described(file, "pt2", read_tag(file) or own_interface(program), operators)
