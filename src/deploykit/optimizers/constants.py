"""Constants of a model: which values are constant, and how a pass adds one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]

# Before this version of the file format every initializer had to be an input, too, and was a constant none the less.
_INPUTS_ARE_DEFAULTS = 4
_NAMED: dict[str, Callable[[ir.Attr], Array]] = {
    "value_float": lambda given: np.array(given.as_float(), np.float32),
    "value_floats": lambda given: np.array(given.as_floats(), np.float32),
    "value_int": lambda given: np.array(given.as_int(), np.int64),
    "value_ints": lambda given: np.array(given.as_ints(), np.int64),
}


# Of two numbers that cancel so far nothing is left but rounding, by bytes of the type.
_CANCELLED = {2: 2.0**-9, 4: 2.0**-15, 8: 2.0**-44}


# What adding and subtracting a number does to others by rounding, and nobody notices.
_UNSEEN = 1e-4


def cancels(a: Array, b: Array, dtype: Any) -> bool:
    """Whether some sum of large numbers is nothing beside them: x + 2^23 - 2^23 is how x is rounded to integers."""
    largest = np.maximum(np.abs(a), np.abs(b))
    rounds = largest * float(np.finfo(dtype).eps) > _UNSEEN
    return bool((rounds & (np.abs(a + b) < largest * _CANCELLED[np.dtype(dtype).itemsize])).any())


def vanishes(a: Array, b: Array, dtype: Any) -> bool:
    """Whether some product of the two is too small for the type, though neither is zero."""
    product = np.abs(a * b)
    return bool(((product < float(np.finfo(dtype).tiny)) & (a != 0) & (b != 0)).any())


class Constants:
    """The constants of one model.

    An initializer that is also a graph input is a default that a caller may replace, so it is no constant (in files of
    IR version 3, where it had to be both, it is one).
    """

    def __init__(self, model: ir.Model) -> None:
        """Reads nothing yet."""
        self._defaults = model.ir_version >= _INPUTS_ARE_DEFAULTS
        self._taken: set[str] | None = None
        self._model = model

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The tensor of an initializer or a Constant node; None for what is computed or may be replaced."""
        if value is None:
            return None
        producer = value.producer()
        if producer is None:
            return None if self._defaults and value.is_graph_input() else value.const_value
        if producer.op_type != "Constant" or producer.domain not in ("", "ai.onnx"):
            return None
        for name, given in producer.attributes.items():
            if given.is_ref():
                return None
            if name == "value":
                # Not as_tensor(): its check of a protocol takes longer than everything else here together.
                return given.value if given.type == ir.AttributeType.TENSOR else None
            if name in _NAMED:
                return ir.Tensor(_NAMED[name](given))
        return None

    def array(self, value: ir.Value | None, largest: int | None = None) -> Array | None:
        """The values of a constant; None also when it has more than `largest` elements."""
        found = self.tensor(value)
        if found is None or (largest is not None and found.size > largest):
            return None
        return found.numpy()

    def integers(self, value: ir.Value | None, largest: int = 64) -> list[int] | None:
        """The values of a short integer constant, flattened."""
        found = self.array(value, largest)
        return None if found is None or found.dtype.kind not in "iu" else [int(item) for item in found.ravel()]

    def add(self, node: ir.Node, array: Array, stem: str) -> ir.Value:
        """A new constant that the node can read: an initializer of its graph, named after `stem`.

        In files of IR version 3 it is a Constant node: an initializer would have to be an input.
        """
        owner = node.graph
        if owner is None:
            raise ValueError(f"{node.name} is in no graph")
        name = self._unique(stem)
        tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
        if not self._defaults or isinstance(owner, ir.Function):
            made = ir.node("Constant", [], {"value": ir.AttrTensor("value", tensor)}, name=name)
            owner.insert_before(node, made)
            value = made.outputs[0]
            value.name = name
        else:
            value = ir.Value(name=name, const_value=tensor)
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        if value.producer() is None and isinstance(owner, ir.Graph):
            owner.register_initializer(value)
        return value

    def _unique(self, stem: str) -> str:
        if self._taken is None:
            self._taken = set()
            for scope in self._model.graphs():
                self._taken.update(value.name for value in scope.inputs if value.name)
                self._taken.update(scope.initializers)
                self._taken.update(value.name for node in scope for value in node.outputs if value.name)
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name
