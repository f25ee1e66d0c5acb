"""What tests of both half precisions share: convert, check fully, run in an engine that computes it, compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from quantize_models import run

from deploykit import graph
from deploykit.parity import TOLERANCES, OutputComparison
from deploykit.quantize.half import HalfResult, convert_to_half
from deploykit.quantize.half_engine import RoundingRuntime
from deploykit.quantize.half_formats import BFLOAT16, FLOAT16, HalfFormat
from deploykit.quantize.half_opset import load_for_half

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

FORMATS = {"fp16": FLOAT16, "bf16": BFLOAT16}
Feeds = dict[str, np.ndarray]


def halved(path: Path, form: HalfFormat = FLOAT16, **options) -> tuple[Path, ir.Model, HalfResult]:
    """Converts, saves and fully checks."""
    model, _ = load_for_half(path, form)
    result = convert_to_half(model, form, **options)
    graph.infer_shapes(model)
    out = path.with_name(f"{path.stem}.{form.name}.onnx")
    graph.save(model, out)
    onnx.checker.check_model(str(out), full_check=True)
    return out, model, result


def run_half(path: Path, model: ir.Model, feeds: Feeds, form: HalfFormat) -> Feeds:
    """Outputs with every result rounded to the format."""
    halves = {value.name for value in model.graph.inputs if value.dtype == form.dtype}
    given = {name: feed.astype(form.array) if name in halves else feed for name, feed in feeds.items()}
    runtime = RoundingRuntime(path, form)
    try:
        return runtime.predict(given)
    finally:
        runtime.close()


def misses(path: Path, feeds: Feeds, form: HalfFormat = FLOAT16, **options) -> tuple[list[str], HalfResult]:
    """Outputs that differ from float by more than the precision's tolerance, and the conversion's result."""
    out, model, result = halved(path, form, **options)
    found, reference = run_half(out, model, feeds, form), run(path, feeds, optimize=False)
    assert list(found) == list(reference)
    wrong = differing(found, reference, form)
    if form is FLOAT16:
        halves = {value.name for value in model.graph.inputs if value.dtype == form.dtype}
        given = {name: feed.astype(form.array) if name in halves else feed for name, feed in feeds.items()}
        wrong += [f"{name} in onnxruntime" for name in differing(run(out, given), reference, form)]
    return wrong, result


def differing(found: Feeds, reference: Feeds, form: HalfFormat) -> list[str]:
    """Names of the outputs beyond the precision's tolerance."""
    wrong = []
    for name, expected in reference.items():
        row = OutputComparison(name, TOLERANCES[form.name])
        row.add(expected, found[name])
        wrong += [] if row.passed else [name]
    return wrong
