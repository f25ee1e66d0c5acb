"""A plain schedule for processors: outer loops on all cores, the innermost one over neighbours in memory.

TVM's own passes leave the loops as the operator's definition has them, with the reduction innermost, which takes a
processor hundreds of times longer. The order in which numbers are added stays, and with it what is computed.
"""

from __future__ import annotations

from typing import Any

from tvm.error import InternalError
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import ScheduleError

from deploykit.converters.tvm.vendor import tvm

_PARALLEL, _REDUCTION = 0, 2  # IterVar kinds
_MARK = "tirx.is_scheduled"


def scheduled(module: Any) -> Any:
    """The module with every function that can be scheduled so; others stay as they are."""
    for name, function in list(module.functions.items()):
        if isinstance(function, tvm.tirx.PrimFunc) and not (function.attrs and _MARK in function.attrs):
            made = _schedule(function)
            if made is not None:
                module[name] = made
    return module


def _schedule(function: Any) -> Any | None:
    schedule = Schedule(function)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    for name in [schedule.get(block).name_hint for block in blocks]:
        work = schedule.copy()  # a step that fails leaves those before it
        try:
            _spread(work, work.get_sblock(name))
        except (ScheduleError, InternalError, ValueError):
            continue  # of a shape that this schedule is not for: its loops stay
        schedule = work
    return schedule.mod["main"].with_attr(_MARK, True)


def _spread(schedule: Any, block: Any) -> None:
    loops = schedule.get_loops(block)
    kinds = [int(iteration.iter_type) for iteration in schedule.get(block).iter_vars]
    if len(kinds) != len(loops) or not set(kinds) <= {_PARALLEL, _REDUCTION}:
        return
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _PARALLEL]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCTION]
    if not spatial:
        return
    *outer, inner = spatial
    if reduced:
        schedule.reorder(*outer, *reduced, inner)
    # Before the block is taken apart: its halves are no blocks that may run on several cores.
    if outer:
        schedule.parallel(schedule.fuse(*outer[:2]) if len(outer) > 1 else outer[0])
    # LLVM makes vectors of the innermost loop by itself, of any length.
    if reduced:
        schedule.decompose_reduction(block, reduced[0])
