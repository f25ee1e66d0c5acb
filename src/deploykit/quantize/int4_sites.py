"""Which weights 4 bits in blocks are for, and the form that a target takes them in."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from deploykit import graph
from deploykit.quantize.families import MAC_OPS, RECURRENT
from deploykit.quantize.places import Place, constant_reader, places, shape_of
from deploykit.quantize.plan import FloatNode
from deploykit.quantize.prepare import is_constant
from deploykit.quantize.slices import shrinks, why_not_integers

if TYPE_CHECKING:
    import onnx_ir as ir

# The first opset with 4-bit integers and with a DequantizeLinear in blocks.
INT4_OPSET = 21
SMALLEST_BLOCK = 16
# A float32 scale and a zero point of 4 bits.
BITS_PER_SCALE = 36


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """What a target reads.

    contributed: onnxruntime's own operators, which keep 4 bits in memory and in the kernel; otherwise DequantizeLinear.
    symmetric: signed integers without zero points. matrices: only those of MatMul and Gemm.
    """

    contributed: bool = False
    symmetric: bool = False
    matrices: bool = False


STANDARD = Form()
# TensorRT's importer takes no unsigned 4-bit integers, and its builder has 4-bit weights for matrix products only.
FORMS: dict[str, Form] = {
    "onnxruntime": Form(contributed=True),
    "onnxruntime-web": Form(contributed=True),
    "tensorrt": Form(symmetric=True, matrices=True),
    "tensorrt-rtx": Form(symmetric=True, matrices=True),
}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A weight in a place, as a matrix [rows, columns] whose columns are summed over.

    transposed: the model has [columns, rows]. block: columns that share a scale.
    """

    place: Place
    weight: ir.Value
    transposed: bool
    block: int

    @property
    def key(self) -> tuple[object, ...]:
        """The same for all sites of one matrix."""
        return (id(self.weight), self.transposed, self.block)


def find_sites(model: ir.Model, exclude: tuple[str, ...], block: int, form: Form) -> tuple[list[Site], list[FloatNode]]:
    """Every weight that 4 bits in blocks are for, in graph order, and the nodes that stay float with the reason."""
    sites: list[Site] = []
    left: list[FloatNode] = []
    opset = graph.opset(model)
    for place in places(model.graph):
        node = place.node
        reason = _why_float(node, exclude, block, form=form, opset=opset)
        if reason is None:
            weight = node.inputs[0 if node.op_type == "Gather" else 1]
            assert weight is not None
            sites.append(Site(place, weight, _is_transposed(node), _block_of(node, shape_of(weight), block, form)))
        elif reason:
            left.append(FloatNode(node.name or "", node.op_type, reason, place.owner))
    return sites, left


def _why_float(node: ir.Node, exclude: tuple[str, ...], block: int, *, form: Form, opset: int) -> str | None:
    """None: quantize. A reason: stays float and is reported. An empty text: nothing that anyone would quantize."""
    if node.domain or node.op_type not in MAC_OPS | RECURRENT | {"Gather"}:
        return ""
    table = node.op_type == "Gather"
    if table and not (constant_reader(node.inputs[0]) and len(shape_of(node.inputs[0])) > 1):
        return ""
    if node.name in exclude or node.op_type in exclude:
        return "excluded"
    if form.matrices and node.op_type not in {"MatMul", "Gemm"}:
        return "the target has 4-bit weights for MatMul and Gemm only"
    if node.op_type in RECURRENT:
        return "the error of 4 bits would be carried from step to step; --precision int8-weights takes it"
    if node.op_type == "ConvTranspose":
        return "4 bits in blocks are for matrices; --precision int8-weights takes it"
    weight = node.inputs[0 if table else 1]
    if not is_constant(weight):
        first = is_constant(node.inputs[0])
        return "its weight is the first operand" if first else "both operands are computed: there is no weight"
    if not constant_reader(weight):
        return "its weight is not float32"
    assert weight is not None
    return _why_float_matrix(node, shape_of(weight), block, form=form, opset=opset) or why_not_integers(weight) or None


def _why_float_matrix(node: ir.Node, shape: tuple[int, ...], block: int, *, form: Form, opset: int) -> str | None:
    if node.op_type == "Conv":
        if node.attributes.get_int("group", 1) != 1 or math.prod(shape[2:]) != 1:
            return "4 bits in blocks are for 1x1 convolutions without groups; --precision int8-weights takes it"
        if opset < INT4_OPSET:
            return f"a convolution's 4-bit weights need opset {INT4_OPSET}, and the model has {opset}"
    elif len(shape) != 2:
        return f"its weight has {len(shape)} dimensions, and 4 bits in blocks are for matrices"
    if node.op_type == "Gather" and node.attributes.get_int("axis", 0) % 2:
        return "it picks columns of its table, and blocks lie along them"
    rows, columns = _matrix(node, shape)
    found = _block_of(node, shape, block, form)
    if not found:
        return f"its {columns} columns are no multiple of a block size"
    if not shrinks(rows * columns, 4, rows * -(-columns // found), BITS_PER_SCALE):
        return f"its weight of {rows} x {columns} is too small for blocks of {found}"
    return None


def _is_transposed(node: ir.Node) -> bool:
    """Whether the model has the matrix as [columns, rows]."""
    return node.op_type == "MatMul" or (node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 0)


def _matrix(node: ir.Node, shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[1], shape[0]) if _is_transposed(node) else (shape[0], shape[1])


def _block_of(node: ir.Node, shape: tuple[int, ...], asked: int, form: Form) -> int:
    """The block size for a weight: the one asked for, or the next smaller one that fits; 0 when none does.

    MatMulNBits pads the last block of a row; elsewhere rows are whole blocks.
    """
    columns = _matrix(node, shape)[1]
    pads = form.contributed and node.op_type in {"MatMul", "Gemm"}
    while asked >= SMALLEST_BLOCK:
        if asked <= columns and (pads or columns % asked == 0):
            return asked
        asked //= 2
    return 0
