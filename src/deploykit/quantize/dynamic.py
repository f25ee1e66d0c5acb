"""Dynamic INT8: weights stored as integers, activations quantized while the model runs; no calibration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph
from deploykit.progress import OnProgress, Progress
from deploykit.quantize import findings as say
from deploykit.quantize.families import CONVOLUTIONS, MAC_OPS, RECURRENT
from deploykit.quantize.folding import fold_weights
from deploykit.quantize.gemm import plus_bias
from deploykit.quantize.places import Place, Rewriter, constant_reader, places, shape_of
from deploykit.quantize.plan import FloatNode, check_exclusions, is_float
from deploykit.quantize.prepare import is_constant, load_float
from deploykit.quantize.product import counts, macs_share, written
from deploykit.quantize.slices import reading, shrinks, to_int8, why_not_integers
from deploykit.report import warning

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.quantize.settings import Settings

MICROSOFT = "com.microsoft"
# Measured with onnxruntime 1.32 on one core with AVX512-VNNI: nine layers of ResNet-50 and PP-OCR, from 4.3 times (7x7,
# 512 channels) to 7 times (the first 7x7 layer), depthwise 19 times.
CONVOLUTION_STAYS = (
    "onnxruntime's ConvInteger takes 4 times as long as its float convolution, or more; --precision int8 quantizes it"
)


def quantize_dynamic(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The int8-dynamic job."""
    model, said = load_float(source)
    check_exclusions(model, settings.exclude)
    fold_weights(model)
    macs = graph.macs(model)
    on_progress(Progress("quantizing weights", source.name))
    narrow = settings.scheme is None or settings.scheme.reduce_range
    done, left = make_dynamic(model, exclude=settings.exclude, narrow=narrow, on_progress=on_progress)
    said += say.about_float(left)
    if not done:
        said.append(
            warning(
                "DK390",
                "nothing was quantized: dynamic INT8 takes MatMul, Gemm and LSTM with large constant weights",
                hint="--precision int8 with calibration data takes convolutions too",
            )
        )
    facts = written(model, output, "int8-dynamic", said)
    facts["metrics"] |= {
        "calibration": None,
        **counts(done, left),
        "int8_macs_share": macs_share(done, macs),
        "bits": 8,
    }
    return facts


