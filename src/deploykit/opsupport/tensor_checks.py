"""Conditions on a node's inputs and outputs, one function for each check of the operator tables.

A dimension with a name is dynamic for certain; one without a name or number could not be worked out.
"""

from __future__ import annotations

import functools
import shlex
from typing import TYPE_CHECKING, Any

from deploykit.opsupport.outcome import (
    FIX,
    HOLDS,
    SIMPLIFY,
    Outcome,
    broken,
    given,
    label,
    listed,
    untold,
    worst,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from deploykit.opsupport.facts import NodeFacts, TensorFacts

    Machine = Mapping[str, Any]
    Place = tuple[str, TensorFacts]

_TO_CONSTANT = "compute it in the source from constants alone, and export the model again"
_TO_SHAPE = "declare its shape where the model is exported"


def table_dtype(dtype: str) -> str | None:
    """A dtype of `TensorFacts` as the operator tables write it; None when it is unknown."""
    if dtype.startswith("sequence"):
        return "seq"
    if dtype.startswith("optional"):
        return "optional"
    plain = dtype.replace("_", "")
    named = {"unknown": None, "float4e2m1fn": "float4e2m1", "float8e8m0fnu": "float8e8m0"}
    return named.get(plain, plain)


def _places(machine: Machine, node: NodeFacts) -> Iterator[Place]:
    """The tensors that a condition is about, as sentences name them; none for an input that is left out.

    `"*"` stands for every tensor: inputs, and outputs unless the condition's subject leaves them out.
    """
    if machine.get("input") == "*":
        yield from ((label(at, tensor), tensor) for at, tensor in enumerate(node.inputs) if tensor is not None)
        if machine.get("inputs_only"):
            return
        yield from (
            (label(at, tensor, "output"), tensor) for at, tensor in enumerate(node.outputs) if tensor is not None
        )
        return
    role = "input" if "input" in machine else "output"
    at = machine[role]
    tensors = node.inputs if role == "input" else node.outputs
    if at < len(tensors) and (tensor := tensors[at]) is not None:
        yield label(at, tensor, role), tensor


def _each(check: Callable[[str, TensorFacts, Machine, NodeFacts], Outcome]) -> Callable[[Machine, NodeFacts], Outcome]:
    """A check of each tensor that the condition is about; what is left out fulfils it."""

    @functools.wraps(check)
    def checked(machine: Machine, node: NodeFacts) -> Outcome:
        return worst(check(place, tensor, machine, node) for place, tensor in _places(machine, node))

    return checked


def _ranked(accepts: Callable[[int, Machine], bool], told: Callable[[Machine], str]) -> Callable[..., Outcome]:
    def checked(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
        if tensor.rank is None:
            return untold(f"the rank of {place} is unknown, and {told(machine)} is taken", _TO_SHAPE)
        if accepts(tensor.rank, machine):
            return HOLDS
        return broken(
            f"{place} has rank {tensor.rank}, {told(machine)} is taken",
            f"{FIX} reshapes where it can; otherwise put a Reshape before and after the node",
        )

    return _each(checked)


def _static_rank(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
    return HOLDS if tensor.rank is not None else untold(f"the rank of {place} is unknown", _TO_SHAPE)


def fix_sizes(node: NodeFacts, names: Collection[str] = ()) -> str:
    """The command that fixes dynamic dimensions: those names where the model's inputs have them all, otherwise all."""
    asked = [name for name in dict.fromkeys(names) if name in node.symbols]
    chosen = asked if asked and len(asked) == len(set(names)) else node.symbols
    if not chosen:
        return f"{SIMPLIFY} --dim NAME=SIZE for each dynamic dimension of the inputs"
    dims = " ".join(f"--dim {shlex.quote(f'{name}=1')}" for name in chosen)
    return f"{SIMPLIFY} {dims} (1 stands for the size that will be used)"


def _static(place: str, dims: Mapping[int, int | str | None], node: NodeFacts) -> Outcome:
    """Whether the dimensions, by axis, are numbers."""
    named = {axis: dim for axis, dim in dims.items() if isinstance(dim, str)}
    if named:
        said = ", ".join(f"axis {axis} is {name!r}" for axis, name in named.items())
        told = f"{place} has dynamic dimensions ({said}), fixed ones are taken"
        # Where others have no name, all of the inputs may have to do with them.
        return broken(told, fix_sizes(node, list(named.values()) if None not in dims.values() else ()))
    if None in dims.values():
        return untold(f"{place} has dimensions whose size is unknown, fixed ones are taken", fix_sizes(node))
    return HOLDS


def _static_shape(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
    if tensor.shape is None:
        return untold(f"the shape of {place} is unknown, a fixed one is taken", _TO_SHAPE)
    return _static(place, dict(enumerate(tensor.shape)), node)


def _axis_of(axis: int, rank: int) -> int | None:
    real = axis + rank if axis < 0 else axis
    return real if 0 <= real < rank else None


def _static_dim(machine: Machine, node: NodeFacts) -> Outcome:
    axis = machine.get("axis")
    if axis is None:
        axis = node.attributes.get(machine["axis_attr"], machine["axis_default"])
    for place, tensor in _places(machine, node):
        if axis is None or tensor.shape is None:
            return untold(f"the size of {place} along its axis is unknown, a fixed one is taken", _TO_SHAPE)
        at = _axis_of(axis, len(tensor.shape))
        if at is not None:
            return _static(place, {at: tensor.shape[at]}, node)
    return HOLDS


def _dim_max(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
    if machine.get("of") == "value":
        return _value_max(place, tensor, machine["max"])
    most = machine["max"]
    if tensor.shape is None:
        return untold(f"the shape of {place} is unknown, and sizes up to {most} are taken", _TO_SHAPE)
    at = None if machine["axis"] == "*" else _axis_of(machine["axis"], len(tensor.shape))
    sizes = tensor.shape if machine["axis"] == "*" else tensor.shape[at : at + 1] if at is not None else ()
    large = [size for size in sizes if isinstance(size, int) and size > most]
    if large:
        return broken(
            f"{place} has a dimension of {large[0]}, at most {most} is taken", "split the tensor, or the layer"
        )
    if machine["axis"] != "*" and not all(isinstance(size, int) for size in sizes):
        return untold(f"{place} has a dimension of unknown size, at most {most} is taken", _TO_SHAPE)
    return HOLDS


def _value_max(place: str, tensor: TensorFacts, most: float) -> Outcome:
    value = tensor.value
    if value is None:
        return untold(f"{place} is computed when the model runs, at most {most} is taken", _TO_CONSTANT)
    if value.size and value.max() > most:
        return broken(f"{place} is {value.max()}, at most {most} is taken", f"export the model with at most {most}")
    return HOLDS


def _dim_equals(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
    axis, wanted = machine["axis"], machine["value"]
    at = None if tensor.shape is None else _axis_of(axis, len(tensor.shape))
    size = None if at is None or tensor.shape is None else tensor.shape[at]
    if size == wanted or (tensor.shape is not None and at is None):
        return HOLDS
    if isinstance(size, int):
        return broken(f"{place} has {size} at axis {axis}, only {wanted} is taken", f"export the model with {wanted}")
    if size is None:
        return untold(f"the size of {place} at axis {axis} is unknown, only {wanted} is taken", _TO_SHAPE)
    return untold(
        f"{place} has the dynamic dimension {size!r} at axis {axis}, only {wanted} is taken",
        f"{SIMPLIFY} --dim {size}={wanted}",
    )


def to_dtype(dtype: str) -> str:
    """What to do about a tensor of a dtype that is not taken."""
    if dtype == "float64":
        return f"{FIX} computes in float32 instead"
    if dtype in ("float16", "bfloat16"):
        return "use the float32 model; deploykit quantize makes other precisions of it"
    if dtype in ("uint8", "int8", "int16", "uint16"):
        return f"{FIX} writes the quantized form that is taken, where there is one"
    return f"put a Cast before the node; {FIX} does where the values allow"


def _dtype_in(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
    dtype = table_dtype(tensor.dtype)
    if dtype is None:
        return untold(f"the type of {place} is unknown, {listed(machine['dtypes'])} is taken", _TO_SHAPE)
    if dtype in machine["dtypes"]:
        return HOLDS
    return broken(f"{place} is {dtype}, not {listed(machine['dtypes'])}", to_dtype(dtype))


def _dtype_same(machine: Machine, node: NodeFacts) -> Outcome:
    found = {at: table_dtype(tensor.dtype) for at in machine["inputs"] if (tensor := given(node, at)) is not None}
    known = {dtype for dtype in found.values() if dtype is not None}
    if len(known) > 1:
        said = ", ".join(f"input {at} is {dtype}" for at, dtype in found.items())
        return broken(f"{said}: they have to be the same", "put a Cast before the node")
    if None in found.values():
        return untold("the types of the inputs are unknown: they have to be the same", _TO_SHAPE)
    return HOLDS


def _initializer(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
    if tensor.constant or (machine.get("constant_expr_ok") and tensor.foldable):
        return HOLDS
    if tensor.foldable and tensor.producer == "DequantizeLinear":
        # Engines that know Q/DQ take the constant behind it; whether this one does is not in the condition.
        return untold(f"{place} is a constant in quantized form, a constant is taken", "convert the model to find out")
    if tensor.foldable:
        return broken(f"{place} is computed from constants, a constant itself is taken", f"{SIMPLIFY} computes it")
    if tensor.sized:
        return broken(
            f"{place} is not a constant: it follows from dynamic dimensions", f"{fix_sizes(node)} makes it one"
        )
    return broken(f"{place} is not a constant", _TO_CONSTANT)


def _zero_points(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
    if tensor.value is None:
        return untold(f"{place} is computed when the model runs, only zeros are taken", _TO_CONSTANT)
    if not tensor.value.any():
        return HOLDS
    return broken(
        f"{place} is not zero: only symmetric quantization is taken",
        f"{FIX}, or deploykit quantize MODEL -o OUT --precision int8 --calib DATA --target TARGET",
    )


def _value_in(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
    if tensor.value is None:
        return untold(f"{place} is not a constant, {listed(machine['values'])} is taken", _TO_CONSTANT)
    odd = [item for item in tensor.value.ravel().tolist() if item not in machine["values"]]
    if not odd:
        return HOLDS
    return broken(f"{place} is {odd[0]}, {listed(machine['values'])} is taken", f"{FIX}, or export with another value")


def _value_none_equal(place: str, tensor: TensorFacts, machine: Machine, node: NodeFacts) -> Outcome:
    if tensor.value is None:
        return untold(f"{place} is not a constant, and may have {machine['value']} in it", _TO_CONSTANT)
    if not (tensor.value == machine["value"]).any():
        return HOLDS
    return broken(f"{place} has {machine['value']} in it, which is not taken", f"{FIX}, or export with other values")


def _inputs_absent(machine: Machine, node: NodeFacts) -> Outcome:
    return worst(
        broken(f"{label(at, tensor)} is given, which is not taken", f"{FIX}, or export the model without it")
        for at in machine["inputs"]
        if (tensor := given(node, at)) is not None
    )


def _outputs_absent(machine: Machine, node: NodeFacts) -> Outcome:
    return worst(
        broken(f"{label(at, output, 'output')} is used, which is not taken", "use the first output alone")
        for at in machine["outputs"]
        if at < len(node.outputs) and (output := node.outputs[at]) is not None and output.used
    )


def _counted(accepts: Callable[[int, Machine], bool], told: Callable[[Machine], str]) -> Callable[..., Outcome]:
    def checked(machine: Machine, node: NodeFacts) -> Outcome:
        count = sum(1 for tensor in node.inputs if tensor is not None)
        if accepts(count, machine):
            return HOLDS
        return broken(
            f"the node has {count} input{'' if count == 1 else 's'}, {told(machine)} are taken",
            f"{FIX}, or chain nodes of two inputs",
        )

    return checked


TENSOR_CHECKS: dict[str, Callable[[Machine, NodeFacts], Outcome]] = {
    "rank_in": _ranked(lambda rank, m: rank in m["ranks"], lambda m: f"only {listed(m['ranks'])}"),
    "rank_min": _ranked(lambda rank, m: rank >= m["min"], lambda m: f"at least {m['min']}"),
    "rank_max": _ranked(lambda rank, m: rank <= m["max"], lambda m: f"at most {m['max']}"),
    "static_rank": _each(_static_rank),
    "static_shape": _each(_static_shape),
    "static_dim": _static_dim,
    "dim_max": _each(_dim_max),
    "dim_equals": _each(_dim_equals),
    "dtype_in": _each(_dtype_in),
    "dtype_same": _dtype_same,
    "input_is_initializer": _each(_initializer),
    "zero_point_zero": _each(_zero_points),
    "value_in": _each(_value_in),
    "value_none_equal": _each(_value_none_equal),
    "input_absent": _inputs_absent,
    "output_absent": _outputs_absent,
    "input_count_in": _counted(lambda count, m: count in m["counts"], lambda m: listed(m["counts"])),
    "input_count_min": _counted(lambda count, m: count >= m["min"], lambda m: f"at least {m['min']}"),
    "input_count_max": _counted(lambda count, m: count <= m["max"], lambda m: f"at most {m['max']}"),
}
