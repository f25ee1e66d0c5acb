"""An exported program as a file (in a worker)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch

from deploykit.converters.torch_files import ENTRY, settled, tag

if TYPE_CHECKING:
    from deploykit.route import Handed

# Paths and lines of the machine that it was exported on; the modules that nodes come from stay.
_DROPPED = ("stack_trace", "source_fn_stack", "original_aten", "from_node")


def write(handed: Handed) -> dict[str, Any]:
    """A `route.Writer`: the program in ATen's core operators, with the interface inside; the same bytes each time."""
    program = handed.program
    for graph_module in program.graph_module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            for node in graph_module.graph.nodes:
                for name in _DROPPED:
                    node.meta.pop(name, None)
    stream = io.BytesIO()
    kept = tag(handed.inputs, handed.outputs, handed.precision)
    torch.export.save(program, stream, extra_files={ENTRY: kept})
    handed.output.write_bytes(settled(stream.getvalue()))
    return {
        "inputs": [spec.as_dict() for spec in handed.inputs],
        "outputs": [spec.as_dict() for spec in handed.outputs],
        "files": [handed.output.name],
        "versions": {},
        "findings": [],
        "metrics": {"nodes": len(program.graph.nodes)},
    }
