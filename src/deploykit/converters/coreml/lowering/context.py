"""What lowerings are written with: the registry of rules, and the node with its MIL variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.node import Node, Size
from deploykit.converters.coreml.ranks import MOST, Wide
from deploykit.opsupport.registry import Registry
from deploykit.opsupport.verdict import Verdict, unsupported

if TYPE_CHECKING:
    import onnx_ir as ir

# None stands for an output that the node leaves out.
Lowering = Callable[["OpContext"], Var | tuple[Var | None, ...]]
REGISTRY: Registry[Lowering] = Registry()
lowers = REGISTRY.lowers

INT32 = np.iinfo(np.int32)


class Refused(Exception):  # noqa: N818 - it is a verdict on its way up, not a fault
    """A lowering found that it cannot express the node; carries the verdict."""

    def __init__(self, reason: str, remedy: str) -> None:
        """The reason and remedy as in `unsupported`."""
        super().__init__(reason)
        self.verdict: Verdict = unsupported(reason, remedy=remedy)


class OpContext(Node):
    """A node being lowered: its facts, and its inputs as MIL variables."""

    def __init__(self, node: Node, environment: Environment) -> None:
        """environment: what the values before this node became."""
        super().__init__(node.raw, node.opset, node.dims)
        self.environment = environment

    def shape(self, position: int = 0) -> tuple[Size, ...] | None:
        """Sizes of an input: the graph's where it has any, those of the MIL variable otherwise."""
        known = super().shape(position)
        if known is not None:
            return known
        sizes = self.input(position).shape
        return tuple(int(size) if isinstance(size, (int, np.integer)) else str(size) for size in sizes)

    def dtype(self, position: int = 0) -> str | None:
        """Numpy dtype name of an input: the graph's, or that of the MIL variable (int64 is int32 there)."""
        known = super().dtype(position)
        if known is not None:
            return known
        return str(np.dtype(types.nptype_from_builtin(self.input(position).dtype)))

    def partial(self, position: int) -> list[int | None] | None:
        """A vector of sizes as far as it is known: None for an element that varies; None where nothing is known."""
        known = self.constant(position)
        found = known if known is not None else self.input(position).sym_val
        if found is None:
            return None
        items = np.asarray(found).reshape(-1)
        return [int(item) if isinstance(item, (int, np.integer)) else None for item in items]

    def constant(self, position: int) -> np.ndarray[Any, Any] | None:
        """The array of an input that the graph fixes, or that MIL has folded from what it fixes."""
        fixed = super().constant(position)
        if fixed is not None or not self.has(position):
            return fixed
        folded = self.input(position).val
        return None if folded is None else np.asarray(folded)

    def input(self, position: int = 0) -> Var:
        """The MIL variable of an input; a constant becomes one now. Refused: an integer that needs 64 bits."""
        return self.environment.variable(self.value(position))

    def required_array(self, position: int, what: str) -> np.ndarray[Any, Any]:
        """As `constant`, Refused when it is computed from the model's inputs."""
        found = self.constant(position)
        if found is None:
            raise Refused(
                f"its {what} is computed while the model runs", "make it a constant: deploykit simplify MODEL"
            )
        return found


class Environment:
    """ONNX values -> MIL variables, constants made when first used."""

    def __init__(self) -> None:
        """An empty environment."""
        self._variables: dict[ir.Value, Var | Wide] = {}

    def inner(self) -> Environment:
        """One that sees all of this, and whose own additions stay within a block of the program."""
        made = Environment()
        made._variables = dict(self._variables)
        return made

    def bind(self, value: ir.Value, variable: Var | Wide) -> None:
        """Says what a value became."""
        self._variables[value] = variable

    def held(self, value: ir.Value) -> Var | Wide | None:
        """What a value has become so far; None for one that is not known, or a constant not used yet."""
        return self._variables.get(value)

    def knows(self, value: ir.Value) -> bool:
        """Whether the value has become a variable, or can as a constant."""
        from deploykit.graph.signature import constant_of

        return value in self._variables or constant_of(value) is not None

    def variable(self, value: ir.Value) -> Var:
        """The variable of a value. Refused: one of more than five dimensions."""
        found = self._variables.get(value)
        if found is None:
            from deploykit.graph.signature import constant_of

            tensor = constant_of(value)
            if tensor is None:
                raise KeyError(value.name)
            if len(tensor.shape) > MOST:
                raise _too_wide(value, len(tensor.shape))
            found = self._variables[value] = constant(np.asarray(tensor.numpy()))
        if isinstance(found, Wide):
            raise _too_wide(value, found.rank)
        return found


def _too_wide(value: ir.Value, rank: int) -> Refused:
    return Refused(
        f"tensor {value.name!r} has rank {rank}, and Core ML stops at {MOST}",
        "merge dimensions around it: a Reshape before and one behind",
    )


def constant(array: np.ndarray[Any, Any]) -> Var:
    """A MIL constant; int64 becomes int32. Refused where that would change a value, and for types MIL lacks."""
    return mb.const(val=narrowed(array))


def narrowed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in a type that MIL computes in. Refused where a value would change."""
    if array.dtype in (np.int64, np.uint32, np.uint64):
        if array.size and (array.min() < INT32.min or array.max() > INT32.max):
            raise Refused(
                f"a constant holds {int(array.min())}..{int(array.max())}, and Core ML computes integers in 32 bits",
                "clip the constant in the model, or keep the node out of it",
            )
        return array.astype(np.int32)
    if array.dtype in (np.int16, np.uint16):
        return array.astype(np.int32)
    if array.dtype == np.float64 or array.dtype.name == "bfloat16":
        raise Refused(f"a constant is {array.dtype.name}, which Core ML does not have", "convert the model to float32")
    return np.ascontiguousarray(array) if array.ndim else array


def like(variable: Var, value: float) -> np.generic:
    """A scalar of a variable's own type, so that MIL does not mix precisions."""
    made: np.generic = types.nptype_from_builtin(variable.dtype)(value)
    return made


def size_of(variable: Var, axis: int) -> Any:
    """A dimension as a number, or as the scalar variable that holds it while the model runs."""
    size = variable.shape[axis]
    if isinstance(size, (int, np.integer)):
        return int(size)
    return mb.gather(x=mb.shape(x=variable), indices=np.int32(axis), axis=0)


def is_fixed(variable: Var) -> bool:
    """Whether every dimension is a number."""
    return all(isinstance(size, (int, np.integer)) for size in variable.shape)


def positive_axis(axis: int, rank: int) -> int:
    """A negative axis counts from the end."""
    return axis + rank if axis < 0 else axis
