"""A look into an `.mlpackage`, by reloading it to a MIL program (runs in the worker)."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import coremltools as ct
import numpy as np
from coremltools.converters.mil.mil import types
from google.protobuf.message import DecodeError

from deploykit import io
from deploykit.artifact import TensorSpec, read_manifest
from deploykit.converters.coreml.door import package_shapes
from deploykit.converters.coreml.images import image_shapes, images_in
from deploykit.converters.coreml.labels import Classes, classes_in
from deploykit.converters.coreml.options import metadata_in
from deploykit.errors import InvalidFileError

if TYPE_CHECKING:
    from deploykit.converters.coreml.shapes import Flexibility
    from deploykit.converters.images import ImageInput

_ARRAY_TYPES = {65568: "float32", 65552: "float16", 131104: "int32", 65600: "float64", 131080: "int8"}
_FOUR_BITS = ("int4", "uint4")
_QUANTIZED_WEIGHTS = {"constexpr_affine_dequantize", "constexpr_blockwise_shift_scale", "constexpr_lut_to_dense"}


def describe(path: str) -> dict[str, Any]:
    """Inputs, outputs, which shapes it takes, specification version, operators, and how the weights are stored.

    Raises InvalidFileError (DK528) for a folder that is no package of an ML Program.
    """
    folder = Path(path)
    opened = open_package(folder)
    facts = opened.facts
    made = read_manifest(folder)
    if made is not None:
        # The package numbers its varying sizes; the manifest knows what the model calls them.
        for kind, specs in (("inputs", made.inputs), ("outputs", made.outputs)):
            for item, spec in zip(facts[kind], specs, strict=False):
                if item["name"] == spec.name and spec.shape is not None:
                    item["shape"] = list(spec.shape)
    takes = package_shapes(opened.spec).told()
    return {"format": "coreml", **facts, **({"takes": takes} if takes else {}), "size_bytes": io.size_of(folder)}


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A package loaded again: its specification, its main function as a MIL program, and what `reload` tells of it."""

    spec: Any
    function: Any
    facts: dict[str, Any]


def open_package(package: Path) -> Opened:
    """Loads the package again. Raises InvalidFileError (DK528)."""
    from coremltools.converters.mil.frontend.milproto.load import load

    weights = package / "Data" / "com.apple.CoreML" / "weights"
    if not (package / "Manifest.json").is_file():
        raise InvalidFileError(f"{package} is no Core ML package: it has no Manifest.json", code="DK528", file=package)
    spec = open_spec(package)
    if not spec.HasField("mlProgram"):
        raise InvalidFileError(f"{package} holds no ML Program (an older neural network?)", code="DK528", file=package)
    try:
        program = load(spec, specification_version=spec.specificationVersion, file_weights_dir=str(weights))
        function = program.functions["main"]
    except (RuntimeError, ValueError, KeyError) as problem:  # weights that are cut off, a main function that is missing
        raise _damaged(package, problem) from problem
    return Opened(spec, function, _facts(spec, function))


def open_spec(package: Path) -> Any:
    """The specification of a package. Raises InvalidFileError (DK528) for one that is damaged or leads outside."""
    for place in (package, *package.rglob("*")):
        # Devices and pipes would be read without an end.
        if not (place.is_dir() or place.is_file()) or not place.resolve().is_relative_to(package.resolve()):
            text = f"{package} is no Core ML package: {place.name} is no file of its own"
            raise InvalidFileError(text, code="DK528", file=package)
    try:
        data = (package / "Data").resolve()
        items = json.loads((package / "Manifest.json").read_text(encoding="utf-8"))["itemInfoEntries"].values()
        outside = [item["path"] for item in items if not (data / item["path"]).resolve().is_relative_to(data)]
        if outside:
            raise ValueError(f"its Manifest.json leads outside: {outside[0]}")
        return ct.models.MLModel(str(package), skip_model_load=True).get_spec()
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, OSError, DecodeError) as problem:
        raise _damaged(package, problem) from problem


def _damaged(package: Path, problem: Exception) -> InvalidFileError:
    return InvalidFileError(
        f"{package} cannot be read as a Core ML package: {str(problem) or type(problem).__name__}",
        code="DK528",
        file=package,
    )


def reload(package: Path) -> dict[str, Any]:
    """Loads the package again, specification and program, and says what it holds.

    Raises InvalidFileError (DK528).
    """
    return open_package(package).facts


def _facts(spec: Any, function: Any) -> dict[str, Any]:
    shapes = {
        variable.name: _shape(variable)
        for variable in (*function.inputs.values(), *function.outputs)
        if hasattr(variable, "shape") and variable.shape is not None
    }
    images, classes = images_in(spec), classes_in(spec, function)
    operations = collections.Counter(
        operation.op_type for operation in _operations(function) if operation.op_type != "const"
    )
    return {
        "specification_version": int(spec.specificationVersion),
        "inputs": [_input(item, shapes, images) for item in spec.description.input],
        "outputs": _outputs(spec, shapes, classes),
        **_said(spec, images, classes),
        "operators": dict(sorted(operations.items())),
        "weights": _weights(function),
        "precision": _precision(function),
    }


