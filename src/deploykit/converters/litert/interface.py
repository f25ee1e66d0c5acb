"""Inputs and outputs of a LiteRT model under their public names, and the doors to what the file has instead.

A file that was made here keeps the model's own names, symbols and layouts in its metadata; commands keep taking and
giving what the model does, and a door turns it into what the file takes.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.converters.litert.flatbuffer import dtype_name, metadata_of, set_metadata, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Array = np.ndarray[Any, Any]

METADATA = "deploykit"
AXES = "|axes="  # behind a tensor: by which axes it comes into the model's order


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the file's main graph.

    tensor: index in the graph. name: public. shape: sizes, with symbols where they vary. scale, zero_point: of integers
    that stand for real numbers, scale 0 for none.
    """

    tensor: int
    name: str
    dtype: str
    shape: tuple[int | str, ...]
    scale: float = 0.0
    zero_point: int = 0

    @property
    def spec(self) -> TensorSpec:
        """As a spec."""
        return TensorSpec(self.name, self.dtype, self.shape)


@dataclasses.dataclass(frozen=True, slots=True)
class Door:
    """One input or output whose form in the file is not the model's.

    spec: the model's tensor. permutation: from the model's axes to the file's; () where they are the same.
    A dtype that differs is a cast, or a quantization by the file's own scale.
    """

    spec: TensorSpec
    permutation: tuple[int, ...] = ()

    def given(self, tensor: Array, port: Port) -> Array:
        """What the file takes for the model's tensor."""
        array = tensor.transpose(self.permutation) if self.permutation else tensor
        return np.ascontiguousarray(array if str(array.dtype) == port.dtype else _narrowed(array, port))

    def taken(self, array: Array, port: Port) -> Array:
        """The model's tensor for what the file gives."""
        values: Array = array
        if port.scale and self.spec.dtype.startswith("float") and array.dtype.kind in "iu":
            values = (array.astype(np.float32) - np.float32(port.zero_point)) * np.float32(port.scale)
        values = values.astype(self.spec.dtype) if str(values.dtype) != self.spec.dtype else values
        if self.permutation:
            values = values.transpose(np.argsort(self.permutation))
        return np.ascontiguousarray(values)

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"spec": self.spec.as_dict(), "permutation": list(self.permutation)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Door:
        """The door that `as_dict` wrote. Raises ValueError, KeyError or TypeError for something else."""
        spec = TensorSpec.from_dict(facts["spec"])
        order = tuple(int(axis) for axis in facts.get("permutation") or ())
        if order and sorted(order) != list(range(len(order))):
            raise ValueError("no permutation")
        return cls(spec, order)


