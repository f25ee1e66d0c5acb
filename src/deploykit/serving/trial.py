"""The trial of a packaged model: loaded from its repository and run, before anybody gets it; a worker's job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data import open_request
from deploykit.runtime import open_runtime
from deploykit.serving import repository

if TYPE_CHECKING:
    from deploykit.data import DataRequest


def trial_job(folder: str, data: DataRequest) -> dict[str, Any]:
    """Loads the newest version in a model's folder and runs it once on the first sample of `data`.

    Returns {"engine", "execution", "inputs", "outputs": specs as the engine has them, "made": {output: shape},
    "problem": why the call failed, or None}.
    """
    found = repository.entries_of(Path(folder))[-1]
    runtime = open_runtime(found.path)
    facts: dict[str, Any] = {
        "engine": runtime.engine,
        "execution": runtime.execution,
        "inputs": [spec.as_dict() for spec in runtime.inputs],
        "outputs": [spec.as_dict() for spec in runtime.outputs],
        "made": {},
        "problem": None,
    }
    model = found.path if found.path.suffix == ".onnx" else None
    sample = next(iter(open_request(data, runtime.inputs, model)))
    try:
        outputs = runtime.predict(sample.feeds)
    except Exception as problem:  # vendors' own classes; the caller says what it means
        facts["problem"] = " ".join(str(problem).split())[:500] or type(problem).__name__
    else:
        facts["made"] = {name: list(np.shape(array)) for name, array in outputs.items()}
    runtime.close()
    return facts
