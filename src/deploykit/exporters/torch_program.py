"""What an exported program, or a TorchScript module, tells of its inputs: their order, and how far indices go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from deploykit.artifact import TensorSpec
    from deploykit.exporters.torch_call import Call

_EMBEDDING = torch.ops.aten.embedding.default
_WAY = 8  # nodes between an input and the embedding that takes it


def in_order(program: Any, call: Call) -> tuple[TensorSpec, ...]:
    """The call's inputs in the order in which the program takes them, which is that of `forward`."""
    if not call.plain:
        return call.specs
    taken = call.binding.order if isinstance(program, torch.jit.ScriptModule) else _user_inputs(program)
    by_parameter = dict(zip(call.parameters, call.specs, strict=True))
    return tuple(by_parameter[name] for name in taken) if set(taken) == set(by_parameter) else call.specs


def index_bounds(program: Any, call: Call) -> dict[str, int]:
    """The largest index that the embeddings of a program have a row for, by the input that is looked up in them."""
    if isinstance(program, torch.jit.ScriptModule):
        return {}
    names = dict(zip(_user_inputs(program), (spec.name for spec in in_order(program, call)), strict=False))
    found: dict[str, int] = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is not _EMBEDDING:
            continue
        table, indices = node.args[:2]
        name = names.get(_origin(indices))
        rows = int(table.meta["val"].shape[0])
        if name is not None:
            found[name] = min(found.get(name, rows - 1), rows - 1)
    return found


def _user_inputs(program: Any) -> tuple[str, ...]:
    return tuple(name for name in program.graph_signature.user_inputs if isinstance(name, str))


def _origin(node: Any) -> str:
    """The placeholder whose values the node only moves; the node's own name where there is none."""
    for _ in range(_WAY):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
            break
        node = node.args[0]
    return str(node.name)
