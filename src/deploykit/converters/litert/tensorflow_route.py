"""LiteRT from TensorFlow by its own converter, and from a float LiteRT file (runs in the worker, beside TensorFlow)."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from deploykit.converters.bounds import bounds_of_input, fixed_by, unused_bounds
from deploykit.converters.litert.finishing import Made, finish
from deploykit.converters.litert.flatbuffer import interpreter, parse, text
from deploykit.converters.litert.interface import interface_of
from deploykit.converters.litert.options import settings_of
from deploykit.errors import UsageError, VendorError
from deploykit.lazy import versions_of

if TYPE_CHECKING:
    from deploykit.route import Handed

_LONG = 500  # characters of a reason
_REFUSED = re.compile(r"(?:Flex|TF Select|Custom) ops: (?P<ops>[\w, .]+)")
_TENSOR = re.compile(r"deploykit_(?P<side>input|output)_(?P<at>\d+)(:0)?")


def write(handed: Handed) -> dict[str, Any]:
    """A `route.Writer`: of a ConcreteFunction without variables, or of the bytes of a float LiteRT file.

    Raises VendorError (DK556) with the operators that LiteRT does not have, UsageError (DK527) for a bad option.
    """
    settings = settings_of(handed.options, calibrated=handed.calib is not None)
    findings = unused_bounds(handed.inputs, handed.dims, handed.profiles, target="litert")
    made = _taken(handed) if isinstance(handed.program, bytes) else _converted(handed)
    facts = finish(made, handed.output, settings, "fp32", handed.calib)
    facts["findings"][:0] = [finding.as_dict() for finding in findings]
    return facts


def _taken(handed: Handed) -> Made:
    """A LiteRT file as it is, to be quantized. Raises UsageError (DK527) for one that has integers already."""
    name = handed.output.name
    interpreter(handed.program, name, delegates=False)
    found = interface_of(parse(handed.program, name))
    if any(port.scale for port in (*found.inputs, *found.outputs)):
        raise UsageError(
            "the LiteRT file is quantized already", code="DK527", target="litert", hint="give the float model"
        )
    return Made(handed.program, handed.inputs, handed.outputs)


def _converted(handed: Handed) -> Made:
    function = handed.program
    specs = []
    for spec, tensor in zip(handed.inputs, function.inputs, strict=True):
        shape = fixed_by(spec, bounds_of_input(spec, handed.dims, handed.profiles.get(spec.name)))
        specs.append(type(spec)(spec.name, spec.dtype, shape))
        tensor.set_shape([size if isinstance(size, int) else None for size in shape or ()])
    # Without an object that owns variables, of which there are none: the function is frozen as it is.
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], tf.Module())
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.experimental_lower_to_saved_model = False  # which would name and sort inputs and outputs anew
    try:
        content = converter.convert()
    except Exception as problem:  # ConverterError, ValueError and what MLIR's passes end in
        traceback.print_exception(problem)
        raise _refusal(problem) from problem
    interpreter(content, handed.output.name, delegates=False)
    graph = parse(content, handed.output.name).subgraphs[0]
    inputs = _places(graph, [int(index) for index in graph.inputs], "input")
    return Made(
        content,
        tuple(specs),
        handed.outputs,
        (inputs, [int(index) for index in graph.outputs]),
        versions=versions_of("tensorflow", "tensorflow-cpu"),
    )


def _places(graph: Any, indices: list[int], side: str) -> list[int]:
    """The tensors in the order of the specs, by the names that the function gave them where they have survived."""
    found = {}
    for index in indices:
        match = _TENSOR.fullmatch(text(graph.tensors[index].name))
        if match is None or match["side"] != side:
            return indices
        found[int(match["at"])] = index
    return [found[at] for at in sorted(found)]


def _refusal(problem: Exception) -> VendorError:
    said = str(problem)
    refused = sorted({op.strip() for match in _REFUSED.finditer(said) for op in match["ops"].split(",") if op.strip()})
    if refused:
        told = f"LiteRT has no operator for {', '.join(refused)} of TensorFlow"
    else:
        lines = [line for line in said.splitlines() if line.strip()]
        told = f"TensorFlow's converter does not take it: {' '.join((lines or [type(problem).__name__])[0].split())}"
    return VendorError(told[:_LONG], code="DK556", target="litert", log=said.splitlines()[-20:])
