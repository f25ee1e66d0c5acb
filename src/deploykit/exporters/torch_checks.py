"""What would make an exported module untrustworthy, looked for by running it: randomness, state, batch statistics."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import traceback
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from deploykit.errors import GateError
from deploykit.exporters.diagnosis import CodeLine, is_users
from deploykit.exporters.torch_call import as_array
from deploykit.exporters.torch_flat import flatten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploykit.exporters.torch_call import Call

_NORMALIZES = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_impl_index", "cudnn_batch_norm")
_SHOWN = 4
_ROUNDING = 1e-5
# In a TorchScript node's place.
_PLACE = re.compile(r'File "(?:[^"]*/)?(?P<file>[^"/]+)", line (?P<line>\d+)')


@dataclasses.dataclass(slots=True)
class _Seen:
    op: str
    line: CodeLine | None

    def describe(self) -> str:
        return f"{self.op}, at {self.line.describe()}" if self.line else self.op


class _Watch(TorchDispatchMode):  # type: ignore[misc]
    """Collects random operators, and batch norms that use the batch's own statistics, with the user's line."""

    supports_higher_order_operators = True  # torch.cond and the like: both their ways are in the graph

    def __init__(self, *, everything: bool = False) -> None:
        super().__init__()
        self.everything = everything
        self.random: dict[str, _Seen] = {}
        self.batch: dict[str, _Seen] = {}
        self.lines: dict[str, CodeLine] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            self._note(self.random, name)
        elif name.removeprefix("aten::") in _NORMALIZES and _uses_batch(func, args, kwargs or {}):
            self._note(self.batch, name)
        elif self.everything:
            self._note({}, name)
        return func(*args, **(kwargs or {}))

    def _note(self, found: dict[str, _Seen], name: str) -> None:
        frames = [frame for frame in traceback.extract_stack() if is_users(frame.filename)]
        line = CodeLine(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else None
        if line:
            self.lines.setdefault(name, line)
        seen = _Seen(name, line)
        found.setdefault(seen.describe(), seen)


def _uses_batch(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a batch norm normalizes over several samples: instance norm is one over a batch of 1."""
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return bool(given.get("training", True)) and given["input"].shape[0] > 1


def operator_lines(call: Call) -> dict[str, CodeLine]:
    """The user's line that first calls each operator, as `namespace::operator`."""
    lines: dict[str, CodeLine] = _watched(call, everything=True).lines
    return lines


def _watched(call: Call, *, everything: bool = False) -> _Watch:
    """One run under watch; what was seen before it fails, as it does for operators that compile themselves."""
    watch = _Watch(everything=everything)
    with contextlib.suppress(Exception), watch:
        call.call(call.example)
    return watch


def refuse_unstable(call: Call) -> None:
    """Raises GateError: DK685 when two runs of the same input differ, DK686 when samples of a batch mix."""
    first, second = _values(call), _values(call)
    watch = _watched(call)
    pairs = zip(call.output_names, first, second, strict=True)
    changed = [name for name, a, b in pairs if _differ(a, b, exact=bool(watch.random))]
    if changed:
        raise _differs(changed, watch.random.values(), call)
    if watch.batch:
        seen = next(iter(watch.batch.values()))
        raise GateError(
            "a batch norm uses the statistics of the batch in evaluation mode: each sample's result depends on the "
            "others in its batch",
            code="DK686",
            file=seen.line.file if seen.line else None,
            op=seen.op,
            context=[item.describe() for item in list(watch.batch.values())[:_SHOWN]] + _without_statistics(call),
            hint="track_running_stats=True and training=self.training, with statistics from training",
        )


def _differ(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], *, exact: bool) -> bool:
    """Whether two runs gave different values; exact: what threads add up in another order counts, too."""
    if a.shape != b.shape or a.dtype.kind not in "fc" or exact:
        return a.shape != b.shape or not np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    largest = float(np.nanmax(np.abs(a), initial=0.0, where=np.isfinite(a)))
    return not np.allclose(a, b, rtol=_ROUNDING, atol=_ROUNDING * largest, equal_nan=True)


def _values(call: Call) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(as_array(leaf)).copy() for _, leaf in flatten(call.call(call.example))]


def _differs(changed: Iterable[str], random: Iterable[_Seen], call: Call) -> GateError:
    found = list(random)
    names = ", ".join(changed)
    if found:
        where = found[0].line.file if found[0].line else None
        dropout = any("dropout" in item.op or "bernoulli" in item.op for item in found)
        hint = (
            "F.dropout(x, p, training=self.training) is off in evaluation mode; plain F.dropout(x, p) is always on"
            if dropout
            else "draw the random numbers outside and give them as an input, or leave this part out of the module"
        )
        return GateError(
            f"the module is random: two runs of the same input differ in {names}",
            code="DK685",
            file=where,
            op=found[0].op,
            context=[item.describe() for item in found[:_SHOWN]],
            hint=hint,
        )
    return GateError(
        f"two runs of the same input differ in {names}: the module keeps state between calls, or is random in Python",
        code="DK685",
        context=_kept_state(call.module),
        hint="take the state as an input of forward and return the new one, or export the part that does: "
        "def part(): return torch.jit.load('model.pt').part, in part.py"
        if isinstance(call.module, torch.jit.ScriptModule)
        else "take the state as an input of forward and return the new one; draw random numbers outside",
    )


def _kept_state(module: torch.nn.Module) -> list[str]:
    """The lines of a TorchScript module that write its attributes."""
    if not isinstance(module, torch.jit.ScriptModule):
        return []
    graph = module.forward.graph.copy()
    torch._C._jit_pass_inline(graph)
    code = module.code.splitlines()
    found: dict[str, str] = {}
    for node in graph.findAllNodes("prim::SetAttr", recurse=True):
        name, place = node.s("name"), _PLACE.search(node.sourceRange())
        # Published files often have no places: then the line of the code that is in the file.
        lines = [at for at, line in enumerate(code, 1) if line.strip().startswith(f"self.{name} =")]
        where = f" at {place['file']}:{place['line']}" if place else ""
        if not place and lines:
            where = f" in line {lines[0]} of the code in the file: {code[lines[0] - 1].strip()}"
        found.setdefault(name, f"it keeps {name!r}{where}")
    return list(found.values())[:_SHOWN]


def _without_statistics(call: Call) -> list[str]:
    found = [
        f"{name or 'the module'} ({type(layer).__name__}) has no running statistics"
        for name, layer in call.module.named_modules()
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and layer.running_mean is None
    ]
    return found[:_SHOWN]
