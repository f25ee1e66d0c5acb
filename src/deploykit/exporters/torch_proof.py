"""The proof of an export: the ONNX file in the reference against the PyTorch module, over every dynamic dimension."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.comparison import compare, stochastic_nodes
from deploykit.data import Sample, open_data
from deploykit.errors import VendorError
from deploykit.exporters import torch_call, torch_source
from deploykit.exporters.diagnosis import reason
from deploykit.exporters.torch_export import precision_of
from deploykit.parity import TOLERANCES
from deploykit.progress import OnProgress, silent
from deploykit.reference import Reference
from deploykit.report import failure, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from deploykit.exporters.request import TorchRequest
    from deploykit.exporters.torch_call import Call
    from deploykit.report import Finding
    from deploykit.runtime import Feeds, Outputs

# Each dimension at its minimum, at its maximum, and at values between (see data.random_data); fixed shapes need fewer.
POINTS = 6
POINTS_FIXED = 4


def prove_job(request: TorchRequest, model: str, on_progress: OnProgress = silent) -> dict[str, Any]:
    """Compares an exported file with the module of the request; JSON as `comparison.compare` returns.

    Sizes of dynamic dimensions that the module itself refuses are left out, with a warning that names them; no size
    at all is a failure. A graph with random nodes is not compared (DK404).
    """
    loaded = torch_source.load(request)
    call = torch_call.prepare(loaded, request)
    path = Path(model)
    random = stochastic_nodes(path)
    if random:
        text = f"the module is random in {', '.join(random[:4])}: its outputs were not compared"
        return _not_compared(warning("DK404", text, hint="a random module in evaluation mode is often a mistake"))
    source = _Source(call)
    reference = Reference(path)
    try:
        points = POINTS if call.symbols else POINTS_FIXED
        dataset = open_data(
            f"random:{request['seed']}",
            call.specs,
            purpose="parity",
            samples=points,
            dims=call.symbols,
            model=path,
        )
        taken = {spec.name for spec in reference.inputs}
        result = compare(
            source.predict,
            lambda feeds: reference.predict({name: array for name, array in feeds.items() if name in taken}),
            source.accepted(_example(call), dataset),
            tolerance=TOLERANCES[precision_of(loaded.module)],
            total=points + 1,
            on_progress=on_progress,
        )
    except VendorError as problem:
        text = f"the exported file refuses an input that the module takes: {problem.message[:300]}"
        hint = "a size was frozen in the file; --exporter dynamo or --exporter torchscript takes the other way"
        return _not_compared(failure("DK625", text, hint=hint))
    finally:
        reference.close()
    engines = {"reference": "PyTorch, eager", "candidate": "onnxruntime, graph optimisation off"}
    return {**result, "engines": engines, "findings": [*(f.as_dict() for f in source.refused), *result["findings"]]}


def _not_compared(finding: Finding) -> dict[str, Any]:
    return {"outputs": [], "samples": 0, "execution": "none", "engines": {}, "findings": [finding.as_dict()]}


def _example(call: Call) -> Sample:
    return Sample({name: torch_call.as_array(tensor) for name, tensor in call.example.items()}, None, "the example")


class _Source:
    """The module as the reference side: samples that it refuses are left out, each sample is run once."""

    def __init__(self, call: Call) -> None:
        self.refused: list[Finding] = []
        self._call = call
        self._outputs: Outputs = {}

    def accepted(self, *samples: Sample | Iterable[Sample]) -> Iterator[Sample]:
        """The samples that the module takes: a size that the source refuses says nothing about the export."""
        for sample in itertools.chain.from_iterable([s] if isinstance(s, Sample) else s for s in samples):
            try:
                self._outputs = self._call.run(sample.feeds)
            except Exception as problem:  # the user's forward raises what it likes
                shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in sample.feeds.items())
                text = f"the module itself fails on {shapes} ({reason(problem)}): not compared there"
                self.refused.append(warning("DK624", text, hint="bound the sizes it takes: --dim NAME=MIN..MAX"))
                continue
            yield sample

    def predict(self, feeds: Feeds) -> Outputs:
        """What the module gave for the sample that was yielded last."""
        del feeds
        return self._outputs
