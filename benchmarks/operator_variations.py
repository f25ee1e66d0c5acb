"""The node tests varied: other types, ranks, opsets, and open dimensions, each a valid model with its own reference.

A variation is named `test@variant;T=float16`, `;rank=5`, `;opset=13` or `;open`: the worker makes it again by its name.
"""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import onnx
import operator_cases as cases
from onnx import defs, helper

SKIPPED = {"If", "Loop", "Scan", "Constant"} | cases.RANDOM
COMMON = ("float32", "float16", "int64", "int32", "int8", "uint8", "bool")
TYPES = (*COMMON, "float64", "bfloat16", "int16", "uint16", "uint32", "uint64")
RANKS = range(1, 7)


@functools.cache
def seeds():
    """{test: its node} of the tests with one node of ONNX's own domain, tensors in and tensors out."""
    return {
        name: test.model.graph.node[0]
        for name, test in cases._tests().items()
        if len(test.model.graph.node) == 1
        and test.model.graph.node[0].domain in ("", "ai.onnx")
        and test.model.graph.node[0].op_type not in SKIPPED
        and all(value.type.HasField("tensor_type") for value in (*test.model.graph.input, *test.model.graph.output))
    }


def names():
    """Every point: the tests as they are, and the variations of one test for each operator and form."""
    known = set(cases.names())
    found = [f"{name}@{form}" for name in seeds() for form in (cases.GIVEN, cases.CONSTANTS)]
    found = [name for name in found if name in known]
    representatives = {}
    for name, node in seeds().items():
        representatives.setdefault((node.op_type, sum(map(bool, node.input)), len(node.output)), name)
    for name in representatives.values():
        forms = [f"{name}@{form}" for form in (cases.GIVEN, cases.CONSTANTS) if f"{name}@{form}" in known]
        for form in forms:
            found += [f"{form};{variation}" for variation in _variations(name, both=form.endswith(cases.CONSTANTS))]
    return found


def _variations(name, *, both):
    node = seeds()[name]
    opset = cases._tests()[name].model.opset_import[0].version
    schema = defs.get_schema(node.op_type, opset)
    kinds = COMMON if both else TYPES
    for constraint in schema.type_constraints:
        allowed = {_numpy_name(kind) for kind in constraint.allowed_type_strs}
        yield from (f"{constraint.type_param_str}={kind}" for kind in kinds if kind in allowed)
    if both:
        return
    yield from (f"rank={rank}" for rank in RANKS)
    yield "open"
    since = {each.since_version for each in defs.get_all_schemas_with_history() if _is(each, node.op_type)}
    yield from (f"opset={version}" for version in sorted(since - {schema.since_version}))


def _is(schema, operator):
    return schema.name == operator and schema.domain == "" and not schema.deprecated


def _numpy_name(kind):
    inner = kind.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(inner, inner)


@functools.lru_cache(maxsize=64)
def case(name):
    """The case; None when the variation is no valid model, or nobody can say what it computes."""
    base, *variations = name.split(";")
    made = cases.case(base)
    if not variations:
        return made
    for variation in variations:
        what, _, value = variation.partition("=")
        change = {"rank": _ranked, "open": _opened, "opset": _revised}.get(what, _typed)
        try:
            made = change(made, what, value)
        except (ValueError, TypeError, OverflowError):  # values or shapes that the variation cannot have
            return None
        if made is None:
            return None
    return _with_reference(made, name)


def _typed(made, parameter, kind):
    """Every tensor of a type parameter (T, T1, ...) in another type."""
    node = made.model.graph.node[0]
    schema = defs.get_schema(node.op_type, made.model.opset_import[0].version)
    model, feeds = _copy(made.model), dict(made.feeds)
    concerned = {
        value
        for formals, values in ((schema.inputs, node.input), (schema.outputs, node.output))
        for index, value in enumerate(values)
        if formals and formals[min(index, len(formals) - 1)].type_str == parameter
    }
    if not concerned:
        return None
    to = helper.np_dtype_to_tensor_dtype(_dtype(kind))
    for value in (*model.graph.input, *model.graph.output):
        if value.name in concerned:
            value.type.tensor_type.elem_type = to
    for index, tensor in enumerate(model.graph.initializer):
        if tensor.name in concerned:
            array = _as(onnx.numpy_helper.to_array(tensor), kind)
            model.graph.initializer[index].CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    feeds = {key: _as(array, kind) if key in concerned else array for key, array in feeds.items()}
    for attribute in model.graph.node[0].attribute:
        if attribute.name in ("to", "dtype"):
            attribute.i = to
    return cases.Case(made.name, model, feeds, {}, made.rtol, made.atol)


