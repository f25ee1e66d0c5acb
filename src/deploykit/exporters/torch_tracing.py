"""torch.onnx's TorchScript exporter: opset 11 to 20, for what torch.export refuses, and for TorchScript files.

It records one run, so anything that Python decides from tensor values would be frozen: that is looked for first.
"""

from __future__ import annotations

import traceback
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from deploykit import graph
from deploykit.errors import ModelError
from deploykit.exporters.diagnosis import CodeLine, is_users
from deploykit.exporters.torch_flat import unwrap_names
from deploykit.exporters.torch_translations import registered

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.exporters.torch_call import Call
    from deploykit.exporters.torch_source import Loaded
    from deploykit.exporters.torch_translations import Tables

OPSETS = range(11, 21)
# What turns a tensor's value into a Python value.
_DECISIONS = {"__bool__", "item", "__int__", "__float__", "__index__", "tolist", "__contains__"}


class _Decisions(TorchFunctionMode):  # type: ignore[misc]
    """Collects the user's lines where tensor values become Python values. Sizes are plain ints in eager mode."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[CodeLine, str] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _DECISIONS:
            frames = [frame for frame in traceback.extract_stack() if is_users(frame.filename)]
            if frames:
                last = frames[-1]
                self.lines.setdefault(CodeLine(last.filename, last.lineno or 0, last.name), name)
        return func(*args, **(kwargs or {}))


def data_dependent_lines(call: Call) -> list[CodeLine]:
    """The user's lines that turn tensor values into Python values in one eager run of the example."""
    with _Decisions() as found:
        call.call(call.example)
    return list(found.lines)


def export_tracing(loaded: Loaded, call: Call, opset: int, scratch: Path, tables: Tables) -> ir.Model:
    """The module as an ONNX graph, from one recorded run; raises what torch.onnx raises.

    Raises ModelError (DK613) when values of tensors decide what the module does: the trace would freeze one way.
    """
    if not loaded.scripted and (lines := data_dependent_lines(call)):
        raise ModelError(
            "what the module does depends on values in its tensors, and an exported graph would keep one way of it",
            code="DK613",
            file=lines[0].file,
            context=[line.describe() for line in lines[:4]],
            hint="write it with torch.where or torch.cond, so that both ways are in the graph",
        )
    target, args, kwargs = call.for_export(loaded)
    file = scratch / "traced.onnx"
    with warnings.catch_warnings(), registered(tables[1], opset):
        warnings.simplefilter("ignore")  # deprecations of this exporter; what a trace loses was looked for above
        torch.onnx.export(
            target,
            (*args, kwargs) if kwargs else args,
            str(file),
            input_names=[spec.name for spec in call.specs],
            output_names=list(call.output_names),
            opset_version=opset,
            dynamo=False,
            dynamic_axes=_dynamic_axes(call),
        )
    model = graph.load(file)
    if not call.plain:
        unwrap_names(model)
    return model


def _dynamic_axes(call: Call) -> dict[str, dict[int, str]]:
    """Symbols of the inputs by name; those of the outputs are inferred by the exporter."""
    return {
        spec.name: {axis: dim for axis, dim in enumerate(spec.shape or ()) if isinstance(dim, str)}
        for spec in call.specs
        if any(isinstance(dim, str) for dim in spec.shape or ())
    }