def _input(item: Any, shapes: dict[str, list[int | str]], images: dict[str, ImageInput]) -> dict[str, Any]:
    """An image as the tensor that the model takes, which is what deploykit's commands give it."""
    if item.name not in images:
        return _described(item, shapes)
    image = images[item.name]
    return {"name": item.name, "dtype": image.dtype, "shape": list(image.unplaced(shapes[item.name]))}


def _outputs(spec: Any, shapes: dict[str, list[int | str]], classes: Classes | None) -> list[dict[str, Any]]:
    """A classifier's label and dictionary as the vector of their values."""
    found = []
    for item in spec.description.output:
        if classes is None or item.name not in (classes.label, classes.values):
            found.append(_described(item, shapes))
        elif item.name == classes.values:
            found.append(classes.spec.as_dict())
    return found


def _said(spec: Any, images: dict[str, ImageInput], classes: Classes | None) -> dict[str, Any]:
    """Images, classes and the words of the package, where it has any."""
    sizes = image_shapes(spec, images)
    found: dict[str, Any] = {}
    if images:
        found["images"] = {
            name: {
                "color": image.rule.color,
                "size": _size(image, sizes),
                "preprocess": image.rule.model_dump(mode="json", exclude_none=True, exclude={"color", "layout"}),
            }
            for name, image in images.items()
        }
    if classes is not None:
        found["classifier"] = {
            "label": classes.label,
            "values": classes.values,
            "output": classes.output,
            "classes": len(classes.labels),
            "first": list(classes.labels[:5]),
        }
    words = metadata_in(spec)
    return found | ({"metadata": words} if words else {})


def _size(image: ImageInput, sizes: Flexibility) -> str:
    """Height and width of an image, or what they may be: `224 x 224`, `64..512 x 64..512`, `64 x 64, 128 x 128`."""
    if image.name in sizes.ranges:
        return " x ".join(
            str(low) if low == high else f"{low}..{high}" for low, high in image.placed(sizes.ranges[image.name])[2:]
        )
    listed = sizes.shapes.get(image.name, (sizes.usual[image.name],))
    return ", ".join(" x ".join(map(str, image.placed(shape)[2:])) for shape in listed)


def interface_of(facts: dict[str, Any] | Any, kind: str) -> list[TensorSpec]:
    """The tensors of `reload`'s "inputs" or "outputs"."""
    return [TensorSpec.from_dict({key: item[key] for key in ("name", "dtype", "shape")}) for item in facts[kind]]


def _operations(block: Any) -> Any:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _operations(inner)


def _shape(variable: Any) -> list[int | str]:
    return [int(size) if isinstance(size, (int, np.integer)) else str(size) for size in variable.shape]


def _described(item: Any, shapes: dict[str, list[int | str]]) -> dict[str, Any]:
    """Name, type, shape with varying sizes as symbols, and their bounds."""
    array = item.type.multiArrayType
    ranges = [[int(r.lowerBound), int(r.upperBound)] for r in array.shapeRange.sizeRanges]
    found: dict[str, Any] = {
        "name": item.name,
        "dtype": _ARRAY_TYPES.get(array.dataType, str(array.dataType)),
        "shape": shapes.get(item.name, [int(size) for size in array.shape]),
    }
    if ranges:
        found["bounds"] = ranges
    if array.enumeratedShapes.shapes:
        found["shapes"] = [[int(size) for size in shape.shape] for shape in array.enumeratedShapes.shapes]
    return found


def _constants(function: Any) -> list[Any]:
    """Arrays that the program stores."""
    return [
        operation.outputs[0].val
        for operation in _operations(function)
        if operation.op_type == "const" and isinstance(operation.outputs[0].val, np.ndarray)
    ]


def _weights(function: Any) -> dict[str, Any]:
    """Bytes of stored arrays by dtype, and the share that is in 8 bits or fewer."""
    sizes: collections.Counter[str] = collections.Counter()
    for operation in _operations(function):
        if operation.op_type != "const" or not isinstance(operation.outputs[0].val, np.ndarray):
            continue
        array, kind = operation.outputs[0].val, types.builtin_to_string(operation.outputs[0].dtype)
        # coremltools holds two values of 4 bits in two bytes.
        sizes[kind if kind in _FOUR_BITS else str(array.dtype)] += -(
            -int(array.nbytes) // (2 if kind in _FOUR_BITS else 1)
        )
    total = sum(sizes.values())
    small = sum(size for kind, size in sizes.items() if kind in ("int8", "uint8", *_FOUR_BITS))
    return {
        "bytes": total,
        "bytes_by_dtype": dict(sorted(sizes.items())),
        "int8_share": small / total if total else 0.0,
    }


def _precision(function: Any) -> str:
    """As `quantize` names it, from types and operators."""
    kinds = {operation.op_type for operation in _operations(function)}
    if "quantize" in kinds:
        return "int8"
    if kinds & _QUANTIZED_WEIGHTS:
        return "int4-weights" if _has_four_bits(function) else "int8-weights"
    floats = {str(array.dtype) for array in _constants(function) if array.dtype.kind == "f" and array.size > 1}
    if floats == {"float16"}:
        return "fp16"
    return "mixed" if "float16" in floats else "fp32"


def _has_four_bits(function: Any) -> bool:
    return any(
        types.builtin_to_string(operation.data.dtype) in _FOUR_BITS
        for operation in _operations(function)
        if operation.op_type == "constexpr_blockwise_shift_scale"
    )