def _dtype(kind):
    return np.dtype(getattr(ml_dtypes, kind) if kind == "bfloat16" else kind)


def _as(array, kind):
    """Values that the type has, and so small that sums and products of them do not overflow in any engine."""
    array = np.asarray(array)
    if array.dtype.kind in "OUS":
        raise ValueError("text")
    if kind == "bool":
        return np.asarray(array.astype(np.float32) > 0)
    if not kind.startswith(("float", "bfloat")) and array.dtype.kind not in "iub":
        array = np.rint(np.nan_to_num(array.astype(np.float64)) * 2)
    if kind.startswith("uint"):
        array = np.abs(array.astype(np.float64))
    if kind.startswith(("int", "uint")):
        array = np.clip(array.astype(np.float64), -5, 5)
    return np.asarray(array).astype(_dtype(kind))


def _ranked(made, _, rank):
    """Leading dimensions of 1 put before, or taken from, whatever has the rank of the first input."""
    model, feeds = _copy(made.model), dict(made.feeds)
    if not feeds:
        return None
    first = next(iter(feeds.values()))
    before, rank = np.ndim(first), int(rank)
    if not before or rank == before or (rank < before and any(size != 1 for size in first.shape[: before - rank])):
        return None

    def reshaped(array):
        return array.reshape(array.shape[before - rank :] if rank < before else (1,) * (rank - before) + array.shape)

    for value in model.graph.input:
        if np.ndim(feeds[value.name]) == before:
            feeds[value.name] = reshaped(feeds[value.name])
            value.CopyFrom(_described(value, feeds[value.name].shape))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return cases.Case(made.name, model, feeds, {}, made.rtol, made.atol)


def _opened(made, *_):
    """Every dimension of every input a symbol."""
    model = _copy(made.model)
    if not any(np.ndim(array) for array in made.feeds.values()):
        return None
    for value in model.graph.input:
        names = [f"{value.name}_{axis}" for axis in range(np.ndim(made.feeds[value.name]))]
        value.CopyFrom(_described(value, names))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return cases.Case(made.name, model, made.feeds, {}, made.rtol, made.atol)


def _revised(made, _, opset):
    """The same node in the opset in which its operator was revised."""
    model = _copy(made.model)
    model.opset_import[0].version = int(opset)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return None
    return cases.Case(made.name, model, made.feeds, {}, made.rtol, made.atol)


def _described(value, shape):
    return helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape)


def _copy(model):
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _with_reference(made, name):
    """What onnx's own evaluator computes, and onnxruntime where that has no such operator."""
    from onnx.reference import ReferenceEvaluator

    model = _copy(made.model)
    outputs = [value.name for value in model.graph.output]
    try:
        onnx.checker.check_model(model, full_check=True)
        with np.errstate(all="ignore"):
            computed = ReferenceEvaluator(model).run(outputs, made.feeds)
    except Exception:  # an evaluator that cannot is no verdict on the model
        computed = _by_onnxruntime(model, made.feeds)
    if computed is None:
        return None
    expected = dict(zip(outputs, map(cases.as_value, computed), strict=True))
    for value in model.graph.output:
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        array = expected[value.name]
        if not isinstance(array, np.ndarray) or array.dtype != kind:
            return None
        if not value.type.tensor_type.HasField("shape") and not name.endswith("open"):
            value.CopyFrom(_described(value, array.shape))
    if name.endswith("open"):
        for value in model.graph.output:
            names = [f"{value.name}_{axis}" for axis in range(expected[value.name].ndim)]
            value.CopyFrom(_described(value, names))
    return cases.Case(name, model, made.feeds, expected, made.rtol, made.atol)


def _by_onnxruntime(model, feeds):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    except Exception:  # it has no kernel for these types: the point is left out
        return None
