"""Random small graphs: quantized, they are valid, keep their interface, and stay near float."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantize_models import AFFINE, SYMMETRIC, run, sqnr_db

from deploykit.data.request import data_request
from deploykit.progress import silent
from deploykit.quantize.settings import Settings
from deploykit.quantize.static import quantize_static
from deploykit.target import QuantizationScheme, get_target

if TYPE_CHECKING:
    from pathlib import Path

SCHEMES = {
    "symmetric": SYMMETRIC,
    "affine": AFFINE,
    "litert": QuantizationScheme("int8", symmetric_activations=False, quantize_bias=True, quantize_residual=True),
    "coreml": get_target("coreml").scheme,
}
SQNR = 20.0


class Builder:
    """Grows one graph; `value` is the newest tensor, of shape `shape` [1, channels, *spatial]."""

    def __init__(self, seed: int, spatial: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shape = [1, 4, *[7] * spatial]
        self.start = list(self.shape)
        self.value = "x"

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """A weight whose output channels differ tenfold, as an initializer or behind a node that moves it."""
        name = f"w{len(self.weights)}"
        array = self.rng.normal(size=shape) * scale
        self.weights.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Appends a node on the newest value."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, inputs, [name], name=f"n{len(self.nodes)}", **attributes))
        self.value = name
        return name

    def conv(self, kind: str) -> None:
        """A convolution of the kind, which keeps the spatial size."""
        channels, rank = self.shape[1], len(self.shape) - 2
        dilation = 2 if kind == "dilated" else 1
        groups = {"depthwise": channels, "grouped": 2, "transposed_groups": 2}.get(kind, 1)
        pads = [dilation] * (2 * rank)
        common = {"group": groups, "pads": pads, "kernel_shape": [3] * rank, "dilations": [dilation] * rank}
        size = channels // groups * 3**rank
        shape = (channels, channels // groups, *[3] * rank)
        bias = self.weight(channels)
        op = "ConvTranspose" if kind.startswith("transposed") else "Conv"
        self.add(op, self.value, self.weight(*shape, scale=size**-0.5), bias, **common)

    def residual(self) -> None:
        """A convolution and its input, added."""
        before = self.value
        self.conv("plain")
        self.add("Add", self.value, before)

    def concat(self) -> None:
        """Two convolutions side by side."""
        before = self.value
        self.conv("plain")
        one, self.value = self.value, before
        self.conv("depthwise")
        self.add("Concat", one, self.value, axis=1)
        self.shape[1] *= 2

    def activation(self, op: str) -> None:
        """An activation."""
        self.add(op, self.value)

    def moved_weight(self) -> None:
        """MatMul along the last axis by a transposed constant."""
        last = self.shape[-1]
        kept = self.value
        turned = self.add("Transpose", self.weight(last, last, scale=last**-0.5))
        self.add("MatMul", kept, turned)
        self.add("Add", self.value, self.weight(last))

    def attention(self) -> None:
        """A product of two activations, with probabilities."""
        before = self.value
        turned = self.add(
            "Transpose", before, perm=[*range(len(self.shape) - 2), len(self.shape) - 1, len(self.shape) - 2]
        )
        self.add("MatMul", before, turned)
        self.add("Softmax", self.value, axis=-1)
        self.add("MatMul", self.value, before)

    def model(self) -> onnx.ModelProto:
        """The finished model, with a Flatten and a Gemm at its end."""
        self.add("Flatten", self.value)
        size = int(np.prod(self.shape))
        self.add("Gemm", self.value, self.weight(5, size, scale=size**-0.5), self.weight(5), transB=1)
        info = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            self.nodes, "g", [info("x", 1, self.start)], [info(self.value, 1, [1, 5])], self.weights
        )
        made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(made, full_check=True)
        return made


BLOCKS = {
    **{kind: lambda b, k=kind: b.conv(k) for kind in ("plain", "depthwise", "grouped", "dilated", "transposed")},
    "transposed_groups": lambda b: b.conv("transposed_groups"),
    "residual": Builder.residual,
    "concat": Builder.concat,
    "moved_weight": Builder.moved_weight,
    "attention": Builder.attention,
    **{op: lambda b, o=op: b.activation(o) for op in ("Relu", "Sigmoid", "HardSwish", "Tanh")},
}


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    spatial=st.integers(1, 3),
    blocks=st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=5),
    scheme=st.sampled_from(sorted(SCHEMES)),
    correct=st.booleans(),
    smooth=st.sampled_from([None, 0.5]),
)
def test_any_graph(tmp_path_factory, seed, spatial, blocks, scheme, correct, smooth):
    check(tmp_path_factory.mktemp("g"), seed, spatial, blocks, scheme, correct=correct, smooth=smooth)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("spatial", "blocks"),
    [
        (2, ["plain", "Relu", "depthwise", "residual", "concat"]),
        (1, ["grouped", "HardSwish", "dilated", "moved_weight"]),
        (3, ["transposed_groups", "Relu", "plain"]),
        (1, ["moved_weight", "attention"]),
    ],
)
def test_some_graphs(tmp_path, spatial, blocks, scheme):
    check(tmp_path, 0, spatial, blocks, scheme, correct=True, smooth=None)


def check(
    folder: Path, seed: int, spatial: int, blocks: list[str], scheme: str, *, correct: bool, smooth: float | None
) -> None:
    """Quantizes the graph of the blocks and holds it to its float form."""
    builder = Builder(seed, spatial)
    for block in blocks:
        BLOCKS[block](builder)
    made = builder.model()
    onnx.save(made, folder / "m.onnx")
    feeds = [builder.rng.normal(size=builder.start).astype(np.float32) for _ in range(10)]
    (folder / "calib").mkdir()
    for index, feed in enumerate(feeds):
        np.savez(folder / "calib" / f"{index}.npz", x=feed)
    wanted = Settings(
        scheme=SCHEMES[scheme],
        data=data_request(str(folder / "calib"), "calibration"),
        bias_correction=correct,
        smooth_quant=smooth,
    )
    facts = quantize_static(folder / "m.onnx", folder / "q.onnx", wanted, silent)
    quantized = onnx.load(folder / "q.onnx")
    onnx.checker.check_model(quantized, full_check=True)
    for ours, theirs in ((made.graph.input, quantized.graph.input), (made.graph.output, quantized.graph.output)):
        assert [value.name for value in ours] == [value.name for value in theirs]
    kept = [node.name for node in quantized.graph.node]
    order = [node.name for node in made.graph.node if node.name in kept]
    assert [name for name in kept if name in set(order)] == order
    assert facts["metrics"]["quantized_nodes"] >= 1
    expected = np.stack([run(folder / "m.onnx", {"x": feed}, optimize=False)[builder.value] for feed in feeds])
    found = np.stack([run(folder / "q.onnx", {"x": feed})[builder.value] for feed in feeds])
    assert sqnr_db(expected, found) >= SQNR
