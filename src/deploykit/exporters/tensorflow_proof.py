"""The proof of a TensorFlow export: the ONNX file in the reference against the source in its own framework."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.comparison import compare, stochastic_nodes
from deploykit.data import Sample, open_data
from deploykit.errors import VendorError
from deploykit.exporters import tensorflow_source
from deploykit.exporters.proof import POINTS, POINTS_FIXED, SourceSide, not_compared
from deploykit.parity import TOLERANCES, row_for
from deploykit.progress import OnProgress, silent
from deploykit.reference import Reference
from deploykit.report import failure, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from deploykit.exporters.request import TensorflowRequest
    from deploykit.runtime import Outputs


def prove_job(request: TensorflowRequest, model: str, on_progress: OnProgress = silent) -> dict[str, Any]:
    """Compares an exported file with its source over every dynamic dimension; JSON as `comparison.compare` returns.

    Integer outputs of a quantized LiteRT model are compared as the real numbers that they stand for. Sizes that the
    source itself refuses are left out, with a warning. A graph with random nodes is not compared (DK404).
    """
    source = tensorflow_source.load(request)
    path = Path(model)
    random = stochastic_nodes(path)
    if random:
        text = f"the model is random in {', '.join(random[:4])}: its outputs were not compared"
        return not_compared(warning("DK404", text, hint="a random model in inference mode is often a mistake"))
    scales = source.model.scales
    side = SourceSide(lambda feeds: real_values(source.model.run(feeds), scales), "the source")
    reference = Reference(path)
    points = POINTS if source.symbols else POINTS_FIXED
    try:
        dataset = open_data(
            f"random:{request['seed']}",
            source.specs,
            purpose="parity",
            samples=points,
            dims=source.symbols,
            model=path,
        )
        given = [tensorflow_source.read_sample(request["sample"], source.specs)] if request["sample"] else []
        taken = {spec.name for spec in reference.inputs}
        result = compare(
            side.predict,
            lambda feeds: real_values(reference.predict({n: a for n, a in feeds.items() if n in taken}), scales),
            side.accepted(given, _over_whole_range(dataset, scales, request["seed"])),
            tolerance=TOLERANCES[_row(path, request["kind"])],
            total=points + len(given),
            on_progress=on_progress,
        )
    except VendorError as problem:
        text = f"the exported file refuses an input that the source takes: {problem.message[:300]}"
        return not_compared(failure("DK625", text, hint="bound the sizes: --dim NAME=MIN..MAX, or --dim NAME=SIZE"))
    finally:
        reference.close()
    engines = {"reference": source.model.engine, "candidate": "onnxruntime, graph optimisation off"}
    return {**result, "engines": engines, "findings": [*(f.as_dict() for f in side.refused), *result["findings"]]}


def _row(path: Path, kind: str) -> str:
    """The tolerance's row. LiteRT rounds activations of models with 8-bit weights to 8 bits, which ONNX does not."""
    precision = graph.precision_of(graph.load(path))
    hybrid = kind == "tflite" and precision == "int8-weights"
    return row_for("int8-dynamic" if hybrid else precision, precision)


def real_values(outputs: Outputs, scales: Mapping[str, tuple[float, int]]) -> Outputs:
    """Quantized outputs as the numbers that they stand for: scale * (q - zero point)."""
    return {
        name: np.float32(scales[name][0]) * (array.astype(np.float32) - scales[name][1]) if name in scales else array
        for name, array in outputs.items()
    }


def _over_whole_range(
    samples: Iterable[Sample], scales: Mapping[str, tuple[float, int]], seed: int
) -> Iterator[Sample]:
    """The samples with quantized inputs anywhere in their type's range: such integers are no indices."""
    rng = np.random.default_rng(seed)
    for sample in samples:
        feeds = dict(sample.feeds)
        for name in sorted(feeds.keys() & scales.keys()):
            info = np.iinfo(feeds[name].dtype)
            feeds[name] = rng.integers(info.min, info.max, feeds[name].shape, feeds[name].dtype, endpoint=True)
        yield Sample(feeds, sample.label, sample.name)
