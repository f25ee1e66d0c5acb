"""Weight-only integers: int8 weights per channel behind a DequantizeLinear, all arithmetic in float."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx_ir as ir

from deploykit.progress import OnProgress, Progress
from deploykit.quantize import findings as say
from deploykit.quantize.families import MAC_OPS, RECURRENT
from deploykit.quantize.folding import fold_weights
from deploykit.quantize.places import Place, Rewriter, constant_reader, meeting_point, places, shape_of
from deploykit.quantize.plan import FloatNode, check_exclusions
from deploykit.quantize.prepare import is_constant, load_float
from deploykit.quantize.product import counts, written
from deploykit.quantize.slices import reading, shrinks, to_int8, why_not_integers
from deploykit.quantize.weights import channel_axis
from deploykit.report import warning

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deploykit.quantize.settings import Settings

# Targets that dequantize stored weights when they load: a table may be whole before a Gather, and what their operators
# take as constants only, the weights of recurrent layers, stays float.
LOADS_FLOAT = frozenset({"coreml"})


def quantize_weight_only(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The int8-weights job."""
    model, said = load_float(source)
    check_exclusions(model, settings.exclude)
    fold_weights(model)
    on_progress(Progress("quantizing weights", source.name))
    done, left = quantize_weights(
        model, exclude=settings.exclude, at_load=settings.target in LOADS_FLOAT, on_progress=on_progress
    )
    said += say.about_float(left)
    if not done:
        said.append(
            warning(
                "DK347",
                "nothing was quantized: int8 weights are for MatMul, Gemm, convolutions, recurrent layers and tables "
                "with float32 weights of some size",
                hint="deploykit inspect MODEL shows where its weights are",
            )
        )
    facts = written(model, output, "int8-weights", said)
    # The arithmetic stays float: no multiply-accumulate becomes an integer one.
    facts["metrics"] |= {"calibration": None, **counts(done, left), "int8_macs_share": 0.0, "bits": 8}
    return facts


def quantize_weights(
    model: ir.Model,
    *,
    exclude: tuple[str, ...] = (),
    at_load: bool = False,
    on_progress: OnProgress = lambda _: None,
) -> tuple[list[str], list[FloatNode]]:
    """Stores constant weights as int8 with one scale a channel, in the main graph and in all bodies.

    Weights of multiply-accumulate and recurrent nodes get a DequantizeLinear before them. Of a table that Gather reads,
    the gathered rows are dequantized. at_load: for targets that dequantize when they load (`LOADS_FLOAT`).
    Returns the names of the nodes that read integer weights, and those that do not with the reason.
    """
    rewriting = _Weights(Rewriter(model), whole_tables=at_load)
    changed: list[str] = []
    left: list[FloatNode] = []
    for place in places(model.graph):
        node = place.node
        indices = weight_inputs(node)
        reason = why_float(node, indices, exclude, bits=8)
        if at_load and node.op_type in RECURRENT and not reason:
            reason = "the target takes the weights of recurrent layers in float only"
        if reason:
            left.append(FloatNode(node.name or "", node.op_type, reason, place.owner))
        elif indices:
            rewriting.note(place, indices)
            changed.append(node.name or "")
    rewriting.run(on_progress)
    return changed, left


def weight_inputs(node: ir.Node) -> list[int]:
    """Indices of the inputs that are weights and constant; a Gather's table counts when it has rows of its own."""
    if node.domain:
        return []
    if node.op_type in MAC_OPS:
        return [index for index in range(2) if is_constant(node.inputs[index])]
    if node.op_type in RECURRENT:
        return [index for index in (1, 2) if is_constant(node.inputs[index])]
    if node.op_type == "Gather" and constant_reader(node.inputs[0]):
        table = node.inputs[0]
        if table is not None and table.const_value is not None and len(table.const_value.shape) > 1:
            return [0]
    return []


def why_float(node: ir.Node, indices: list[int], exclude: tuple[str, ...], *, bits: int) -> str:
    """Why a node keeps float weights; "" when it does not, or has none that anyone would quantize."""
    if node.domain or node.op_type not in MAC_OPS | RECURRENT | {"Gather"}:
        return ""
    if node.op_type == "Gather" and not indices:
        return ""
    if node.name in exclude or node.op_type in exclude:
        return "excluded"
    if not indices:
        return (
            "both operands are computed: there is no weight" if node.op_type in MAC_OPS else "its weights are computed"
        )
    values = [node.inputs[index] for index in indices]
    if not all(map(constant_reader, values)):
        return "its weight is not float32"
    sizes = [(value, index) for value, index in zip(values, indices, strict=True) if value is not None]
    if not any(_worth_it(node, value, index, bits) for value, index in sizes):
        size = max(value.const_value.size for value, _ in sizes if value.const_value is not None)
        return f"its weight has only {size} elements: integers and scales would not be smaller"
    return next((reason for value, _ in sizes if (reason := why_not_integers(value))), "")


def _worth_it(node: ir.Node, value: ir.Value, index: int, bits: int) -> bool:
    tensor = value.const_value
    assert tensor is not None
    shape = tensor.shape.numpy()
    axis = axis_of(node, index, len(shape))
    return shrinks(tensor.size, bits, 1 if axis is None else _channels(node, shape, axis))


def _channels(node: ir.Node, shape: Sequence[int], axis: int) -> int:
    return shape[0] * shape[1] if node.op_type in RECURRENT else shape[axis]


