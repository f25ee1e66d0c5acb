"""ONNX -> a MIL program: every node judged first, then lowered, with the declared shape asserted after each."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, Var, get_new_symbol, types

from deploykit import graph
from deploykit.converters.coreml import ranks, ranks_lowering
from deploykit.converters.coreml.images_program import enter, placeholder
from deploykit.converters.coreml.integers import check_folded
from deploykit.converters.coreml.lowering import REGISTRY
from deploykit.converters.coreml.lowering.context import Environment, OpContext, Refused
from deploykit.converters.coreml.lowering.deployment import deploying_to
from deploykit.converters.coreml.lowering.node import Node, dtype_of
from deploykit.converters.coreml.lowering.quantization import FOUR_BITS
from deploykit.converters.coreml.naming import mil_names
from deploykit.converters.coreml.origins import Origins, added
from deploykit.data.fitting import is_symbol
from deploykit.graph.signature import constant_of
from deploykit.opsupport.verdict import Status, Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.artifact import TensorSpec
    from deploykit.converters.images import ImageInput

SOURCE = "deploykit's Core ML lowerings"
_MIL_TYPES = {
    "float32": types.fp32,
    "float16": types.fp16,
    "int32": types.int32,
    "int64": types.int32,
    "bool": types.bool,
}
# What Core ML's interface holds instead of a type that it does not have there.
_AT_THE_DOOR = {
    "float32": "float32",
    "float16": "float16",
    "int32": "int32",
    "int64": "int32",
    "int16": "int32",
    "int8": "int32",
    "uint8": "int32",
    "bool": "float32",
}
_INSIDE = {"float32", "float16", "int32", "int64", "bool"}
_EIGHT_BITS = {"int8", "uint8"}
_MAY_HOLD_EIGHT_BITS = {"QuantizeLinear", "DequantizeLinear", "Cast", "Constant", "Reshape", "Transpose", "Identity"}


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A node with what is known about it."""

    node: Node
    verdict: Verdict
    tried: bool = False  # by its lowering, beyond what its rule's predicate says


@dataclasses.dataclass(slots=True)
class Built:
    """A lowered model.

    names: Core ML name by ONNX name of inputs and outputs. judged: every node with its verdict.
    origins: which node each operation of the program comes from.
    """

    program: Program | None
    names: dict[str, str]
    judged: list[Judged]
    origins: Origins

    @property
    def refused(self) -> list[Judged]:
        """The nodes that stand against a conversion."""
        return [row for row in self.judged if not row.verdict.runs]


def door_type(dtype: str) -> str | None:
    """The type that an input or output of this ONNX type has in Core ML; None when there is none."""
    return _AT_THE_DOOR.get(dtype)


def judge(model: ir.Model, dims: Mapping[str, int], opset_version: Any = None) -> list[Judged]:
    """A verdict for each node of the graph, subgraphs not entered: what they hold is judged when it is lowered.

    opset_version: the `ct.target` that is asked about.
    """
    opset = graph.opset(model)
    with deploying_to(opset_version):
        return [Judged(node, _verdict(node)) for raw in model.graph for node in [Node(raw, opset, dims)]]


def _verdict(node: Node) -> Verdict:
    domain = node.raw.domain
    if _is_constant(node):
        # It becomes a MIL constant where it is used, and is refused there when MIL cannot hold it.
        return supported(SOURCE)
    entry = REGISTRY.lookup(domain, node.op, node.opset)
    if entry is None:
        revisions = REGISTRY.revisions(domain, node.op)
        if revisions:
            return unsupported(
                f"{node.op} of opset {node.opset} is a revision without a lowering",
                remedy=f"export with another opset; lowered revisions: {', '.join(map(str, revisions))}",
                source=SOURCE,
            )
        return unsupported(
            f"there is no lowering of {f'{domain}.' if domain else ''}{node.op} to Core ML",
            remedy="rewrite it with operators that have one, or keep this part out of the model",
            source=SOURCE,
        )
    found = _types(node)
    if found.runs and entry.when is not None:
        found = entry.when(node)
    return dataclasses.replace(found, source=SOURCE)


def _is_constant(node: Node) -> bool:
    return node.op == "Constant" and node.raw.domain in ("", "ai.onnx") and constant_of(node.raw.outputs[0]) is not None


