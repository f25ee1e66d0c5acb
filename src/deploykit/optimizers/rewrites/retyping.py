"""Has a node compute in another type: a Cast before each input of the type, and one back after each output."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from deploykit import graph
from deploykit.optimizers.rewrites.cleanup import remove_unused, settled
from deploykit.optimizers.rewrites.decomposition import in_function
from deploykit.optimizers.rewrites.emitting import Names, known_array
from deploykit.optimizers.rewriting import Change, Rewrite

if TYPE_CHECKING:
    from collections.abc import Sequence

# Their attributes name the type of what they give, or they are there to change it.
_TYPED = frozenset(
    {
        *(
            "Cast",
            "CastLike",
            "BitCast",
            "Constant",
            "EyeLike",
            "QuantizeLinear",
            "DequantizeLinear",
            "OptionalGetElement",
        ),
        *("If", "Loop", "Scan", "SequenceMap", "Optional", "RandomNormalLike", "RandomUniformLike", "Bernoulli"),
        *("Multinomial", "DynamicQuantizeLinear"),
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class TypeVariable:
    """A type that several inputs and outputs of a node share, as its schema names it.

    allowed: the types that it may be. inputs, outputs: positions. dtype: what it is in this node.
    """

    name: str
    dtype: ir.DataType
    allowed: frozenset[ir.DataType]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def type_variables(node: ir.Node, opset: int) -> list[TypeVariable]:
    """The type variables of a node of ONNX's own domain; none for an operator whose types are not free to choose."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _TYPED:
        return []
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return []
    allowed = {
        constraint.type_param_str: frozenset(map(_dtype, constraint.allowed_type_strs))
        for constraint in schema.type_constraints
    }
    inputs = _positions(schema.inputs, [value is not None for value in node.inputs])
    outputs = _positions(schema.outputs, [bool(value.name) for value in node.outputs])
    if inputs is None or outputs is None:
        return []
    found = []
    for name, types in allowed.items():
        values = [
            *(node.inputs[at] for at in inputs.get(name, ())),
            *(node.outputs[at] for at in outputs.get(name, ())),
        ]
        dtypes = {value.dtype for value in values if value is not None}
        dtype = next(iter(dtypes)) if len(dtypes) == 1 else None
        if dtype is not None and all(v is None or v.type is None or isinstance(v.type, ir.TensorType) for v in values):
            kinds = frozenset(kind for kind in types if kind is not None)
            found.append(TypeVariable(name, dtype, kinds, tuple(inputs.get(name, ())), tuple(outputs.get(name, ()))))
    return found


def _dtype(text: str) -> ir.DataType | None:
    """The type that a schema writes as `tensor(float)`."""
    kind = text.removeprefix("tensor(").removesuffix(")")
    return ir.DataType[kind.upper()] if text.startswith("tensor(") and kind.upper() in ir.DataType.__members__ else None


def _positions(formal: Sequence[Any], given: Sequence[bool]) -> dict[str, list[int]] | None:
    """Positions that are given, by type variable; None where a variadic one may mix types."""
    found: dict[str, list[int]] = {}
    for at, there in enumerate(given):
        if not formal:
            return None
        parameter = formal[min(at, len(formal) - 1)]
        variadic = parameter.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        if (variadic and not parameter.is_homogeneous) or (at >= len(formal) and not variadic):
            return None
        if there:
            found.setdefault(parameter.type_str, []).append(at)
    return found


