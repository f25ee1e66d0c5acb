"""The proof of an export: the ONNX file in the reference against the PyTorch module, over every dynamic dimension."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.data import Sample
from deploykit.exporters import torch_call, torch_source
from deploykit.exporters.candidate import open_candidate
from deploykit.exporters.proof import Proof, SourceSide
from deploykit.exporters.torch_export import precision_of
from deploykit.parity import TOLERANCES
from deploykit.progress import OnProgress, silent

if TYPE_CHECKING:
    from deploykit.exporters.request import TorchRequest
    from deploykit.exporters.torch_call import Call


def prove_job(request: TorchRequest, model: str, on_progress: OnProgress = silent) -> dict[str, Any]:
    """Compares an exported file with the module of the request; JSON as `comparison.compare` returns.

    Sizes of dynamic dimensions that the module itself refuses are left out, with a warning that names them; no size
    at all is a failure. That the module is not random was seen before it was exported.
    """
    loaded = torch_source.load(request)
    call = torch_call.prepare(loaded, request)
    path = Path(model)
    candidate = open_candidate(path, request.get("libraries"))
    try:
        proof = Proof(
            SourceSide(call.run, "the module"),
            candidate.predict,
            call.specs,
            call.symbols,
            path,
            request["seed"],
            TOLERANCES[precision_of(loaded.module)],
            given=[_example(call)],
            way="a size was frozen in the file; --exporter dynamo or --exporter torchscript takes the other way",
        )
        result = proof.run(on_progress)
    finally:
        candidate.close()
    return {**result, "engines": {"reference": "PyTorch, eager", "candidate": "onnxruntime, graph optimisation off"}}


def _example(call: Call) -> Sample:
    return Sample({name: torch_call.as_array(tensor) for name, tensor in call.example.items()}, None, "the example")
