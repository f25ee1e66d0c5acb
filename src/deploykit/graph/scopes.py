"""Where a node came from in the program that was exported: the module path that PyTorch's exporters record."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

# What torch.onnx.export writes at each node: ["", "encoder", "encoder.layers.0", "add_3"], and the classes of these,
# the operator last. The first entry is the module that was exported.
_NAMES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
# A list of texts, nothing else, of a length that a real program has: it comes out of a model file.
_LONGEST = 10_000
# What PyTorch 2.8 and later write for nodes that belong to no module, such as sizes of inputs.
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"
_MODULE = re.compile(r"\w[\w.\-]*")


def scope_of(node: ir.Node) -> str | None:
    """The module that the node belongs to, as in "encoder.layers.3.attention (MultiheadAttention)"; None if not told.

    The dynamo exporter records path and class. The TorchScript exporter names nodes by path
    (`/encoder/layers.3/attention/MatMul`): there is no class then.
    """
    names, classes = _texts(node, _NAMES)[:-1], _texts(node, _CLASSES)[:-1]
    if names or classes:
        path = names[-1] if names else ""
        if path == _NO_MODULE:
            return None
        kind = classes[-1].rpartition(".")[2] if len(classes) == len(names) and classes else ""
        return f"{path} ({kind})" if path and kind else path or kind or None
    return _from_name(node.name or "", node.op_type)


def scope_of_name(name: str) -> str | None:
    """As `scope_of`, by a node's name alone: `/encoder/layers.3/attention/MatMul_1` is the MatMul of that module."""
    op = re.fullmatch(r"([A-Za-z][A-Za-z0-9]*)(_\d+)?", name.rpartition("/")[2])
    return _from_name(name, op.group(1)) if op else None


def _texts(node: ir.Node, key: str) -> list[str]:
    written = node.metadata_props.get(key, "")
    if not 2 < len(written) <= _LONGEST:
        return []
    try:
        value = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # another tool's, or hostile
        return []
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else []


def _from_name(name: str, op: str) -> str | None:
    """`/features/features.0/block/Conv_1` is the Conv of features.0.block; each part below a list names it again."""
    root, *parts = name.split("/")
    if root or len(parts) < 2 or not re.fullmatch(rf"{re.escape(op)}(_\d+)?", parts[-1]):
        return None
    path: list[str] = []
    for part in parts[:-1]:
        if not _MODULE.fullmatch(part):
            return None
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
    return ".".join(path)
