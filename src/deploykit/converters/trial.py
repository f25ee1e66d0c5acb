"""One node tried for real: inputs that it gives numbers for, the reference's answer, and an engine's against it.

The job runs user models in its process: call it in a worker.
"""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.comparison import compare, runtime_options
from deploykit.data.dataset import open_data
from deploykit.data.dtypes import numpy_dtype
from deploykit.data.request import dim_ranges
from deploykit.errors import DataError, DeploykitError, UnavailableError, VendorError
from deploykit.graph.stochastic import stochastic_nodes
from deploykit.parity import TOLERANCES, row_for
from deploykit.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deploykit.data.samples import Sample
    from deploykit.runtime import Feeds, Outputs, Runtime

    Array = np.ndarray[Any, Any]

_SAMPLES = 2
_NOT_NUMPY = ("bfloat", "float8", "int4", "uint4")


def trial_job(
    model: str,
    artifact: str | None = None,
    dims: Mapping[str, Sequence[int | None]] | None = None,
    seed: int = 0,
    folder: str | None = None,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Runs a model of one node on random inputs, and an artifact made of it on the same ones.

    dims: bounds by symbol. folder: where inputs.npz and, when the reference runs, outputs.npz are written (one sample).
    options: of `RuntimeOptions`. Returns JSON: `ran` (the artifact gave outputs), `compared`, `reason` (why it did not
    run, why nothing was compared, or how the outputs differ), `passed` (False: it does not run, or its outputs are
    wrong), `execution` ("real", "simulated", "none"), `reference` (why the reference does not run; "" when it does).
    """
    path = Path(model)
    wanted = runtime_options(options)
    answer: dict[str, Any] = {"ran": False, "compared": False, "passed": None, "reason": "", "execution": "none"}
    inputs, _ = graph.interface(graph.load(path))
    try:
        drawn = open_data(
            f"random:{seed}", inputs, purpose="parity", samples=_SAMPLES, dims=dim_ranges(dims or {}), model=path
        )
        samples = list(drawn)
    except DataError as problem:  # sequences, inputs without a rank: there is no random data for them
        return {**answer, "reference": problem.message}
    reference, refusal = _opened(path, dataclasses.replace(wanted, device="cpu", provider=None, optimize=False))
    if reference is not None:
        samples, refusal = _usable(samples, reference.predict)
    if folder is not None:
        _write(Path(folder), samples[0], reference if not refusal else None)
    answer["reference"] = refusal
    if artifact is not None:
        answer |= _tried(Path(artifact), wanted, None if refusal else reference, samples, path)
    return answer


def _opened(path: Path, options: Any) -> tuple[Runtime | None, str]:
    try:
        return open_runtime(path, options), ""
    except DeploykitError as problem:
        return None, problem.message


def _usable(samples: Sequence[Sample], predict: Callable[[Feeds], Outputs]) -> tuple[list[Sample], str]:
    """The samples that the reference takes, moved to where the node gives numbers; and why it takes none.

    A logarithm of a normal variable is NaN half of the time, which compares with nothing; and sizes that depend on each
    other may fit together only at their smallest.
    """
    refusal = ""
    for moved in _moved(samples):
        taken = []
        for sample in moved:
            try:
                outputs = predict(sample.feeds)
            except Exception as problem:  # the engine's own classes, which differ by version
                refusal = refusal or " ".join(str(problem).split())[:600]
                continue
            if all(map(_is_finite, outputs.values())):
                taken.append(sample)
            else:
                refusal = refusal or "its outputs are NaN or infinite on every input that was tried"
        if taken:
            return taken, ""
    return list(samples), refusal


def _moved(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """Floats as they are, then between 0 and 1, then between 1 and 2."""
    yield list(samples)
    for low in (0.0, 1.0):
        yield [
            dataclasses.replace(sample, feeds={name: _squeezed(a, low) for name, a in sample.feeds.items()})
            for sample in samples
        ]


def _squeezed(array: Array, low: float) -> Array:
    if not _is_float(array):
        return array
    return (low + 0.1 + 0.8 / (1.0 + np.exp(-array.astype(np.float64)))).astype(array.dtype)


def _is_float(array: Array) -> bool:
    name: str = array.dtype.name
    return array.dtype.kind == "f" or name.startswith(("bfloat", "float8"))


def _is_finite(value: Any) -> bool:
    if not isinstance(value, np.ndarray) or not _is_float(value):
        return True
    return bool(np.isfinite(value.astype(np.float64)).all())


def _tried(
    artifact: Path, options: Any, reference: Runtime | None, samples: Sequence[Sample], model: Path
) -> dict[str, Any]:
    """What the engine makes of the samples. reference: None when it takes none of them, which then prove nothing."""
    try:
        runtime = open_runtime(artifact, options)
    except UnavailableError as problem:  # an operator that is not simulated, an engine that is not here
        return {"reason": problem.message}
    except DeploykitError as problem:
        return {"passed": False, "reason": problem.message}
    try:
        predict = _between(runtime, reference)
        if reference is None or stochastic_nodes(model):
            for sample in samples:
                predict(sample.feeds)
            return {"ran": True, "execution": runtime.execution}
        precision = graph.precision_of(graph.load(model))
        tolerance = TOLERANCES[row_for(precision, precision)]
        result = compare(reference.predict, predict, samples, tolerance=tolerance)
    except (UnavailableError, VendorError):
        raise
    except DataError as problem:  # a type of which there are no arrays here
        return {"reason": problem.message}
    except Exception as problem:  # the engine's own classes: this is what is tried
        told = problem.message if isinstance(problem, DeploykitError) else str(problem)
        why = f"it fails when it is run: {' '.join(told.split())[:600]}"
        return {"passed": False if reference is not None else None, "reason": why}
    finally:
        runtime.close()
    wrong = [facts["message"] for facts in result["findings"] if facts["severity"] == "error"]
    return {
        "ran": True,
        "compared": True,
        "passed": not wrong,
        "reason": wrong[0] if wrong else "",
        "execution": runtime.execution,
    }


def _between(runtime: Runtime, reference: Runtime | None) -> Callable[[Feeds], Outputs]:
    """The engine with the node's own types at its door: Core ML's float32 there for bool is not about the node."""
    takes = {spec.name: spec for spec in runtime.inputs}
    gives = {spec.name: spec for spec in reference.outputs} if reference is not None else {}

    def predict(feeds: Feeds) -> Outputs:
        made = runtime.predict({name: _as(a, takes[name].dtype) for name, a in feeds.items() if name in takes})
        return {name: _as(a, gives[name].dtype) if name in gives else a for name, a in made.items()}

    return predict


def _as(array: Any, dtype: str) -> Any:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or array.dtype.name == dtype:
        return array
    kind = numpy_dtype(dtype)
    # A narrower float is the engine's choice, which the comparison tells; a bool as a number is the interface's.
    return array.astype(kind) if "b" in (array.dtype.kind, kind.kind) else array


def _write(folder: Path, sample: Sample, reference: Runtime | None) -> None:
    _save(folder / "inputs.npz", sample.feeds)
    if reference is not None:
        _save(folder / "outputs.npz", reference.predict(sample.feeds))


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    """Arrays that numpy alone can load: bfloat16 and float8 as float32, which holds them, texts as text.

    `numpy.savez` takes names as keywords, and an input may be called `file`; its archives also hold the time.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in arrays.items():
            array = np.asarray(value)
            if array.dtype.kind == "O":
                array = array.astype(str)
            elif array.dtype.kind == "V" or array.dtype.name.startswith(_NOT_NUMPY):
                array = array.astype(np.float32 if _is_float(array) else np.int8)
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
