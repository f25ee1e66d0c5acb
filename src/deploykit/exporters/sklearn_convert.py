"""A fitted model to an ONNX graph through skl2onnx, and onnxmltools for boosted trees of other packages."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io as memory
import logging
import warnings
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from deploykit.errors import DeploykitError, GateError, MissingDependencyError, UsageError, VendorError
from deploykit.exporters.diagnosis import reason
from deploykit.exporters.sklearn_parts import fills_text, named, parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from deploykit.exporters.sklearn_inputs import Inputs

# skl2onnx 1.20 and onnxmltools 1.16 write up to this opset; higher ones are converted from it.
HIGHEST_OPSET = 22
LOWEST_OPSET = 11
_HIGHEST_ML = 3
# onnxruntime lower-cases text by the rules of a locale that the system has to know; this one every glibc has.
_LOCALE = "C.UTF-8"
_BOOSTED = {"xgboost": "XGBoost", "lightgbm": "LightGBM"}
_SHOWN = 6
_REPLACE = "replace it by an estimator that skl2onnx.supported_converters() lists"


def ml_opset(opset: int) -> int:
    """The version of ai.onnx.ml that was released with an opset, as far as skl2onnx writes it."""
    found = [row[3] for row in onnx.helper.VERSION_TABLE if row[2] <= opset]
    return min(max(found, default=1), _HIGHEST_ML)


def convert(model: Any, inputs: Inputs, opset: int, path: Path) -> ir.Model:
    """The ONNX graph of a fitted model with float tensors as probabilities.

    Raises GateError (DK675) naming the steps that have no conversion, VendorError (DK676) naming the step whose
    conversion fails, MissingDependencyError for xgboost and lightgbm models without onnxmltools.
    """
    import skl2onnx

    _register_boosted(model)
    _refuse_unknown(model, path)
    prepared = _prepared(model)
    options = _options(prepared)
    try:
        with _quiet():
            proto = skl2onnx.convert_sklearn(
                prepared,
                name="main",
                initial_types=[(spec.name, _type(spec.dtype, spec.shape)) for spec in inputs.specs],
                options=options,
                target_opset={"": opset, "ai.onnx.ml": ml_opset(opset)},
            )
    except DeploykitError:
        raise
    except Exception as problem:  # converters raise what they like
        raise _failed(prepared, problem, path) from problem
    found: ir.Model = ir.from_proto(_one_version(proto))
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the converters' remarks, which are about their own code, out of the log."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(memory.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("skl2onnx").setLevel(logging.ERROR)
        yield


def _one_version(proto: onnx.ModelProto) -> onnx.ModelProto:
    """skl2onnx 1.20 imports a domain twice where two converters wrote into one graph; the versions are the same."""
    versions = {
        entry.domain: max(e.version for e in proto.opset_import if e.domain == entry.domain)
        for entry in proto.opset_import
    }
    del proto.opset_import[:]
    proto.opset_import.extend(onnx.helper.make_opsetid(*item) for item in sorted(versions.items()))
    return proto


def _type(dtype: str, shape: tuple[int | str, ...] | None) -> Any:
    from skl2onnx.common import data_types

    kinds = {
        "float32": data_types.FloatTensorType,
        "float64": data_types.DoubleTensorType,
        "int64": data_types.Int64TensorType,
        "string": data_types.StringTensorType,
        "bool": data_types.BooleanTensorType,
    }
    return kinds[dtype]([None if isinstance(dim, str) or at == 0 else dim for at, dim in enumerate(shape or ())])


def _options(model: Any) -> dict[int, dict[str, Any]]:
    """Probabilities as a tensor and not as a sequence of maps, where the part at the end has the option; the locale."""
    from sklearn.base import is_classifier

    ends, end = [model], model
    while (steps := getattr(end, "steps", None)) or hasattr(end, "best_estimator_"):
        end = steps[-1][1] if steps else end.best_estimator_
        ends.append(end)
    found: dict[int, dict[str, Any]] = {}
    for _, part in parts(model):
        allowed = _allowed(part)
        if "zipmap" in allowed and any(part is end for end in ends) and "zipmap" in _allowed(end):
            found.setdefault(id(part), {})["zipmap"] = False
        elif is_classifier(part) and "zipmap" not in allowed:
            # A pipeline gives the option to each classifier that has no entry here, whether it knows it or not.
            found.setdefault(id(part), {})
        if "locale" in allowed:
            found.setdefault(id(part), {})["locale"] = _LOCALE
    return found


def _allowed(part: Any) -> Collection[str]:
    from skl2onnx._supported_operators import sklearn_operator_name_map
    from skl2onnx.common._registration import get_converter

    try:
        return get_converter(sklearn_operator_name_map[type(part)]).get_allowed_options() or ()
    except (KeyError, ValueError, AttributeError):
        return ()


def _prepared(model: Any) -> Any:
    """The model as skl2onnx takes it, computing the same.

    `flatten_transform` only matters to a method that is not exported, a matrix is as good as a sparse one, and missing
    text, for which ONNX has no value, is the empty one.
    """
    changed = copy.deepcopy(model)
    for _, part in parts(changed):
        if getattr(part, "flatten_transform", False):
            part.flatten_transform = False
        if getattr(part, "encode", None) == "onehot":
            part.encode = "onehot-dense"
        if fills_text(part):
            part.missing_values = ""
    return changed


def _family(part: Any) -> str:
    return type(part).__module__.partition(".")[0]


def _register_boosted(model: Any) -> None:
    """Tells skl2onnx the conversions of xgboost and lightgbm, when the model has such parts."""
    families = {_family(part) for _, part in parts(model)} & set(_BOOSTED)
    for family in sorted(families):
        try:
            importlib.import_module("onnxmltools")
        except ImportError as problem:
            raise MissingDependencyError(
                f"the package 'onnxmltools' is needed for models of {_BOOSTED[family]}, and it is not installed",
                hint="pip install 'deploykit[sklearn]'",
            ) from problem
        {"xgboost": _register_xgboost, "lightgbm": _register_lightgbm}[family]()


def _register_xgboost() -> None:
    import xgboost
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost

    for name, classifies in (
        ("XGBClassifier", True),
        ("XGBRegressor", False),
        ("XGBRFClassifier", True),
        ("XGBRFRegressor", False),
    ):
        _register(getattr(xgboost, name), f"XGBoost{name}", convert_xgboost, classifies=classifies)


def _register_lightgbm() -> None:
    import lightgbm
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm

    for name, classifies in (("LGBMClassifier", True), ("LGBMRegressor", False)):
        _register(getattr(lightgbm, name), f"LightGbm{name}", convert_lightgbm, classifies=classifies)


def _register(kind: type, alias: str, converter: Any, *, classifies: bool) -> None:
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator

    shapes = (
        shape_calculator.calculate_linear_classifier_output_shapes
        if classifies
        else shape_calculator.calculate_linear_regressor_output_shapes
    )
    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]} if classifies else {"split": None}
    update_registered_converter(kind, alias, shapes, converter, options=options, overwrite=True)


def _refuse_unknown(model: Any, path: Path) -> None:
    """Raises GateError (DK675): all parts without a conversion, each with its step."""
    from skl2onnx._supported_operators import sklearn_operator_name_map

    # What only holds other parts is taken apart by skl2onnx's parser.
    holders = {"Pipeline", "ColumnTransformer", "FeatureUnion", "CalibratedClassifierCV", "_CalibratedClassifier"}
    unknown = [
        (place, part)
        for place, part in parts(model)
        if type(part) not in sklearn_operator_name_map and type(part).__name__ not in holders
    ]
    converted = [(place, part) for place, part in parts(model) if type(part) in sklearn_operator_name_map]
    inside = [place for place, part in converted if type(part).__name__ not in holders]
    # A part of a converted one is that one's business: its converter takes or refuses it.
    unknown = [
        (place, part)
        for place, part in unknown
        if not any(place.startswith(f"{outer} > ") or (not outer and place) for outer in inside)
    ]
    if not unknown:
        return
    shown = [named(model, part) for _, part in unknown[:_SHOWN]]
    place = unknown[0][0]
    raise GateError(
        f"{path.name} has {'a part' if len(unknown) == 1 else 'parts'} without an ONNX form: {', '.join(shown)}",
        code="DK675",
        file=path,
        node=place or None,
        op=type(unknown[0][1]).__name__,
        hint=_way(model, place),
    )


def _way(model: Any, place: str) -> str:
    steps = [name for name, _ in getattr(model, "steps", ())]
    outer = place.partition(" > ")[0]
    if steps and outer == steps[0] and len(steps) > 1:
        return "do this step in your own code in front of the model, and export the rest: save pipeline[1:]"
    if steps and outer == steps[-1]:
        return f"{_REPLACE}, or export what is before it: pipeline[:-1]"
    return _REPLACE


def _failed(model: Any, problem: Exception, path: Path) -> DeploykitError:
    """The error for a conversion that failed, with the step that its converter was at."""
    part = _part_of(problem)
    where = named(model, part) if part is not None else type(model).__name__
    why = reason(problem)
    if "target_opset" in why:
        return UsageError(
            f"{where} of {path.name} cannot be written at this opset: {why[:300]}",
            code="DK612",
            hint="leave --opset away",
        )
    return VendorError(
        f"{where} of {path.name} could not be converted: {why[:400]}",
        code="DK676",
        file=path,
        op=type(part).__name__ if part is not None else None,
        hint=_way(model, next((place for place, found in parts(model) if found is part), "")),
    )


def _part_of(problem: BaseException) -> Any | None:
    """The estimator that the failing converter had in hand, from the frames of the error."""
    found, frame = None, problem.__traceback__
    while frame is not None:
        for name in ("operator", "op"):
            held = frame.tb_frame.f_locals.get(name)
            found = getattr(held, "raw_operator", None) or found
        frame = frame.tb_next
    return found
