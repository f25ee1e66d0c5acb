import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploykit.quantize import weights as w

RNG = np.random.default_rng(0)


def node(text: str) -> ir.Node:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[?] x, float[?] w) => (float[?] y) {{ y = {text} }}'
    )
    return ir.from_proto(model).graph[0]


@pytest.mark.parametrize(
    ("text", "index", "rank", "axis"),
    [
        ("Conv (x, w)", 1, 4, 0),
        ("ConvTranspose (x, w)", 1, 4, 1),
        ("Gemm (x, w)", 1, 2, 1),
        ("Gemm <transB=1> (x, w)", 1, 2, 0),
        ("Gemm (w, x)", 0, 2, 0),
        ("Gemm <transA=1> (w, x)", 0, 2, 1),
        ("MatMul (x, w)", 1, 2, 1),
        ("MatMul (x, w)", 1, 3, 2),
        ("MatMul (w, x)", 0, 2, 0),
        ("MatMul (x, w)", 1, 1, None),
    ],
)
def test_channel_axis(text, index, rank, axis):
    assert w.channel_axis(node(text), index, rank) == axis


@pytest.mark.parametrize("bits", [7, 8])
def test_rounding_error_is_at_most_half_a_step_of_its_own_channel(bits):
    weight = (
        RNG.normal(size=(6, 4, 3, 3)).astype(np.float32) * np.logspace(-3, 1, 6, dtype=np.float32)[:, None, None, None]
    )
    scale = w.weight_scale(weight, 0, bits=bits)
    found = w.quantize_weight(weight, scale, 0, bits=bits)
    assert np.abs(found.values).max() == 2 ** (bits - 1) - 1
    assert np.all(np.abs(found.dequantized() - weight) <= scale[:, None, None, None] * 0.5001)


def test_channels_of_zeros_and_empty_weights_have_a_scale():
    assert w.weight_scale(np.zeros((2, 3), np.float32), 0).tolist() == [1.0, 1.0]
    assert w.weight_scale(np.zeros((0, 3), np.float32), 1).tolist() == [1.0, 1.0, 1.0]
    assert w.weight_scale(np.float32([1e-44, 0]), None) > 0


def test_scale_grows_until_the_bias_fits_int32():
    scale = w.fit_scale_to_bias(np.float32([1e-9, 1.0]), 0.01, np.float32([5.0, 5.0]))
    assert scale[1] == 1.0
    bias = w.quantize_bias(np.float32([5.0, 5.0]), scale * np.float32(0.01))
    assert np.allclose(bias * scale * 0.01, 5.0, rtol=1e-2)
    assert abs(int(bias[0])) < 2**31 - 1


def test_groups_share_scales_so_the_largest_bias_decides():
    scale = w.fit_scale_to_bias(np.float32([1e-9, 1e-9]), 1.0, np.float32([1.0, 2.0, 8.0, 4.0]))
    assert scale[0] == pytest.approx(8.0 / w.BIAS_LIMIT)
    assert scale[1] == pytest.approx(4.0 / w.BIAS_LIMIT)


def test_saturating_share_is_what_int16_pair_sums_overflow():
    full = np.full((64, 8), 127, np.int8)
    assert w.saturating_share(full, 1, 255) == 1.0
    assert w.saturating_share(full, 1, 100) == 0.0
    assert w.saturating_share(np.full((64, 8), 63, np.int8), 1, 255) == 0.0
    alternating = np.tile(np.int8([[127], [-127]]), (32, 8))
    assert w.saturating_share(alternating, 1, 255) == 0.0