def axis_of(node: ir.Node, index: int, rank: int) -> int | None:
    """The axis of a weight that has a scale each; for a table the axis that Gather picks from."""
    if node.op_type == "Gather":
        return node.attributes.get_int("axis", 0) % rank
    if node.op_type in RECURRENT:
        return 1  # W [directions, gates * hidden, input]: one row a gate and unit
    return channel_axis(node, index, rank)


class _Weights:
    """Rewrites one model; weights that several nodes share become one set of integers."""

    def __init__(self, rewriter: Rewriter, *, whole_tables: bool) -> None:
        self.rewriter = rewriter
        self._whole_tables = whole_tables
        # By weight, axis and whether leading axes are one: the nodes and inputs that read it.
        self._readers: dict[tuple[object, ...], list[tuple[Place, int]]] = {}
        self._tables: list[ir.Node] = []

    def note(self, place: Place, indices: list[int]) -> None:
        """Takes down what is to be quantized."""
        node = place.node
        for index in indices:
            value = node.inputs[index]
            assert value is not None
            if not _worth_it(node, value, index, 8):
                continue
            if node.op_type == "Gather" and not self._whole_tables:
                self._tables.append(node)
                continue
            shape = shape_of(value)
            # A scale has one axis: two directions of a recurrent layer are stored as twice as many rows.
            rows = node.op_type in RECURRENT and shape[0] > 1
            axis = 0 if rows else axis_of(node, index, len(shape))
            self._readers.setdefault((value, axis, rows), []).append((place, index))

    def run(self, on_progress: OnProgress) -> None:
        """Carries everything out."""
        total = len(self._readers) + len(self._tables)
        for number, ((value, axis, rows), readers) in enumerate(self._readers.items()):
            assert isinstance(value, ir.Value)
            on_progress(Progress("quantizing weights", value.name or "", number, total))
            anchor = meeting_point([place for place, _ in readers])
            made = self._dequantize(anchor, value, cast("int | None", axis), rows=bool(rows))
            for place, index in readers:
                place.node.replace_input_with(index, made)
        for number, node in enumerate(self._tables):
            on_progress(Progress("quantizing weights", node.name or "", len(self._readers) + number, total))
            table = node.inputs[0]
            assert table is not None
            self._gather(node, table)
        self.rewriter.finish()

    def _integers(
        self, value: ir.Value, axis: int | None, home: ir.Graph | ir.Function | None, *, rows: bool = False
    ) -> tuple[ir.Value, ir.Value]:
        """The integers and the scales of a weight. rows: leading axes of W [directions, rows, columns] are one."""
        key = (id(value), axis, rows, home)
        values, scale = (self.rewriter.known((*key, what)) for what in ("values", "scale"))
        if values is None or scale is None:
            with reading(value) as weight:
                found = to_int8(weight.reshape(-1, weight.shape[-1]) if rows else weight, axis)
            add = self.rewriter.constant
            values = add(f"{value.name}_quantized", ir.Tensor(found.values), (*key, "values"), home)
            scale = add(f"{value.name}_scale", ir.Tensor(found.scale), (*key, "scale"), home)
        return values, scale

    def _dequantize(self, anchor: ir.Node, value: ir.Value, axis: int | None, *, rows: bool) -> ir.Value:
        # onnxruntime 1.32 does not load a DequantizeLinear in a body whose integers are outside of it.
        home = anchor.graph
        integers, scale = self._integers(value, axis, home, rows=rows)
        assert scale.const_value is not None
        zeros = np.zeros(scale.const_value.shape.numpy(), np.int8)
        zero = self.rewriter.constant(f"{value.name}_zero_point", ir.Tensor(zeros), home=home)
        attributes = {} if axis is None else {"axis": axis}
        made = self.rewriter.before(
            anchor,
            "DequantizeLinear",
            [integers, scale, zero],
            f"{value.name}_dequantized",
            attributes=attributes,
            dtype=ir.DataType.FLOAT,
        )
        made.shape = integers.shape
        if not rows:
            return made
        assert value.const_value is not None
        whole = np.array(value.const_value.shape.numpy(), np.int64)
        shape = self.rewriter.constant(f"{value.name}_shape", ir.Tensor(whole), home=home)
        shaped = self.rewriter.before(
            anchor, "Reshape", [made, shape], f"{value.name}_directions", dtype=ir.DataType.FLOAT
        )
        shaped.shape = ir.Shape([int(size) for size in whole])
        return shaped

    def _gather(self, node: ir.Node, table: ir.Value) -> None:
        """Gather of the integers and of the scales, then the product: only what is read is dequantized."""
        assert table.const_value is not None
        rank = len(table.const_value.shape)
        axis = node.attributes.get_int("axis", 0) % rank
        integers, scale = self._integers(table, axis, None)
        assert scale.const_value is not None
        shape = [-1 if i == axis else 1 for i in range(rank)]
        column = self.rewriter.constant(
            f"{table.name}_row_scale",
            ir.Tensor(scale.const_value.numpy().reshape(shape)),
            (id(table), axis, "rows"),
        )
        base, add = node.outputs[0].name, self.rewriter.before
        ids, picked = node.inputs[1], {"axis": axis}
        levels = add(node, "Gather", [integers, ids], f"{base}_integers", attributes=picked, dtype=ir.DataType.INT8)
        levels.shape = node.outputs[0].shape
        floats = add(
            node,
            "Cast",
            [levels],
            f"{base}_levels",
            attributes={"to": int(ir.DataType.FLOAT)},
            like=node.outputs[0],
        )
        scales = add(node, "Gather", [column, ids], f"{base}_scales", attributes=picked, dtype=ir.DataType.FLOAT)
        made = add(node, "Mul", [floats, scales], f"{base}_dequantized", like=node.outputs[0])
        self.rewriter.replace(node, made)
