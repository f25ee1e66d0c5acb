"""What is in a TorchScript archive (runs in the worker)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from deploykit.converters.torch_files import described, read_tag
from deploykit.converters.torchscript.runtime import own_interface, read


def describe(path: str | Path) -> dict[str, Any]:
    """Inputs, outputs, operators, precision, dynamic dimensions and size; nothing of it is run.

    Raises InvalidFileError (DK528) for what is no TorchScript.
    """
    file = Path(path)
    module = read(file)
    kinds = Counter(node.kind() for node in module.inlined_graph.nodes())
    operators = {kind: count for kind, count in kinds.items() if not kind.startswith("prim::")}
    return described(file, "torchscript", read_tag(file) or own_interface(module), operators)
