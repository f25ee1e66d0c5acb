"""The onnx package's node tests as models with feeds and expected outputs, and how outputs are compared.

Each test is there as it stands ("given") and, where its node has more than one input, with all inputs but the first as
initializers ("constants"), as weights, axes and shapes of real models are.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings

import numpy as np
import onnx
from onnx import numpy_helper

GIVEN, CONSTANTS = "given", "constants"
# Two engines draw different numbers: of these only shapes and types are compared.
RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, what it is fed and what it gives: arrays, lists of arrays (sequences) or None, by name."""

    name: str
    model: onnx.ModelProto
    feeds: dict
    expected: dict
    rtol: float = 1e-3
    atol: float = 1e-7

    @property
    def random(self):
        """Whether its outputs differ from run to run."""
        nodes = {node.op_type for node in self.model.graph.node}
        drops = "Dropout" in nodes and "training" in self.name
        return bool(nodes & RANDOM) or drops


@functools.cache
def _tests():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows on purpose
        from onnx.backend.test.loader import load_model_tests

        return {test.name: test for test in load_model_tests(kind="node")}


def names():
    """`test@variant` of every case, in the order of the onnx package."""
    found = []
    for name, test in _tests().items():
        found.append(f"{name}@{GIVEN}")
        others = test.data_sets[0][0][1:]
        if others and all(isinstance(value, (np.ndarray, np.generic, onnx.TensorProto)) for value in others):
            found.append(f"{name}@{CONSTANTS}")
    return found


def case(name):
    """The case of that name."""
    test, _, variant = name.partition("@")
    if variant not in (GIVEN, CONSTANTS):
        message = f"{name} is a variation: operator_variations makes it"
        raise KeyError(message)
    test = _tests()[test]
    model = onnx.ModelProto()
    model.CopyFrom(test.model)
    given, made = test.data_sets[0]
    feeds = dict(zip((value.name for value in model.graph.input), map(as_value, given), strict=True))
    expected = dict(zip((value.name for value in model.graph.output), map(as_value, made), strict=True))
    if variant == CONSTANTS:
        names = list(feeds)[1:]
        model = with_initializers(
            model, {key: value for key, value in zip(list(feeds), given, strict=True) if key in names}
        )
        feeds = {key: value for key, value in feeds.items() if key not in names}
    return Case(name, model, feeds, expected, test.rtol, test.atol)


def as_value(value):
    """As engines give it: arrays, with ml_dtypes where numpy has no such type, lists and None."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [as_value(item) for item in value]
    return value if value is None else np.asarray(value)


def with_initializers(model, values):
    """The model with some of its inputs fixed."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [value for value in made.graph.input if value.name not in values]
    for name, value in values.items():
        if isinstance(value, onnx.TensorProto):
            tensor = onnx.TensorProto()
            tensor.CopyFrom(value)
            tensor.name = name
        else:
            tensor = numpy_helper.from_array(np.asarray(value), name)
        made.graph.initializer.append(tensor)
    del made.graph.input[:]
    made.graph.input.extend(kept)
    return made


# Two units in the last place of the largest value; float32 gets eight, and float64 is compared as float32.
_ROUNDING = {"float16": 2**-9, "bfloat16": 2**-6}
# Types of less than a byte: numpy has no arrays of them as engines pack them.
PACKED = {"int4": np.int8, "uint4": np.uint8, "int2": np.int8, "uint2": np.uint8, "float4_e2m1fn": np.float32}


def beyond_numpy(value):
    """Whether its type comes from ml_dtypes."""
    return isinstance(value, np.ndarray) and value.dtype.isbuiltin == 2


def whole_bytes(case):
    """The case with inputs of less than a byte fixed, and outputs of such types cast to a larger one."""
    packed = {name: value for name, value in case.feeds.items() if is_packed(value)}
    outgoing = {name: PACKED[value.dtype.name] for name, value in case.expected.items() if is_packed(value)}
    if not packed and not outgoing:
        return case
    model = with_initializers(case.model, packed)
    for output in model.graph.output:
        if output.name in outgoing:
            to = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(outgoing[output.name]))
            for node in model.graph.node:
                node.output[:] = [f"{name}_packed" if name == output.name else name for name in node.output]
            model.graph.node.append(onnx.helper.make_node("Cast", [f"{output.name}_packed"], [output.name], to=to))
            output.type.tensor_type.elem_type = to
    expected = {
        name: value.astype(outgoing[name]) if name in outgoing else value for name, value in case.expected.items()
    }
    feeds = {name: value for name, value in case.feeds.items() if name not in packed}
    return dataclasses.replace(case, model=model, feeds=feeds, expected=expected)


def is_packed(value):
    """Whether it is of a type of less than a byte."""
    return isinstance(value, np.ndarray) and value.dtype.name in PACKED


def difference(have, case, *, types=True):
    """How outputs differ, by the onnx package's own rules; "" when they do not.

    types: whether they have to be of the same type (Core ML's interface knows three of them).
    """
    for name, expected in case.expected.items():
        if name not in have:
            return f"{name} is missing"
        found = _differs(have[name], expected, case, types)
        if found:
            return f"{name} {found}"
    return ""


def _differs(have, wanted, case, types):
    if wanted is None:
        return "" if have is None else "is there, and should be empty"
    if isinstance(wanted, list):
        if not isinstance(have, list) or len(have) != len(wanted):
            return "is not a sequence of the same length"
        return next((why for pair in zip(have, wanted, strict=True) if (why := _differs(*pair, case, types))), "")
    have = np.asarray(have)
    rtol, kind = case.rtol, wanted.dtype.name
    if wanted.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)  # two units in the last place, as onnx allows
    elif wanted.dtype.name == "float16":
        rtol = max(rtol, 2**-9)  # the same for float16
    if have.dtype == PACKED.get(wanted.dtype.name):
        wanted = wanted.astype(have.dtype)
    if have.shape != wanted.shape:
        return f"has shape {have.shape}, not {wanted.shape}"
    if wanted.dtype == object or wanted.dtype.kind in "US":
        return "" if have.tolist() == wanted.tolist() or case.random else "has other texts"
    if not types and have.dtype.kind in "biuf":
        wanted = wanted.astype(np.float32) if have.dtype.kind == "f" else wanted.astype(np.int64)
        have = have.astype(wanted.dtype)
    if have.dtype != wanted.dtype:
        return f"is {have.dtype}, not {wanted.dtype}"
    if case.random:
        return ""
    if beyond_numpy(wanted):
        have, wanted = have.astype(np.float32), wanted.astype(np.float32)
    # Sums round at the size of what is added up: a result near zero beside large ones is as exact as they are.
    finite = np.abs(wanted[np.isfinite(wanted)]) if wanted.dtype.kind in "fc" else np.zeros(0)
    atol = max(case.atol, _ROUNDING.get(kind, 1e-6) * float(np.max(finite, initial=0)))
    if np.allclose(have, wanted, rtol=rtol, atol=atol, equal_nan=True):
        return ""
    if wanted.dtype.kind in "fc" and np.isnan(have).sum() != np.isnan(wanted).sum():
        return f"has {np.isnan(have).sum()} values that are no numbers, not {np.isnan(wanted).sum()}"
    with np.errstate(all="ignore"):
        far = np.nanmax(np.abs(have.astype(np.complex128) - wanted.astype(np.complex128)), initial=0)
    return f"differs by up to {far:.3g}"