def _types(node: Node) -> Verdict:
    """Types and ranks that no operator of Core ML has."""
    values = [value for value in (*node.raw.inputs, *node.raw.outputs) if value is not None and value.name]
    for value in values:
        kind = dtype_of(value)
        if kind is None or kind in _INSIDE:
            continue
        # Small constants of other integer types become int32; activations of 8 bits exist between Q and DQ only.
        if kind in _EIGHT_BITS and node.op in _MAY_HOLD_EIGHT_BITS:
            continue
        if kind in FOUR_BITS and node.op == "DequantizeLinear":
            continue
        return unsupported(
            f"tensor {value.name!r} is {kind}, which Core ML does not compute",
            remedy="convert the model to float32 or float16 (bfloat16, float64), or cast around the node",
        )
    for value in values:
        dims = value.shape.dims if value.shape is not None else ()
        if len(dims) > ranks.MOST and not ranks_lowering.takes(node):
            return unsupported(
                f"tensor {value.name!r} has rank {len(dims)}, Core ML stops at {ranks.MOST}, and {node.op} is not "
                "rewritten for fewer",
                remedy="merge dimensions around it: a Reshape before and one behind",
            )
        if any(isinstance(size, int) and size == 0 for size in dims) and not _is_option(node, value):
            return unsupported(
                f"tensor {value.name!r} is empty, and Core ML has no empty tensors",
                remedy="deploykit simplify MODEL -o OUT",
            )
    return supported()


def _is_option(node: Node, value: Any) -> bool:
    """An empty constant behind the first input may say that an option is not used: no axes, no scales, no shape."""
    if not (node.op.startswith("Reduce") or node.op in ("Resize", "Upsample", "Reshape", "Expand", "ConstantOfShape")):
        return False
    if node.op == "ConstantOfShape":  # an empty shape is that of a scalar
        return value is node.raw.inputs[0]
    return value is not node.raw.inputs[0] and value in node.raw.inputs and constant_of(value) is not None


def build(
    model: ir.Model,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    dims: Mapping[str, int],
    opset_version: Any,
    images: Mapping[str, ImageInput] | None = None,
) -> Built:
    """Judges every node and, when none is refused, lowers the graph.

    dims: symbols with one possible size. images: inputs that are pictures in the package. A lowering may still refuse
    (a folded constant, a shape that differs from the declared one); nodes after it that depend on it are then unknown,
    and `program` is None.
    """
    judged = judge(model, dims, opset_version)
    # A fact that the graph does not tell (a rank, a folded constant) may come out while it is lowered.
    refused = [row for row in judged if row.verdict.status is Status.UNSUPPORTED]
    names = mil_names([spec.name for spec in (*inputs, *outputs)])
    built = Built(None, names, judged, Origins(names))
    if refused:
        return built
    symbols: dict[str, Any] = dict(dims)
    pictures = images or {}
    specs = {names[spec.name]: _placeholder(spec, symbols, pictures.get(spec.name)) for spec in inputs}
    # Unnamed constants are numbered through the process; coremltools starts again only after this program is built.
    mb.name_count.clear()
    with Function(specs, opset_version=opset_version) as function, deploying_to(opset_version):
        environment = Environment()
        values = {value.name: value for value in model.graph.inputs}
        for spec in inputs:
            variable = function.inputs[names[spec.name]]
            picture = pictures.get(spec.name)
            entered = enter(variable, picture) if picture is not None else _enter(variable, spec.dtype)
            scalar = spec.shape is not None and not spec.shape
            environment.bind(values[spec.name], mb.squeeze(x=entered, axes=[0]) if scalar else entered)
        built.judged = [
            Judged(row.node, _lower(row, environment, function, built.origins), tried=True) for row in judged
        ]
        if built.refused:
            return built
        function.set_outputs(_leave(model, names, environment))
    built.program = Program()
    built.program.add_function("main", function)
    return built


def _placeholder(spec: TensorSpec, symbols: dict[str, Any], picture: ImageInput | None = None) -> Any:
    """One MIL symbol for each ONNX symbol: sizes that are equal by name stay equal."""
    shape: list[Any] = []
    for size in spec.shape or ():
        if isinstance(size, str) and size not in symbols:
            # What has no name is equal to nothing.
            symbols[size if is_symbol(size) else f"{spec.name} {len(shape)}"] = fresh = get_new_symbol()
            shape.append(fresh)
        else:
            shape.append(symbols[size] if isinstance(size, str) else size)
    if picture is not None:
        return placeholder(picture, shape)
    # Core ML has no inputs of rank 0.
    return mb.TensorSpec(shape=tuple(shape) or (1,), dtype=_MIL_TYPES[_AT_THE_DOOR[spec.dtype]])


def _enter(variable: Var, dtype: str) -> Var:
    """An input in the type that the graph computes with."""
    if dtype == "bool":
        return mb.not_equal(x=variable, y=np.float32(0))
    return mb.cast(x=variable, dtype=dtype) if dtype in _EIGHT_BITS else variable


