"""A scikit-learn source: the fitted model, its inputs, and its answers under the names of the ONNX outputs."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.data.request import dim_ranges
from deploykit.data.specs import DimRange
from deploykit.errors import DataError
from deploykit.exporters.sample_file import read_arrays
from deploykit.exporters.sklearn_inputs import inputs_of
from deploykit.exporters.sklearn_loading import load_estimator
from deploykit.exporters.symbols import described

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.exporters.request import SklearnRequest
    from deploykit.exporters.sklearn_inputs import Inputs
    from deploykit.report import Finding
    from deploykit.runtime import Feeds

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class SklearnSource:
    """The model and its inputs as they will be in the ONNX.

    batch: bounds of the first dimension; a number where it is fixed.
    """

    model: Any
    inputs: Inputs
    path: Path
    batch: DimRange
    findings: tuple[Finding, ...]
    sample: Mapping[str, Array]

    def answers(self, feeds: Feeds) -> dict[str, Array | list[Array]]:
        """What the model's methods give, by method: predict, predict_proba, decision_function, transform."""
        table = self.inputs.table(feeds)
        found: dict[str, Array | list[Array]] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # feature names that an array does not have
            for name in METHODS:
                method = getattr(self.model, name, None)
                if method is not None:
                    found[name] = _plain(method(table))
        return found

    @property
    def symbols(self) -> dict[str, DimRange]:
        """The batch dimension, where it is open."""
        return {self.batch.name: self.batch} if isinstance(self.inputs.batch, str) else {}


METHODS = ("predict", "predict_proba", "decision_function", "transform")


def _plain(result: Any) -> Array | list[Array]:
    if isinstance(result, list):
        return [np.asarray(item) for item in result]
    if hasattr(result, "toarray"):
        return np.asarray(result.toarray())
    return np.asarray(result)


def load(request: SklearnRequest) -> SklearnSource:
    """Loads the model and finds its inputs.

    Raises what `sklearn_loading.load_estimator` and `sklearn_inputs.inputs_of` raise, UsageError (DK620) for a
    dimension that it does not have, DataError (DK622) for a sample that does not fit.
    """
    path = Path(request["path"])
    model, findings = load_estimator(path, request["kind"], trust=request["trust"])
    _one_process(model)
    arrays = read_arrays(request["sample"], "X=X", "; strings as X.astype(str)") if request["sample"] else {}
    given = [TensorSpec.from_dict(facts) for facts in request["inputs"]]
    inputs = inputs_of(model, given, arrays, path)
    changed = {spec.name: spec for spec in described(inputs.specs, [], request["dims"], path)}
    inputs = dataclasses.replace(inputs, specs=tuple(changed.get(spec.name, spec) for spec in inputs.specs))
    bounds = dim_ranges(request["dims"])
    batch = inputs.batch
    given_range = (
        bounds.get(batch, DimRange(batch, 1, None)) if isinstance(batch, str) else DimRange("batch", batch, batch)
    )
    sample = _fitted(arrays, inputs, Path(request["sample"])) if request["sample"] else {}
    return SklearnSource(model, inputs, path, given_range, tuple(findings), sample)


def _one_process(model: Any) -> None:
    """The model answers in this process and thread: `n_jobs` was for training, and small calls wait for threads."""
    import threadpoolctl

    threadpoolctl.threadpool_limits(1)
    for name in getattr(model, "get_params", dict)():
        if name == "n_jobs" or name.endswith("__n_jobs"):
            model.set_params(**{name: 1})


def _fitted(arrays: dict[str, Array], inputs: Inputs, path: Path) -> dict[str, Array]:
    """The sample as one feed: [rows] becomes [rows, 1]; of a model with one input the array may have any name."""
    specs = inputs.specs
    others = [name for name in arrays if name != "y"]
    if len(specs) == 1 and specs[0].name not in arrays and len(others) == 1:
        arrays = {specs[0].name: arrays[others[0]]}
    feeds: dict[str, Array] = {}
    for spec in specs:
        array, shape = arrays.get(spec.name), spec.shape or ()
        if array is not None and array.ndim == 1 and len(shape) == 2 and shape[1] == 1:
            array = array[:, None]
        fits = array is not None and array.ndim == len(shape) and array.shape[1:] == shape[1:]
        if array is None or not fits or (spec.dtype == "string") != (array.dtype.kind in "US"):
            was = "missing" if array is None else f"{array.dtype.name} {list(array.shape)}"
            raise DataError(
                f"the sample's {spec.name!r} is {was}",
                code="DK622",
                file=path,
                tensor=spec.name,
                context=[f"expected {spec.describe()}"],
            )
        feeds[spec.name] = array.astype(object if spec.dtype == "string" else spec.dtype)
    rows = {len(array) for array in feeds.values()}
    if len(rows) != 1 or not rows - {0}:
        raise DataError(f"the arrays of {path.name} have {sorted(rows)} rows", code="DK622", file=path)
    return feeds


def batches(feeds: Mapping[str, Array], size: int | None) -> list[dict[str, Array]]:
    """The rows in calls of a size; None: all in one."""
    rows = len(next(iter(feeds.values())))
    step = size or rows
    return [{name: a[at : at + step] for name, a in feeds.items()} for at in range(0, rows - rows % step, step)]