class Retyping(Rewrite):
    """A node in another type, where that gives the same values.

    sources: the types that it takes away; target: the type instead. bound: as in Change.
    """

    sources: ClassVar[frozenset[ir.DataType]]
    target: ClassVar[ir.DataType]
    bound: ClassVar[str] = "fp32"
    keeps_operator: ClassVar[bool] = True

    @property
    def gives(self) -> str:
        """The type of `target`."""
        return str(self.target.numpy())

    @abc.abstractmethod
    def is_exact(self, node: ir.Node, variable: TypeVariable) -> bool:
        """Whether the node gives the same in the target type."""

    def constant(self, node: ir.Node, at: int, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A constant input in the target type."""
        del node, at
        return values.astype(self.target.numpy())

    def skips(self, source: ir.Value, mid: ir.DataType, *, ours: bool) -> bool:
        """Whether a Cast of a target-typed value to this type and back is nothing. ours: it came with the rewrite."""
        del source, mid, ours
        return False

    def keeps_numbers(self, node: ir.Node) -> bool:
        """Whether the results in the target type are the very numbers, so that a Cast can read them there."""
        del node
        return False

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether one of the node's type variables can change."""
        return node.graph is not None and bool(self._variables(node, model)) and not in_function(node, model)

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Changes each node's types in place; Casts that then undo each other go."""
        names = Names(model)
        changes: list[Change] = []
        came: set[str] = set()
        for node in nodes:
            variables = [] if node.graph is None or in_function(node, model) else self._variables(node, model)
            if variables:
                changes.append(self._change(node, variables, names, came))
                came.update(changes[-1].added)
        return settled(changes, model)

    def _variables(self, node: ir.Node, model: ir.Model) -> list[TypeVariable]:
        opset = node.version or graph.opset(model)
        return [
            variable
            for variable in type_variables(node, opset)
            if variable.dtype in self.sources
            and self.target in variable.allowed
            and variable.dtype != self.target
            and self.is_exact(node, variable)
        ]

    def _change(self, node: ir.Node, variables: Sequence[TypeVariable], names: Names, came: set[str]) -> Change:
        added: list[str] = []
        removed: list[str] = []
        made: dict[int, ir.Value] = {}
        for variable in variables:
            for at in variable.inputs:
                value = node.inputs[at]
                assert value is not None  # positions that are given
                if id(value) not in made:
                    made[id(value)] = self._before(node, at, value, names, added, came)
                node.replace_input_with(at, made[id(value)])
                removed += remove_unused([value])
            for at in variable.outputs:
                self._after(node, node.outputs[at], names, added)
        self.finish(node, variables)
        kinds = ", ".join(dict.fromkeys(type_name(variable.dtype) for variable in variables))
        text = f"{node.op_type} {node.name} in {type_name(self.target)} instead of {kinds}"
        return Change(tuple(removed), tuple(added), text, bound=self.bound)

    def finish(self, node: ir.Node, variables: Sequence[TypeVariable]) -> None:
        """What else of the node depends on its types."""

    def _before(
        self, node: ir.Node, at: int, value: ir.Value, names: Names, added: list[str], came: set[str]
    ) -> ir.Value:
        owner = node.graph
        assert owner is not None  # asked before
        array = known_array(value)
        if array is not None:
            values = self.constant(node, at, array)
            constant = ir.Value(
                name=names.value(f"{value.name}/{type_name(self.target)}"),
                const_value=ir.tensor(values, dtype=self.target),
                type=ir.TensorType(self.target),
                shape=ir.Shape(values.shape),
            )
            owner.register_initializer(constant)
            return constant
        producer = value.producer()
        source = producer.inputs[0] if producer is not None and producer.op_type == "Cast" else None
        if (
            producer is not None
            and source is not None
            and source.dtype == self.target
            and value.dtype
            and self.skips(source, value.dtype, ours=producer.name in came)
        ):
            return source
        cast = self._cast(node, value, self.target, names)
        cast.outputs[0].name = names.value(f"{cast.name}/value")
        owner.insert_before(node, cast)
        added.append(cast.name or "")
        return cast.outputs[0]

    def _after(self, node: ir.Node, value: ir.Value, names: Names, added: list[str]) -> None:
        owner = node.graph
        assert owner is not None  # asked before
        assert value.dtype is not None  # it is the variable's
        readers = [
            (reader, at) for reader, at in value.uses() if not (_casts_number(reader) and self.keeps_numbers(node))
        ]
        if not readers and not value.is_graph_output():
            value.dtype = self.target
            return
        name = value.name
        cast = self._cast(node, value, value.dtype, names)
        outer = cast.outputs[0]
        value.name = names.value(f"{name}/{type_name(self.target)}")
        outer.name, outer.doc_string = name, value.doc_string
        value.dtype = self.target
        for reader, at in readers:
            reader.replace_input_with(at, outer)
        owner.insert_after(node, cast)
        for at, output in enumerate(owner.outputs):
            if output is value:
                owner.outputs[at] = outer
        added.append(cast.name or "")

    def _cast(self, node: ir.Node, value: ir.Value, to: ir.DataType, names: Names) -> ir.Node:
        cast = ir.node("Cast", [value], attributes={"to": to}, name=names.node(f"{node.name}/Cast"))
        cast.metadata_props.update(node.metadata_props)
        cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(to), value.shape
        return cast


def _casts_number(node: ir.Node) -> bool:
    """A Cast that gives the same whichever type the number comes in: text shows it."""
    to = node.attributes.get("to")
    return (
        node.op_type == "Cast"
        and node.domain in ("", "ai.onnx")
        and to is not None
        and not to.is_ref()
        and to.as_int() != ir.DataType.STRING
    )


def type_name(dtype: ir.DataType) -> str:
    """As users write it: int64, float16."""
    return str(np.dtype(dtype.numpy()).name)
