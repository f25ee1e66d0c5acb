"""How 4-bit weights stand in the ONNX: onnxruntime's own operators, or the standard DequantizeLinear in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.quantize.blocks import BITS, BlockWeight, pack
from deploykit.quantize.dynamic import MICROSOFT
from deploykit.quantize.gemm import plus_bias
from deploykit.quantize.places import meeting_point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.quantize.places import Place, Rewriter

# MatMulNBits may round activations to int8 in blocks too: what its fast kernels do, and far below the noise of 4 bits
# (measured: 45 dB against 14 to 22). 4 in its documentation.
ACCURACY_LEVEL = 4


class Contributed:
    """com.microsoft MatMulNBits and GatherBlockQuantized; the blocked DequantizeLinear for convolutions."""

    def __init__(self, model: ir.Model, rewriter: Rewriter) -> None:
        self._rewriter = rewriter
        self._standard = Standard(rewriter)
        model.graph.opset_imports[MICROSOFT] = 1

    def write(self, readers: Sequence[Place], weight: ir.Value, made: BlockWeight, *, transposed: bool) -> None:
        """Puts a quantized weight in the place of the float one that all these nodes read."""
        convolutions = [place for place in readers if place.node.op_type == "Conv"]
        if convolutions:
            self._standard.write(convolutions, weight, made, transposed=transposed)
        for place in readers:
            if place.node.op_type == "Gather":
                self._gather(place.node, weight, made, (id(weight), transposed))
            elif place.node.op_type != "Conv":
                self._matmul(place.node, weight, made, (id(weight), transposed))

    def _matmul(self, node: ir.Node, weight: ir.Value, made: BlockWeight, key: tuple[object, ...]) -> None:
        rows, blocks = made.scale.shape
        gemm = node.op_type == "Gemm"
        alpha = node.attributes.get_float("alpha", 1.0) if gemm else 1.0
        add, base = self._rewriter.constant, node.outputs[0].name
        packed = pack(made.codes).reshape(rows, blocks, made.block // 2)
        inputs = [
            node.inputs[0],
            add(f"{weight.name}_4bit", ir.Tensor(packed), (*key, "packed")),
            add(
                f"{weight.name}_scale",
                ir.Tensor((made.scale * np.float32(alpha)).reshape(-1)),
                (*key, "scale", alpha),
            ),
            add(f"{weight.name}_zero_point", ir.Tensor(_zeros(made).reshape(-1)), (*key, "zero")),
        ]
        if gemm and node.attributes.get_int("transA", 0) != 0:
            inputs[0] = self._rewriter.before(
                node,
                "Transpose",
                [inputs[0]],
                f"{base}_rows",
                attributes={"perm": [1, 0]},
                dtype=ir.DataType.FLOAT,
            )
        product = self._rewriter.before(
            node,
            "MatMulNBits",
            inputs,
            f"{base}_product",
            domain=MICROSOFT,
            attributes={
                "K": made.columns,
                "N": rows,
                "bits": BITS,
                "block_size": made.block,
                "accuracy_level": ACCURACY_LEVEL,
            },
            like=node.outputs[0],
        )
        self._rewriter.replace(node, plus_bias(self._rewriter, node, product))

    def _gather(self, node: ir.Node, table: ir.Value, made: BlockWeight, key: tuple[object, ...]) -> None:
        add = self._rewriter.constant
        inputs = [
            add(f"{table.name}_4bit", ir.Tensor(pack(made.codes)), (*key, "table")),
            node.inputs[1],
            add(f"{table.name}_scale", ir.Tensor(made.scale), (*key, "table scale")),
            add(f"{table.name}_zero_point", ir.Tensor(_zeros(made)), (*key, "table zero")),
        ]
        picked = self._rewriter.before(
            node,
            "GatherBlockQuantized",
            inputs,
            f"{node.outputs[0].name}_picked",
            domain=MICROSOFT,
            attributes={"gather_axis": 0, "quantize_axis": 1, "bits": BITS, "block_size": made.block},
            like=node.outputs[0],
        )
        self._rewriter.replace(node, picked)


def _zeros(made: BlockWeight) -> np.ndarray:
    """Zero points as MatMulNBits has them: packed, or floats as they are."""
    return pack(made.zero) if made.zero.dtype == np.uint8 else made.zero.astype(np.float32)


class Standard:
    """DequantizeLinear with a block size, from opset 21 on, before the node as it is."""

    def __init__(self, rewriter: Rewriter, *, symmetric: bool = False) -> None:
        """symmetric: signed integers, no zero points; the zero points of what is written are 8 then."""
        self._rewriter = rewriter
        self._symmetric = symmetric

    def write(self, readers: Sequence[Place], weight: ir.Value, made: BlockWeight, *, transposed: bool) -> None:
        """Puts one DequantizeLinear before the nodes that read the weight."""
        dequantized = self._dequantize(meeting_point(readers), weight, made, transposed=transposed)
        for place in readers:
            place.node.replace_input_with(0 if place.node.op_type == "Gather" else 1, dequantized)

    def _dequantize(self, anchor: ir.Node, weight: ir.Value, made: BlockWeight, *, transposed: bool) -> ir.Value:
        """transposed: the matrix of the model, [columns, rows], is the transpose of what is in blocks."""
        assert weight.const_value is not None
        shape = [int(size) for size in weight.const_value.shape.numpy()]
        axis = 0 if transposed else 1
        codes, scale, zero = (array.T if transposed else array for array in (made.codes, made.scale, made.zero))
        blocked = list(shape)
        blocked[axis] = made.scale.shape[1]
        # In the graph of the node: onnxruntime does not load a DequantizeLinear in a body whose integers are outside.
        add, home = self._rewriter.constant, anchor.graph
        inputs = [
            add(f"{weight.name}_4bit", self._four_bits(codes, shape), home=home),
            add(f"{weight.name}_scale", ir.Tensor(np.ascontiguousarray(scale).reshape(blocked)), home=home),
        ]
        if not self._symmetric:
            inputs.append(add(f"{weight.name}_zero_point", self._four_bits(zero, blocked), home=home))
        dequantized = self._rewriter.before(
            anchor,
            "DequantizeLinear",
            [*inputs],
            f"{weight.name}_dequantized",
            attributes={"axis": axis, "block_size": made.block},
            dtype=ir.DataType.FLOAT,
        )
        dequantized.shape = ir.Shape(shape)
        return dequantized

    def _four_bits(self, codes: np.ndarray, shape: list[int]) -> ir.TensorProtocol:
        """Codes as uint4, or as int4 around their middle: the same bits but for the highest one."""
        packed = pack(np.ascontiguousarray(codes).reshape(-1))
        if not self._symmetric:
            return ir.PackedTensor(packed, ir.DataType.UINT4, shape=ir.Shape(shape))
        return ir.PackedTensor(packed ^ np.uint8(0x88), ir.DataType.INT4, shape=ir.Shape(shape))