def _leave(model: ir.Model, names: Mapping[str, str], environment: Environment) -> list[Var]:
    """The outputs under their names, in types that Core ML's interface has."""
    results = []
    for value in model.graph.outputs:
        variable = environment.variable(value)
        name = names[value.name or ""]
        if variable.dtype in (types.bool, types.int8, types.uint8):
            to = "fp32" if variable.dtype == types.bool else "int32"
            results.append(mb.cast(x=variable, dtype=to, name=name))
        else:
            results.append(mb.identity(x=variable, name=name))
    return results


def _lower(row: Judged, environment: Environment, function: Function, origins: Origins) -> Verdict:
    node, last = row.node, function.operations.end
    if _is_constant(node):
        return row.verdict
    entry = REGISTRY.lookup(node.raw.domain, node.op, node.opset)
    if entry is None:
        return row.verdict
    if not all(environment.knows(value) for value in _read(node.raw)):
        return unknown(
            "it depends on a node that is refused",
            remedy="solve the refused nodes first, then check again",
            source=SOURCE,
        )
    try:
        context, found = OpContext(node, environment), row.verdict
        many = ranks_lowering.is_wide(context)
        if entry.when is not None and not many:
            found = entry.when(context)
        if not found.runs:
            return dataclasses.replace(found, status=Status.UNSUPPORTED, source=SOURCE)
        made = ranks_lowering.lower(context) if many else entry.function(context)
        variables = (made if isinstance(made, tuple) else (made,))[: len(node.raw.outputs)]
        check_folded(context, variables)
        if len(variables) < node.used_outputs:
            raise Refused("an output that is used has no lowering", "remove the output and what uses it")
        for position, variable in enumerate(variables):
            if variable is not None:
                _assert_declared(node, position, variable)
            if isinstance(variable, ranks.Wide) and node.raw.outputs[position].is_graph_output():
                raise Refused(
                    f"the model's output {node.raw.outputs[position].name!r} has rank {variable.rank}, and Core ML "
                    f"takes at most {ranks.MOST}",
                    "merge dimensions in the model",
                )
    except Refused as problem:
        return dataclasses.replace(problem.verdict, source=SOURCE)
    except (ValueError, TypeError, IndexError, AssertionError, NotImplementedError) as problem:
        # coremltools' builder checks its arguments with these; the text names the limit.
        logging.getLogger(__name__).debug("lowering of %s failed", node.name, exc_info=True)
        return unsupported(
            f"coremltools refuses it: {str(problem).strip() or type(problem).__name__}",
            remedy="another form of the operator, or a newer minimum_deployment_target",
            source="coremltools MIL builder",
        )
    origins.name(node, variables, added(function, last))
    for value, variable in zip(node.raw.outputs, variables, strict=False):
        if variable is not None:
            environment.bind(value, variable)
    return dataclasses.replace(found, source=SOURCE)


def _read(node: ir.Node) -> list[ir.Value]:
    """What a node reads, and its bodies from around them."""
    from onnx_ir.traversal import RecursiveGraphIterator

    bodies = [attribute.as_graph() for attribute in node.attributes.values() if attribute.type.name == "GRAPH"]
    inner = [other for body in bodies for other in RecursiveGraphIterator(body)]
    own = {id(value) for other in inner for value in other.outputs}
    for part in (*bodies, *(deeper for body in bodies for deeper in body.subgraphs())):
        own |= {id(value) for value in (*part.inputs, *part.initializers.values())}
    read = [*node.inputs, *(value for other in inner for value in other.inputs)]
    read += [value for body in bodies for value in body.outputs]
    return [value for value in read if value is not None and id(value) not in own]


def _assert_declared(node: Node, position: int, tensor: Var | ranks.Wide) -> None:
    """A wrong shape inside is hidden by the output's; a wrong type too."""
    declared, kind = node.out_shape(position), node.out_dtype(position)
    variable = tensor.variable if isinstance(tensor, ranks.Wide) else tensor
    if declared is not None:
        made = tuple(tensor.sizes if isinstance(tensor, ranks.Wide) else variable.shape)
        fits = len(made) == len(declared) and all(
            not isinstance(want, int) or not isinstance(have, (int, np.integer)) or int(have) == want
            for want, have in zip(declared, made, strict=True)
        )
        if not fits:
            raise Refused(
                f"its lowering gives shape {[str(size) for size in made]}, the model declares {list(declared)}",
                "deploykit simplify MODEL -o OUT; please report the model if it stays",
            )
    if kind in _MIL_TYPES and variable.dtype != _MIL_TYPES[kind]:
        raise Refused(
            f"its lowering gives {types.builtin_to_string(variable.dtype)}, the model declares {kind}",
            "please report the model",
        )
