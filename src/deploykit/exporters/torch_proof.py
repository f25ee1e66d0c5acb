"""The proof of an export: the ONNX file in the reference against the PyTorch module, over every dynamic dimension."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.comparison import compare, stochastic_nodes
from deploykit.data import Sample, open_data
from deploykit.errors import VendorError
from deploykit.exporters import torch_call, torch_source
from deploykit.exporters.proof import POINTS, POINTS_FIXED, SourceSide, not_compared
from deploykit.exporters.torch_export import precision_of
from deploykit.parity import TOLERANCES
from deploykit.progress import OnProgress, silent
from deploykit.reference import Reference
from deploykit.report import failure, warning

if TYPE_CHECKING:
    from deploykit.exporters.request import TorchRequest
    from deploykit.exporters.torch_call import Call


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
        return not_compared(warning("DK404", text, hint="a random module in evaluation mode is often a mistake"))
    source = SourceSide(call.run, "the module")
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
        return not_compared(failure("DK625", text, hint=hint))
    finally:
        reference.close()
    engines = {"reference": "PyTorch, eager", "candidate": "onnxruntime, graph optimisation off"}
    return {**result, "engines": engines, "findings": [*(f.as_dict() for f in source.refused), *result["findings"]]}


def _example(call: Call) -> Sample:
    return Sample({name: torch_call.as_array(tensor) for name, tensor in call.example.items()}, None, "the example")
