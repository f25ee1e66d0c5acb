"""The inputs and outputs of an OpenVINO model under their ONNX names, and what its element types are called."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deploykit.artifact import TensorSpec
from deploykit.converters.openvino.doors import doors_of, outside

if TYPE_CHECKING:
    from collections.abc import Iterable

    import openvino as ov

# Where the converter keeps the ONNX names and symbolic dimensions. A tensor that is two outputs, or an input that is an
# output, has a set of names in the IR, and which belongs to which place is lost; symbols are not kept at all.
RT_INFO = "deploykit"
_DTYPES = {
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "boolean": "bool",
    "string": "string",
    **{f"i{bits}": f"int{bits}" for bits in (4, 8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (1, 4, 8, 16, 32, 64)},
}


def versioned() -> str:
    """OpenVINO's version without its build number: `2026.4.1`."""
    import openvino as ov

    return str(ov.get_version()).partition("-")[0]


def dtype_name(kind: ov.Type) -> str:
    """Numpy's name of an OpenVINO element type; OpenVINO's own where numpy has none."""
    name = str(kind.get_type_name())
    return _DTYPES.get(name, name)


def interface(model: ov.Model) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs in the model's order, named and formed as in the ONNX file it came from."""
    doors = doors_of(model)
    found = _specs(model, "inputs", model.inputs), _specs(model, "outputs", model.outputs)
    return outside(found[0], doors), outside(found[1], doors)


def remember(model: ov.Model, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> None:
    """Writes the ONNX specs of all inputs and outputs, in order, into the model's own metadata."""
    for kind, specs in (("inputs", inputs), ("outputs", outputs)):
        model.set_rt_info(json.dumps([spec.as_dict() for spec in specs]), [RT_INFO, kind])


def _specs(model: ov.Model, kind: str, ports: list[ov.Output]) -> tuple[TensorSpec, ...]:
    known = _remembered(model, kind)
    specs = []
    for index, port in enumerate(ports):
        before = known[index] if len(known) == len(ports) else None
        name = before.name if before else _own_name(port, f"{kind[:-1]}_{index}")
        shape = _shape(name, port.get_partial_shape(), before.shape if before else None)
        specs.append(TensorSpec(name, dtype_name(port.get_element_type()), shape))
    return tuple(specs)


def _remembered(model: ov.Model, kind: str) -> list[TensorSpec]:
    path = [RT_INFO, kind]
    if not model.has_rt_info(path):
        return []
    try:
        return [TensorSpec.from_dict(facts) for facts in json.loads(str(model.get_rt_info(path).astype(str)))]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []  # somebody else's metadata under our name


def _own_name(port: ov.Output, otherwise: str) -> str:
    names = sorted(port.get_names())
    return names[0] if names else otherwise


def _shape(name: str, shape: ov.PartialShape, before: tuple[int | str, ...] | None) -> tuple[int | str, ...] | None:
    if shape.rank.is_dynamic:
        return None
    sizes = list(shape)
    symbols = before if before is not None and len(before) == len(sizes) else ("",) * len(sizes)
    return tuple(
        size.get_length() if size.is_static else symbol if isinstance(symbol, str) and symbol else f"{name}_{axis}"
        for axis, (size, symbol) in enumerate(zip(sizes, symbols, strict=True))
    )
