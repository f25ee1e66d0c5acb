"""Imports ahead of time: while one worker judges and converts a model, the others load what they will need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.target import comparison_worker, unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.target import Target


def imports_of(target: Target) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """What a conversion to the target imports, as `WorkerPool.warm` takes it.

    Its own worker comes first, then the comparison's, which is left out where artifacts do not run here.
    """
    jobs = [function.partition(":")[0] for function in (target.support, target.converter) if function]
    wanted: dict[str, tuple[Sequence[str], Sequence[str]]] = {}
    if not target.alone or target.support is not None:
        wanted[target.worker] = ((*target.packages, "onnx_ir", *jobs), target.blocked)
    if target.runtime is not None and unavailable(target, simulated=True) is None:
        runtime = target.runtime.partition(":")[0]
        modules = (*target.packages, "onnxruntime", "onnx_ir", "deploykit.comparison", runtime)
        wanted[comparison_worker(target)] = (modules, target.blocked)
    return wanted
