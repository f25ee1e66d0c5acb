"""Which nodes cost half precision its accuracy, measured on data: they become float32 islands, as few as are needed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from deploykit import graph
from deploykit.data import open_request
from deploykit.data.holdout import calibrating, carried, held_out, widened
from deploykit.half_search import JUDGES, Refinement, Search
from deploykit.parity import TOLERANCES
from deploykit.quantize.half_switches import SINCE, Switches

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.progress import OnProgress
    from deploykit.quantize.half_formats import HalfFormat
    from deploykit.quantize.settings import Settings

# Weights are rounded anew in every run: beyond this the model is too large to be searched.
LARGEST_BYTES = 1 << 30


def refine(
    model: ir.Model,
    source: Path,
    form: HalfFormat,
    converted: Collection[str],
    settings: Settings,
    on_progress: OnProgress,
) -> Refinement | None:
    """Finds the nodes to leave in float32 so that the calibration data stays within the precision's tolerance.

    model: the float model. converted: names of the nodes that would be half. None where nothing can be measured (no
    calibration data, a model of more than 1 GiB or of an opset without Where).
    """
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    request = settings.data
    if request is None or not settings.calibrates or weights > LARGEST_BYTES or graph.opset(model) < SINCE:
        return None
    inputs, _ = graph.interface(model)
    dataset = open_request(widened(request), inputs, source)  # type: ignore[arg-type]
    carry = carried(request)
    samples = list(itertools.islice(calibrating(dataset, held_out(dataset, request)), 4 * JUDGES if carry else JUDGES))
    switches = Switches(model, form, converted, carry)
    return Search(switches, samples, TOLERANCES[form.name], on_progress, in_order=bool(carry)).run()