def _narrowed(array: Array, port: Port) -> Array:
    """The array in the file's dtype: quantized by its scale where it has one (round half to even, saturated)."""
    if port.scale and array.dtype.kind == "f":
        limits = np.iinfo(port.dtype)
        levels = np.rint(array.astype(np.float32) / np.float32(port.scale)) + port.zero_point
        clipped: Array = np.clip(levels, limits.min, limits.max).astype(port.dtype)
        return clipped
    return array.astype(port.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Interface:
    """The main graph's inputs and outputs, in its order, and the doors by public name."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    doors: Mapping[str, Door]

    def specs(self, ports: Sequence[Port]) -> tuple[TensorSpec, ...]:
        """The ports as the model has them."""
        return tuple(self.doors[port.name].spec if port.name in self.doors else port.spec for port in ports)


def interface_of(model: Any) -> Interface:
    """The main graph's interface: names of its signature, otherwise of its tensors."""
    graph = model.subgraphs[0]
    known = _remembered(model)
    signature = next((one for one in model.signatureDefs or [] if one.subgraphIndex == 0), None)
    sides: list[tuple[Port, ...]] = []
    for kind, indices, pairs in (
        ("input", list(graph.inputs), signature.inputs if signature else None),
        ("output", list(graph.outputs), signature.outputs if signature else None),
    ):
        before = known.get(f"{kind}s") or {}
        named = _named(graph, kind, [int(index) for index in indices], pairs or [])
        sides.append(tuple(_port(graph.tensors[index], index, name, before.get(name)) for name, index in named))
    inputs, outputs = (
        _ordered(ports, known.get(kind)) for ports, kind in zip(sides, ("inputs", "outputs"), strict=True)
    )
    doors = {name: door for name, door in known.get("doors", {}).items() if _fits(name, door, (*inputs, *outputs))}
    return Interface(inputs, outputs, doors)


def traced_names(model: Any) -> dict[str, str]:
    """The index of the main graph's tensor, and axes behind it, by the name of the model's tensor of these values."""
    facts = _remembered(model).get("names", {})
    return facts if isinstance(facts, dict) else {}


def remember(
    model: Any,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    doors: Mapping[str, Door] | None = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Writes the model's own specs, in order, its doors, and names of inner tensors into the file's metadata."""
    facts: dict[str, Any] = {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "doors": {name: door.as_dict() for name, door in sorted((doors or {}).items())},
        **({"names": dict(sorted(names.items()))} if names else {}),
    }
    set_metadata(model, METADATA, json.dumps(facts, sort_keys=True).encode())


def _remembered(model: Any) -> dict[str, Any]:
    data = metadata_of(model, METADATA)
    if not data:
        return {}
    try:
        facts = json.loads(data)
        return {
            **{
                kind: {spec["name"]: TensorSpec.from_dict(spec) for spec in facts[kind]}
                for kind in ("inputs", "outputs")
            },
            "doors": {name: Door.from_dict(door) for name, door in facts.get("doors", {}).items()},
            "names": {str(name): str(own) for name, own in facts.get("names", {}).items()},
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # somebody else's metadata under our name


def _fits(name: str, door: Door, ports: Sequence[Port]) -> bool:
    port = next((port for port in ports if port.name == name), None)
    return port is not None and (not door.permutation or len(door.permutation) == len(port.shape))


def _ordered(ports: tuple[Port, ...], known: Mapping[str, TensorSpec] | None) -> tuple[Port, ...]:
    """In the order that the model has; converters sort by name."""
    places = {name: place for place, name in enumerate(known or ())}
    return tuple(sorted(ports, key=lambda port: places.get(port.name, len(places))))


def _named(graph: Any, kind: str, indices: list[int], pairs: Sequence[Any]) -> list[tuple[str, int]]:
    """Public name and tensor of each input or output; a tensor that is two outputs has two names in the signature."""
    called: dict[int, list[str]] = {}
    for pair in pairs:
        called.setdefault(int(pair.tensorIndex), []).append(text(pair.name))
    found: list[tuple[str, int]] = []
    seen: set[str] = set()
    for place, index in enumerate(indices):
        names = called.get(index) or [text(graph.tensors[index].name) or f"{kind}_{place}"]
        name = next((name for name in names if name not in seen), f"{names[0]}_{place}")
        seen.add(name)
        found.append((name, index))
    # A signature may name one output of the graph twice.
    found += [
        (name, index) for index, names in called.items() if index in indices for name in names if name not in seen
    ]
    return found


def _port(tensor: Any, index: int, name: str, before: TensorSpec | None) -> Port:
    sizes = [int(size) for size in (tensor.shape if tensor.shape is not None else [])]
    varying = [int(size) for size in (tensor.shapeSignature if tensor.shapeSignature is not None else [])] or sizes
    symbols = before.shape if before is not None and len(before.shape or ()) == len(varying) else None
    shape = tuple(
        size if size >= 0 else symbol if isinstance(symbol, str) else f"{name}_{axis}"
        for axis, (size, symbol) in enumerate(zip(varying, symbols or (None,) * len(varying), strict=True))
    )
    scale, zero_point = quantization_of(tensor)
    return Port(int(index), name, dtype_name(tensor.type), shape, scale, zero_point)


def quantization_of(tensor: Any) -> tuple[float, int]:
    """Scale and zero point of a tensor with one of each; (0, 0) of others."""
    rule = tensor.quantization
    scales = [] if rule is None or rule.scale is None else list(rule.scale)
    points = [] if rule is None or rule.zeroPoint is None else list(rule.zeroPoint)
    return (float(scales[0]), int(points[0]) if points else 0) if len(scales) == 1 else (0.0, 0)
