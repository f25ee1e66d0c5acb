"""The proof of a scikit-learn export: the ONNX file in the reference against the model's own methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from deploykit.comparison import compare
from deploykit.data import Sample
from deploykit.errors import VendorError
from deploykit.exporters import sklearn_data, sklearn_outputs, sklearn_source
from deploykit.exporters.proof import SourceSide, not_compared
from deploykit.exporters.sklearn_edges import Edges
from deploykit.parity import TOLERANCES
from deploykit.progress import OnProgress, silent
from deploykit.reference import Reference
from deploykit.report import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploykit.exporters.request import SklearnRequest
    from deploykit.exporters.sklearn_source import SklearnSource
    from deploykit.runtime import Feeds, Outputs

# Rows in each call of a model with an open batch: one, a few, and many, some calls on thresholds of its trees.
_SIZES = (1, 3, 64, 256)
_MOST = 256
_FIXED_CALLS = 48


def prove_job(request: SklearnRequest, model: str, on_progress: OnProgress = silent) -> dict[str, Any]:
    """Compares an exported file with its model on random rows and the user's; JSON as `comparison.compare` returns.

    Rows on a threshold of the model within the rounding of the file's inputs are counted and named (DK674).
    """
    source = sklearn_source.load(request)
    reference = Reference(Path(model))
    wanted = sklearn_outputs.methods(source.model)
    edges = Edges(source, wanted, [spec.name for spec in reference.outputs])
    samples = list(_samples(source, request["seed"], edges))
    # By method, and not yet by output: forms are the file's, which has not run then.
    side = SourceSide(cast("Callable[[Feeds], Outputs]", source.answers), "the model")
    try:
        result = compare(
            lambda feeds: edges.look(feeds, side.predict(feeds), reference.predict(feeds)),
            edges.settled,
            side.accepted(samples),
            tolerance=TOLERANCES["fp32"],
            total=len(samples),
            on_progress=on_progress,
        )
    except VendorError as problem:
        text = f"the exported file refuses rows that the model takes: {problem.message[:300]}"
        return not_compared(failure("DK625", text, hint="--input names the columns and their dtypes"))
    finally:
        reference.close()
    findings = [*side.refused, *edges.findings()]
    engines = {
        "reference": f"scikit-learn, {type(source.model).__name__}",
        "candidate": "onnxruntime, graph optimisation off",
    }
    batch = source.inputs.batch
    proven = {batch: sorted(side.rows)} if isinstance(batch, str) else {}
    return {
        **result,
        "proven": proven,
        "engines": engines,
        "findings": [*(f.as_dict() for f in findings), *result["findings"]],
    }


def _samples(source: SklearnSource, seed: int, edges: Edges) -> Iterator[Sample]:
    generator = np.random.default_rng(seed)
    if source.sample:
        size = None if isinstance(source.inputs.batch, str) else source.inputs.batch
        for at, feeds in enumerate(sklearn_source.batches(source.sample, size)):
            yield Sample(feeds, None, f"the sample, call {at}" if size else "the sample")
    for size in _sizes(source):
        yield Sample(sklearn_data.rows(source, size, generator), None, f"{size} random rows")
    size = _sizes(source)[-1]
    thresholds = sklearn_data.threshold_rows(source, size, generator)
    if thresholds is not None:
        edges.placed = thresholds
        yield Sample(thresholds, None, f"{size} rows on thresholds")


def _sizes(source: SklearnSource) -> list[int]:
    if not isinstance(source.inputs.batch, str):
        return [source.inputs.batch] * _FIXED_CALLS
    low, high = max(source.batch.minimum, 1), source.batch.maximum
    sizes = {min(max(size, low), high or size) for size in (*_SIZES, low, min(high or _MOST, 4 * _MOST))}
    return sorted(sizes)
