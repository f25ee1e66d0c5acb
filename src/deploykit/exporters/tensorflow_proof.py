"""The proof of a TensorFlow export: the ONNX file in the reference against the source in its own framework."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.data import Sample
from deploykit.exporters import tensorflow_source
from deploykit.exporters.candidate import open_candidate
from deploykit.exporters.layout import changed, to_new, to_old
from deploykit.exporters.proof import Proof, SourceSide, not_compared
from deploykit.exporters.tensorflow_export import layouts_of
from deploykit.graph.stochastic import stochastic_nodes
from deploykit.parity import TOLERANCES, row_for
from deploykit.progress import OnProgress, silent
from deploykit.report import failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from deploykit.exporters.request import TensorflowRequest
    from deploykit.exporters.tensorflow_source import LoadedSource
    from deploykit.reference import Reference
    from deploykit.runtime import Feeds, Outputs, Runtime


def prove_job(request: TensorflowRequest, model: str, on_progress: OnProgress = silent) -> dict[str, Any]:
    """Compares an exported file with its source over every dynamic dimension; JSON as `comparison.compare` returns.

    Integer outputs of a quantized LiteRT model are compared as the real numbers that they stand for. Sizes that the
    source itself refuses are left out, with a warning. A graph with random nodes is a failure (DK685).
    """
    source = tensorflow_source.load(request)
    path = Path(model)
    random = stochastic_nodes(path)
    if random:
        text = f"the model is random in {', '.join(random[:4])}: two runs of the same input differ"
        hint = "give the random numbers as an input, or save the model without this part"
        return not_compared(failure("DK685", text, hint=hint))
    scales = source.model.scales
    candidate = open_candidate(path)
    turned = _turned(request, source, candidate)
    taken = {spec.name for spec in candidate.inputs}
    given = [tensorflow_source.read_sample(request["sample"], source.specs)] if request["sample"] else []

    def predict(feeds: Feeds) -> Outputs:
        given = {name: array for name, array in to_new(feeds, turned).items() if name in taken}
        return real_values(to_old(candidate.predict(given), turned), scales)

    try:
        proof = Proof(
            SourceSide(lambda feeds: real_values(source.model.run(feeds), scales), "the source"),
            predict,
            source.specs,
            source.symbols,
            path,
            request["seed"],
            TOLERANCES[_row(path, request["kind"])],
            given=given,
            adapt=lambda samples: _over_whole_range(samples, scales, request["seed"]),
            way="bound the sizes: --dim NAME=MIN..MAX, or --dim NAME=SIZE",
        )
        result = proof.run(on_progress)
    finally:
        candidate.close()
    engines = {"reference": source.model.engine, "candidate": "onnxruntime, graph optimisation off"}
    return {**result, "engines": engines}


def _turned(request: TensorflowRequest, source: LoadedSource, candidate: Reference | Runtime) -> dict[str, str]:
    """The tensors whose layout the export changed; which are images is told as it was there."""
    if not request.get("layout"):
        return {}
    specs = (*source.specs, *candidate.outputs)
    return changed(request["layout"], layouts_of(source, specs), specs)


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
