"""A node as predicates and lowerings see it: shapes, dtypes, constants and attributes, told from the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.graph.signature import constant_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

Size = int | str | None  # a number, a symbol, or nothing known


class Node:
    """Read-only facts of one ONNX node after shape inference."""

    def __init__(self, raw: ir.Node, opset: int, dims: Mapping[str, int] | None = None) -> None:
        """dims: symbols with one possible size, which count as numbers."""
        self.raw = raw
        self.opset = opset
        self.dims = dims or {}

    @property
    def name(self) -> str:
        """The node's own name."""
        return self.raw.name or ""

    @property
    def op(self) -> str:
        """Operator type."""
        return self.raw.op_type

    @property
    def input_count(self) -> int:
        """Inputs, left-out ones in the middle counted."""
        return len(self.raw.inputs)

    @property
    def used_outputs(self) -> int:
        """Outputs up to the last one that something reads or the graph returns."""
        used = [i for i, v in enumerate(self.raw.outputs) if v.name and (v.uses() or v.is_graph_output())]
        return max(used, default=0) + 1

    def has(self, position: int) -> bool:
        """Whether the optional input is given."""
        return position < len(self.raw.inputs) and self.raw.inputs[position] is not None

    def value(self, position: int) -> ir.Value:
        """The input's value; it must be given."""
        found = self.raw.inputs[position]
        if found is None:
            raise ValueError(f"{self.name} has no input {position}")
        return found

    def _sizes(self, value: ir.Value) -> tuple[Size, ...] | None:
        if value.shape is None:
            constant = constant_of(value)
            return tuple(int(size) for size in constant.shape.numpy()) if constant is not None else None
        # Some exporters write -1 for a size that is not known.
        return tuple(
            (dim if dim >= 0 else None) if isinstance(dim, int) else self.dims.get(str(dim.value), dim.value)
            for dim in value.shape.dims
        )

    def shape(self, position: int = 0) -> tuple[Size, ...] | None:
        """Sizes of an input; None when the rank is not known."""
        return self._sizes(self.value(position))

    def out_shape(self, position: int = 0) -> tuple[Size, ...] | None:
        """Sizes of an output; None when the rank is not known."""
        return self._sizes(self.raw.outputs[position])

    def rank(self, position: int = 0) -> int | None:
        """Rank of an input, when known."""
        shape = self.shape(position)
        return None if shape is None else len(shape)

    def dtype(self, position: int = 0) -> str | None:
        """Numpy dtype name of an input, when known."""
        return dtype_of(self.value(position))

    def out_dtype(self, position: int = 0) -> str | None:
        """Numpy dtype name of an output, when known."""
        return dtype_of(self.raw.outputs[position])

    def is_integer(self, position: int = 0) -> bool:
        """Whether an input holds integers."""
        return (self.dtype(position) or "").startswith(("int", "uint"))

    def constant(self, position: int) -> np.ndarray[Any, Any] | None:
        """The array of an input that the graph fixes; None for one that is computed or not given."""
        if not self.has(position):
            return None
        tensor = constant_of(self.value(position))
        return None if tensor is None else np.asarray(tensor.numpy())

    def integers(self, name: str, position: int | None = None) -> list[int] | None:
        """Integers that older revisions give as the attribute `name` and newer ones as a constant input."""
        if position is not None and self.has(position):
            values = self.constant(position)
            return None if values is None else [int(value) for value in values.reshape(-1)]
        return self.ints(name) if name in self.raw.attributes else None

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return int(self.raw.attributes.get_int(name, default))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """An integer attribute that means yes or no."""
        return bool(self.raw.attributes.get_int(name, int(default)))

    def real(self, name: str, default: float) -> float:
        """A float attribute."""
        return float(self.raw.attributes.get_float(name, default))

    def text(self, name: str, default: str = "") -> str:
        """A string attribute."""
        return str(self.raw.attributes.get_string(name, default))

    def ints(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """A list-of-integers attribute."""
        return [int(value) for value in self.raw.attributes.get_ints(name, list(default))]


def dtype_of(value: ir.Value) -> str | None:
    """Numpy dtype name of a value, "string" for text; None when it is not known."""
    kind = value.dtype
    if kind is None:
        tensor = constant_of(value)
        if tensor is None:
            return None
        kind = tensor.dtype
    if kind.name == "UNDEFINED":  # declared as nothing
        return None
    return "string" if kind.name == "STRING" else str(kind.numpy().name)