def make_dynamic(
    model: ir.Model,
    *,
    exclude: tuple[str, ...] = (),
    narrow: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> tuple[list[str], list[FloatNode]]:
    """Rewrites MatMul, Gemm and LSTM with constant weights, in the main graph and in all bodies.

    MatMul(x, W) becomes Cast(MatMulInteger(q, Wq)) * (s * scale of W) with q, s, z = DynamicQuantizeLinear(x), which
    onnxruntime runs as one kernel; activations are uint8 with the range of each call, weights int8 with a scale a
    column. LSTM becomes com.microsoft.DynamicQuantizeLSTM.
    narrow: scales so wide that pairs of products do not saturate on CPUs without VNNI (about a bit of some columns).
    Returns the names of the nodes that compute in integers, and those that do not with the reason.
    """
    rewriting = _Dynamic(model, narrow=narrow)
    changed: list[str] = []
    left: list[FloatNode] = []
    found = list(places(model.graph))
    for number, place in enumerate(found):
        node = place.node
        reason = _why_float(node, exclude)
        if reason is None:
            rewriting.quantize(place)
            changed.append(node.name or "")
            on_progress(Progress("quantizing weights", node.name or node.op_type, number + 1, len(found)))
        elif reason:
            left.append(FloatNode(node.name or "", node.op_type, reason, place.owner))
    rewriting.rewriter.finish()
    if rewriting.contributed:
        model.graph.opset_imports[MICROSOFT] = 1
    return changed, left


def _why_float(node: ir.Node, exclude: tuple[str, ...]) -> str | None:
    """None: quantize. A reason: stays float and is reported. An empty text: nothing that anyone would quantize."""
    if node.domain or node.op_type not in MAC_OPS | RECURRENT:
        return ""
    if node.name in exclude or node.op_type in exclude:
        return "excluded"
    if node.op_type in CONVOLUTIONS:
        return CONVOLUTION_STAYS
    if node.op_type == "LSTM":
        return _why_float_lstm(node)
    if node.op_type in RECURRENT:
        return f"no engine has a {node.op_type} with weights in integers; --precision int8-weights stores them smaller"
    if is_constant(node.inputs[0]):
        return "its first operand is constant, and kernels take the weight as the second"
    weight = node.inputs[1]
    if not is_constant(weight):
        return "both operands are computed: there is no weight"
    if not constant_reader(weight) or not is_float(node.inputs[0]):
        return "its operands are not float32"
    shape = shape_of(weight)
    if len(shape) < 2 or 0 in shape:
        return "its weight is no matrix"
    if not shrinks(math.prod(shape), 8, shape[-1]):
        return f"its weight has only {math.prod(shape)} elements: quantizing the input costs more than it saves"
    assert weight is not None
    return why_not_integers(weight) or None


def _why_float_lstm(node: ir.Node) -> str | None:
    weights = [node.inputs[index] for index in (1, 2)]
    if not all(map(constant_reader, weights)):
        return "its weights are computed, or not float32"
    if node.attributes.get_int("layout", 0):
        return "its batch comes first (layout=1), which DynamicQuantizeLSTM does not take"
    if not is_float(node.inputs[0]):
        return "its operands are not float32"
    if not all(shrinks(math.prod(shape), 8, shape[0] * shape[1]) for shape in map(shape_of, weights)):
        return "its weights are so few that quantizing the input costs more than it saves"
    return next((reason for weight in weights if weight is not None and (reason := why_not_integers(weight))), None)


class _Dynamic:
    """Rewrites one model; an activation is quantized once for all its readers, a weight once for all."""

    def __init__(self, model: ir.Model, *, narrow: bool) -> None:
        self.rewriter = Rewriter(model)
        self._narrow = narrow
        self.contributed = False
        self._activations: dict[tuple[object, ...], tuple[ir.Value, ir.Value, ir.Value]] = {}

    def quantize(self, place: Place) -> None:
        node = place.node
        if node.op_type == "LSTM":
            self._lstm(node)
        else:
            self._matmul(node)

    def _matmul(self, node: ir.Node) -> None:
        """MatMul, or Gemm: alpha * A' * B' + beta * C (ONNX specification), alpha in the scales of B."""
        gemm = node.op_type == "Gemm"
        of = node.attributes
        activation, weight = node.inputs[0], node.inputs[1]
        assert activation is not None
        assert weight is not None
        alpha = of.get_float("alpha", 1.0) if gemm else 1.0
        values, scale = self._weight(weight, transposed=gemm and of.get_int("transB", 0) != 0, alpha=alpha)
        base, add = node.outputs[0].name, self.rewriter.before
        quantized, step, zero = self._activation(node, activation)
        if gemm and of.get_int("transA", 0) != 0:
            quantized = add(
                node, "Transpose", [quantized], f"{base}_rows", attributes={"perm": [1, 0]}, dtype=ir.DataType.UINT8
            )
        product = add(node, "MatMulInteger", [quantized, values, zero], f"{base}_integers", dtype=ir.DataType.INT32)
        product.shape = node.outputs[0].shape
        floats = add(
            node,
            "Cast",
            [product],
            f"{base}_levels",
            attributes={"to": int(ir.DataType.FLOAT)},
            like=node.outputs[0],
        )
        steps = add(node, "Mul", [step, scale], f"{base}_scales", dtype=ir.DataType.FLOAT)
        made = add(node, "Mul", [floats, steps], f"{base}_dequantized", like=node.outputs[0])
        self.rewriter.replace(node, plus_bias(self.rewriter, node, made))

    def _activation(self, node: ir.Node, value: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """uint8 integers, scale and zero point of an activation, computed once in each graph that needs them."""
        assert node.graph is not None
        key = (id(value), node.graph)
        if key not in self._activations:
            integers = self.rewriter.before(
                node, "DynamicQuantizeLinear", [value], f"{value.name}_quantized", outputs=3
            )
            maker = integers.producer()
            assert maker is not None
            for made, what in zip(maker.outputs[1:], ("scale", "zero_point"), strict=True):
                made.name = self.rewriter.free(f"{value.name}_{what}")
                made.shape = ir.Shape(())
            integers.shape = value.shape
            integers.type = maker.outputs[2].type = ir.TensorType(ir.DataType.UINT8)
            maker.outputs[1].type = ir.TensorType(ir.DataType.FLOAT)
            self._activations[key] = (integers, maker.outputs[1], maker.outputs[2])
        return self._activations[key]

    def _weight(self, value: ir.Value, *, transposed: bool, alpha: float) -> tuple[ir.Value, ir.Value]:
        """B as int8 [..., K, N] and its scales [N] times alpha."""
        key = (id(value), transposed, alpha)
        values, scale = self.rewriter.known((*key, "values")), self.rewriter.known((*key, "scale"))
        if values is None or scale is None:
            with reading(value) as weight:
                matrix = weight.T if transposed else weight
                found = to_int8(matrix, matrix.ndim - 1, summed=matrix.ndim - 2 if self._narrow else None)
            integers = np.ascontiguousarray(found.values)
            scales = np.asarray(found.scale * np.float32(alpha), np.float32)
            values = self.rewriter.constant(f"{value.name}_quantized", ir.Tensor(integers), (*key, "values"))
            scale = self.rewriter.constant(f"{value.name}_scale", ir.Tensor(scales), (*key, "scale"))
        return values, scale

    def _lstm(self, node: ir.Node) -> None:
        """com.microsoft.DynamicQuantizeLSTM: W and R as [directions, input, 4 * hidden], a scale a gate and unit."""
        self.contributed = True
        inputs = list(node.inputs) + [None] * (8 - len(node.inputs))
        parameters: list[ir.Value | None] = []
        for index in (1, 2):
            value = node.inputs[index]
            assert value is not None
            inputs[index], scale, zero = self._recurrent(value)
            parameters += [scale, zero]
        kept = [attribute for name, attribute in node.attributes.items() if name != "layout"]
        made = ir.Node(
            MICROSOFT,
            "DynamicQuantizeLSTM",
            [*inputs, *parameters],
            kept,
            num_outputs=len(node.outputs),
            name=node.name,
        )
        assert node.graph is not None
        node.graph.insert_before(node, [made])
        self.rewriter.replace_all(node, made)

    def _recurrent(self, value: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        key = (id(value), "recurrent")
        known = [self.rewriter.known((*key, what)) for what in ("values", "scale", "zero")]
        if None not in known:
            return tuple(known)  # type: ignore[return-value]
        with reading(value) as weight:
            directions, gates, size = weight.shape
            # The kernel takes a scale a gate and unit of each direction, and sums over the input.
            found = to_int8(weight.reshape(-1, size), 0, summed=1 if self._narrow else None)
        integers = np.ascontiguousarray(found.values.reshape(directions, gates, size).transpose(0, 2, 1))
        scales = found.scale.reshape(directions, gates)
        add = self.rewriter.constant
        return (
            add(f"{value.name}_quantized", ir.Tensor(integers), (*key, "values")),
            add(f"{value.name}_scale", ir.Tensor(scales), (*key, "scale")),
            add(f"{value.name}_zero_point", ir.Tensor(np.zeros(scales.shape, np.int8)), (*key, "zero")),
        )
