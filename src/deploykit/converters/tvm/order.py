"""The compiler's passes, and which ONNX tensor each function call of the finished program makes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from tvm.relax import transform
from tvm.relax.backend import DispatchSampling, DispatchSortScan

from deploykit.converters.tvm.importing import MARK
from deploykit.converters.tvm.schedule import scheduled
from deploykit.converters.tvm.vendor import tvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NUMBERED = re.compile(rf"{MARK}(\d+)_")


def compiler_passes(look: Callable[[Any], object], *, fuse: bool) -> Any:
    """TVM's own passes for processors; `look` gets the module twice: with operators merged, and in its final order.

    fuse: whether operators are merged into one function where TVM can.
    """

    def show(module: Any, _: Any) -> Any:
        look(module)
        return module

    looking = tvm.transform.module_pass(show, opt_level=0, name="look")
    scheduling = tvm.transform.module_pass(lambda module, _: scheduled(module), opt_level=0, name="schedule")

    return tvm.transform.Sequential(
        [
            DispatchSampling(),
            DispatchSortScan(),
            transform.LegalizeOps(),
            transform.AnnotateTIROpPattern(),
            transform.FoldConstant(),
            *([transform.FuseOps()] if fuse else []),
            looking,
            *([transform.FuseTIR()] if fuse else []),
            scheduling,
            transform.RewriteDataflowReshape(),
            transform.ToNonDataflow(),
            transform.RemovePurityChecking(),
            looking,
            transform.CallTIRRewrite(),
            transform.StaticPlanBlockMemory(),
            transform.LowerAllocTensor(),
            transform.KillAfterLastUse(),
            transform.LowerRuntimeBuiltin(),
            transform.ComputePrimValue(),
            transform.VMShapeLower(),
            transform.AttachGlobalSymbol(),
        ]
    )


def calls_of(merged: Any, final: Any, tensors: Sequence[str]) -> tuple[list[list[str]], Counter[str]]:
    """[function, ONNX tensor or ""] of each call of a compiled function in order, and how often each is called.

    No calls in a program with branches, whose order only running it tells.
    """
    functions: Counter[str] = Counter()
    calls: list[list[str]] = []
    labelled = iter(_labelled(merged, tensors))
    branches = False
    for value, _ in _bindings(final):
        branches = branches or isinstance(value, tvm.relax.If)
        name = _called(value)
        if name is None:
            continue
        functions[re.sub(r"\d+$", "", name)] += 1
        # What became a mere view in between is no call any more.
        tensor = next((tensor for before, tensor in labelled if before == name), "")
        calls.append([name, tensor])
    return ([] if branches else calls), functions


def _bindings(module: Any) -> Iterator[tuple[Any, Any]]:
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            yield getattr(binding, "value", None), binding.var


def _called(value: Any) -> str | None:
    """The function that a call runs: by `call_tir`, or a merged one."""
    if not isinstance(value, tvm.ir.Call):
        return None
    if isinstance(value.op, tvm.ir.GlobalVar):
        return str(value.op.name_hint)
    return str(value.args[0].name_hint) if value.op == tvm.ir.Op.get("relax.call_tir") else None


def _labelled(module: Any, tensors: Sequence[str]) -> list[tuple[str, str]]:
    """(function, tensor or "") of each call while merged functions still have bodies.

    The variable that a merged function gives has a new name; the parameter of a merged function that takes it has kept
    the old one. A function of several calls has the names of one of them, so those are left alone.
    """
    found = [(value, var) for value, var in _bindings(module) if _called(value) is not None]
    times = Counter(_called(value) for value, _ in found)
    known = {var: label for _, var in found if (label := _tensor(var, tensors))}
    for value, _ in found:
        if not isinstance(value.op, tvm.ir.GlobalVar) or times[_called(value)] > 1:
            continue
        for argument, parameter in zip(value.args, module[value.op].params, strict=True):
            if isinstance(argument, tvm.relax.Var) and (label := _tensor(parameter, tensors)):
                known.setdefault(argument, label)
    return [(str(_called(value)), known.get(var, "")) for value, var in found]


def _tensor(var: Any, tensors: Sequence[str]) -> str:
    found = _NUMBERED.match(var.name)
    return tensors[int(found.group(1))] if found else ""
