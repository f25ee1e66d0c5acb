"""What OpenVINO's front-ends of frameworks have in common: the interface given to the model, and the IR of it.

The framework is imported here beside OpenVINO, so this runs in the worker of a direct route only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import warnings
from typing import TYPE_CHECKING, Any

from deploykit.converters.bounds import bounds_of_input, fixed_by
from deploykit.converters.openvino.interface import dtype_name, versioned
from deploykit.converters.openvino.options import settings_of
from deploykit.converters.openvino.preprocessing import doors_for
from deploykit.converters.openvino.writing import write_ir
from deploykit.errors import DeploykitError, VendorError
from deploykit.route import hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import openvino as ov

    from deploykit.artifact import TensorSpec
    from deploykit.route import Handed

    Front = Callable[[], ov.Model]  # `ov.convert_model` of the program

# Found and imported by the front-ends for what is not done here; the first one sends reports.
HIDDEN = ("openvino_telemetry", "nncf")
_LONG = 600


def write_program(handed: Handed, front: Front) -> dict[str, Any]:
    """Writes the IR at `handed.output` and compares its interface with the specs; a `Product` as JSON.

    front: calls OpenVINO's front-end. Raises VendorError (DK556) with its reason, UsageError (DK527) for a bad option.
    """
    import openvino as ov

    settings = settings_of(handed.options, calibrated=False)
    limits = [bounds_of_input(spec, handed.dims, handed.profiles.get(spec.name)) for spec in handed.inputs]
    inputs = tuple(
        dataclasses.replace(spec, shape=fixed_by(spec, shape))
        for spec, shape in zip(handed.inputs, limits, strict=True)
    )
    doors = doors_for(settings, inputs, handed.outputs, None)
    with _front_ends_turn():
        ports = [
            (_partial(spec, bounds), getattr(ov.Type, _KINDS.get(spec.dtype, spec.dtype)))
            for spec, bounds in zip(inputs, limits, strict=True)
        ]
        model = front()
        _name(model, ports, inputs, handed.outputs)
    _expect_types(model, inputs, handed.outputs)
    names = {spec.name for spec in (*inputs, *handed.outputs)}
    return write_ir(model, inputs, handed.outputs, handed.output, settings, doors, None, names, ov.Core())


_KINDS = {"float32": "f32", "float16": "f16", "float64": "f64", "bfloat16": "bf16", "bool": "boolean"}
_KINDS |= {f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)} | {f"uint{bits}": f"u{bits}" for bits in (8, 16, 32)}


def _partial(spec: TensorSpec, bounds: Sequence[Any]) -> ov.PartialShape:
    import openvino as ov

    if spec.shape is None:
        return ov.PartialShape.dynamic()
    sizes = []
    for size, bound in zip(spec.shape, bounds, strict=True):
        if isinstance(size, int):
            sizes.append(ov.Dimension(size))
        else:
            low, high = bound or (0, None)
            sizes.append(ov.Dimension(low, -1 if high is None else high))
    return ov.PartialShape(sizes)


def _name(
    model: ov.Model,
    ports: Sequence[tuple[ov.PartialShape, ov.Type]],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> None:
    """Gives the model's inputs and outputs shapes, types and names of the specs, by position."""
    if len(model.inputs) != len(inputs) or len(model.outputs) != len(outputs):
        raise VendorError(
            f"OpenVINO {versioned()} makes {len(model.inputs)} inputs and {len(model.outputs)} outputs of the "
            f"program's {len(inputs)} and {len(outputs)}",
            code="DK556",
        )
    parameters = model.get_parameters()
    for parameter, (shape, kind) in zip(parameters, ports, strict=True):
        if parameter.get_element_type().is_dynamic():
            parameter.set_element_type(kind)
        parameter.set_partial_shape(shape)
    model.validate_nodes_and_infer_types()
    for port, spec in zip((*model.inputs, *model.outputs), (*inputs, *outputs), strict=True):
        port.get_tensor().set_names({spec.name})


def _expect_types(model: ov.Model, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    for port, spec in zip((*model.inputs, *model.outputs), (*inputs, *outputs), strict=True):
        made = dtype_name(port.get_element_type())
        if made != spec.dtype:
            raise VendorError(f"{spec.name!r} is {spec.dtype} in the source and {made} in OpenVINO", code="DK556")


def _report_nothing() -> None:
    """Gives `ov.convert_model` its own stand-in for telemetry, which it otherwise sends unless somebody opted out."""
    from openvino.tools.ovc import convert_impl, telemetry_stub, telemetry_utils

    convert_impl.tm = telemetry_utils.tm = telemetry_stub


@contextlib.contextmanager
def _front_ends_turn() -> Any:
    """Turns what a front-end raises into VendorError (DK556); its prints and warnings are kept out of the log."""
    try:
        with hidden(HIDDEN), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            _report_nothing()
            yield
    except DeploykitError:
        raise
    except Exception as problem:  # front-ends raise anything
        lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
        told = [line for line in lines if not line.startswith(("Exception from", "Check '"))] or lines
        why = " ".join(told)[:_LONG]
        raise VendorError(
            f"OpenVINO {versioned()} does not take it: {why}", code="DK556", target="openvino", log=lines[-20:]
        ) from problem
