"""Every lowering against onnxruntime: the package is reloaded and evaluated by Apple's documented semantics."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from deploykit.reference import Reference

X = "float[2,3,8,8] x"
M = "float[2,6] x"
PLANE = (2, 3, 8, 8)
MATRIX = (2, 6)
W = "float[4,3,3,3] w"
GROUPED = "float[6,1,3,3] w"


def values(count, start=-1.0, step=0.07):
    return "{" + ",".join(f"{((start + step * i) % 2) - 1:.3f}" for i in range(count)) + "}"


def weight(shape):
    return f"float[{','.join(map(str, shape))}] w = {values(int(np.prod(shape)))}"


# name: (inputs, outputs, constants, body). Inputs are random, one seed for all.
CASES = {
    "conv": (X, "float[2,4,8,8] y", weight((4, 3, 3, 3)), "y = Conv <pads=[1,1,1,1]> (x, w)"),
    "conv_bias_stride": (
        X,
        "float[2,4,3,4] y",
        weight((4, 3, 3, 3)) + ", float[4] b = {0.1,-0.2,0.3,0.4}",
        "y = Conv <strides=[3,2], pads=[0,1,1,1]> (x, w, b)",
    ),
    "conv_dilated": (X, "float[2,4,4,4] y", weight((4, 3, 3, 3)), "y = Conv <dilations=[2,2]> (x, w)"),
    "conv_grouped": (X, "float[2,6,6,6] y", weight((6, 1, 3, 3)), "y = Conv <group=3> (x, w)"),
    "conv_same_upper": (
        X,
        "float[2,4,4,4] y",
        weight((4, 3, 2, 2)),
        'y = Conv <auto_pad="SAME_UPPER", strides=[2,2]> (x, w)',
    ),
    "conv_same_lower": (X, "float[2,4,8,8] y", weight((4, 3, 2, 2)), 'y = Conv <auto_pad="SAME_LOWER"> (x, w)'),
    "conv_1d": ("float[1,3,9] x", "float[1,4,9] y", weight((4, 3, 3)), "y = Conv <pads=[1,1]> (x, w)"),
    "conv_3d": ("float[1,2,4,4,4] x", "float[1,2,3,3,3] y", weight((2, 2, 2, 2, 2)), "y = Conv (x, w)"),
    "conv_transpose": (
        X,
        "float[2,2,17,17] y",
        weight((3, 2, 3, 3)),
        "y = ConvTranspose <strides=[2,2]> (x, w)",
    ),
    "conv_transpose_output_padding": (
        X,
        "float[2,2,16,16] y",
        weight((3, 2, 3, 3)) + ", float[2] b = {0.5,-0.5}",
        "y = ConvTranspose <strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]> (x, w, b)",
    ),
    "conv_transpose_beyond": (
        X,
        "float[2,2,16,16] y",
        weight((3, 2, 1, 1)) + ", float[2] b = {0.5,-0.5}",
        "y = ConvTranspose <strides=[2,2], output_padding=[1,1]> (x, w, b)",
    ),
    "max_pool": (X, "float[2,3,4,4] y", "", "y = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x)"),
    "max_pool_ceil": (
        X,
        "float[2,3,4,4] y",
        "",
        "y = MaxPool <kernel_shape=[3,3], strides=[2,2], ceil_mode=1> (x)",
    ),
    "average_pool_padded": (
        X,
        "float[2,3,8,8] y",
        "",
        "y = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1]> (x)",
    ),
    "average_pool_counting_padding": (
        X,
        "float[2,3,8,8] y",
        "",
        "y = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1> (x)",
    ),
    "average_pool_ceil": (
        X,
        "float[2,3,4,4] y",
        "",
        "y = AveragePool <kernel_shape=[3,3], strides=[2,2], ceil_mode=1> (x)",
    ),
    "global_average_pool": (X, "float[2,3,1,1] y", "", "y = GlobalAveragePool (x)"),
    "global_max_pool": (X, "float[2,3,1,1] y", "", "y = GlobalMaxPool (x)"),
    "batch_norm": (
        X,
        "float[2,3,8,8] y",
        "float[3] g = {1,2,3}, float[3] b = {0,1,-1}, float[3] m = {0.1,0.2,-0.3}, float[3] v = {1,0.5,0.001}",
        "y = BatchNormalization <epsilon=0.01> (x, g, b, m, v)",
    ),
    "batch_norm_of_a_matrix": (
        "float[4,3] x",
        "float[4,3] y",
        "float[3] g = {1,2,3}, float[3] b = {0,1,-1}, float[3] m = {0.1,0.2,-0.3}, float[3] v = {1,0.5,2}",
        "y = BatchNormalization (x, g, b, m, v)",
    ),
    "instance_norm": (
        X,
        "float[2,3,8,8] y",
        "float[3] g = {1,2,3}, float[3] b = {0,1,-1}",
        "y = InstanceNormalization <epsilon=0.1> (x, g, b)",
    ),
    "layer_norm": (
        M,
        "float[2,6] y",
        "float[6] g = {1,2,3,4,5,6}, float[6] b = {0,1,-1,0,1,-1}",
        "y = LayerNormalization <epsilon=0.1> (x, g, b)",
    ),
    "lrn": ("float[1,5,2,2] x", "float[1,5,2,2] y", "", "y = LRN <size=3, alpha=0.5, beta=0.6, bias=1.5> (x)"),
    "gemm_linear": (M, "float[2,4] y", weight((6, 4)) + ", float[4] c = {1,2,3,4}", "y = Gemm (x, w, c)"),
    "gemm_trans_b_beta": (
        M,
        "float[2,4] y",
        weight((4, 6)) + ", float[4] c = {1,2,3,4}",
        "y = Gemm <transB=1, beta=0.5> (x, w, c)",
    ),
    "gemm_general": (
        "float[6,2] x",
        "float[2,4] y",
        weight((6, 4)) + ", float[2,1] c = {1,2}",
        "y = Gemm <transA=1, alpha=0.5, beta=2.0> (x, w, c)",
    ),
    "matmul_vectors": ("float[6] x", "float[4] y", weight((6, 4)), "y = MatMul (x, w)"),
    "matmul_batched": ("float[2,3,4] x, float[2,4,5] z", "float[2,3,5] y", "", "y = MatMul (x, z)"),
    "reshape_zero_is_counted_from_the_left": (
        "float[2,6,4] x",
        "float[2,3,8] y",
        "int64[3] s = {0,3,-1}",
        "y = Reshape (x, s)",
    ),
    "reshape_to_more_axes_with_zero": (
        "float[2,6] x",
        "float[2,1,6,1] y",
        "int64[4] s = {0,1,-1,1}",
        "y = Reshape (x, s)",
    ),
    "flatten_axis_2": (X, "float[6,64] y", "", "y = Flatten <axis=2> (x)"),
    "transpose": (X, "float[8,2,3,8] y", "", "y = Transpose <perm=[2,0,1,3]> (x)"),
    "squeeze": ("float[1,4,1] x", "float[4] y", "", "y = Squeeze (x)"),
    "unsqueeze": (M, "float[1,2,6,1] y", "int64[2] a = {0,-1}", "y = Unsqueeze (x, a)"),
    "concat": ("float[2,3] x, float[2,2] z", "float[2,5] y", "", "y = Concat <axis=-1> (x, z)"),
    "split": (M, "float[2,2] y, float[2,4] z", "int64[2] s = {2,4}", "y, z = Split <axis=1> (x, s)"),
    "slice": (
        M,
        "float[2,2] y",
        "int64[1] s = {1}, int64[1] e = {9223372036854775807}, int64[1] a = {1},int64[1] t = {3}",
        "y = Slice (x, s, e, a, t)",
    ),
    "slice_backwards": (
        M,
        "float[2,3] y",
        "int64[1] s = {-1}, int64[1] e = {-9223372036854775807}, int64[1] a = {1},int64[1] t = {-2}",
        "y = Slice (x, s, e, a, t)",
    ),
    "gather_negative": (M, "float[2,3] y", "int64[3] i = {0,-1,2}", "y = Gather <axis=1> (x, i)"),
    "pad": (M, "float[3,8] y", "int64[4] p = {0,2,1,0}, float v = {1.5}", "y = Pad (x, p, v)"),
    "pad_reflect": (X, "float[2,3,10,9] y", "int64[8] p = {0,0,1,0,0,0,1,1}", 'y = Pad <mode="reflect"> (x, p)'),
    "pad_negative": (M, "float[2,4] y", "int64[4] p = {0,-1,0,-1}", "y = Pad (x, p)"),
    "expand": ("float[3,1] x", "float[2,3,4] y", "int64[3] s = {2,1,4}", "y = Expand (x, s)"),
    "tile": (M, "float[4,18] y", "int64[2] r = {2,3}", "y = Tile (x, r)"),
    "depth_to_space": ("float[1,8,2,2] x", "float[1,2,4,4] y", "", "y = DepthToSpace <blocksize=2> (x)"),
    "depth_to_space_crd": (
        "float[1,8,2,2] x",
        "float[1,2,4,4] y",
        "",
        'y = DepthToSpace <blocksize=2, mode="CRD"> (x)',
    ),
    "space_to_depth": ("float[1,2,4,4] x", "float[1,8,2,2] y", "", "y = SpaceToDepth <blocksize=2> (x)"),
    "clip": (M, "float[2,6] y", "float a = {-0.5}, float b = {0.5}", "y = Clip (x, a, b)"),
    "clip_one_side": (M, "float[2,6] y", "float b = {0.5}", "y = Clip (x, , b)"),
    "cast_to_int_and_back": (
        M,
        "float[2,6] y",
        "float f = {3.7}",
        "s = Mul (x, f)\n i = Cast <to=7> (s)\n y = Cast <to=1> (i)",
    ),
    "where": ("float[2,6] x, float[2,6] z", "float[2,6] y", "", "c = Greater (x, z)\n y = Where (c, x, z)"),
    "where_scalar": (
        M,
        "float[2,6] y",
        "float o = {1.0}, float n = {-1.0}, float t = {0.2}",
        "c = Greater (x, t)\n y = Where (c, o, n)",
    ),
    "logic": (
        "float[2,6] x, float[2,6] z",
        "float[2,6] y",
        "float t = {0.2}",
        (
            "a = Less (x, t)\n b = GreaterOrEqual (z, t)\n c = Xor (a, b)\n d = Not (c)\n e = Equal (a, d)\n"
            "f = And (d, e)\n g = Or (f, a)\n y = Cast <to=1> (g)"
        ),
    ),
    "pow": (
        M,
        "float[2,6] y",
        "float two = {2.0}, float three = {3.0}",
        "a = Pow (x, two)\n b = Pow (x, three)\n y = Add (a, b)",
    ),
    "max_min_mean_sum": (
        "float[2,6] x, float[2,6] z",
        "float[2,6] y",
        "float[6] k = {0,1,-1,0.5,0.2,-0.3}",
        "a = Max (x, z, k)\n b = Min (x, z)\n c = Mean (a, b, k)\n y = Sum (a, b, c)",
    ),
    "int_div": (
        M,
        "int64[2,6] y",
        "float f = {10.0}, int64 d = {-3}",
        "s = Mul (x, f)\n i = Cast <to=7> (s)\n y = Div (i, d)",
    ),
    "arg_max": (M, "int64[2] y", "", "y = ArgMax <axis=1, keepdims=0> (x)"),
    "top_k": (M, "float[2,3] y, int64[2,3] i", "int64[1] k = {3}", "y, i = TopK (x, k)"),
    "cum_sum": (M, "float[2,6] y", "int64 a = {1}", "y = CumSum <exclusive=1, reverse=1> (x, a)"),
    "softmax": (M, "float[2,6] y", "", "y = Softmax <axis=0> (x)"),
    "log_softmax": (M, "float[2,6] y", "", "y = LogSoftmax (x)"),
    "prelu": (X, "float[2,3,8,8] y", "float[3,1,1] s = {0.1,0.2,0.3}", "y = PRelu (x, s)"),
    "reduce_mean": (X, "float[2,3] y", "int64[2] a = {2,-1}", "y = ReduceMean <keepdims=0> (x, a)"),
    "reduce_l2_all": (M, "float[1,1] y", "", "y = ReduceL2 (x)"),
    "reduce_log_sum_exp": (M, "float[2] y", "int64[1] a = {1}", "y = ReduceLogSumExp <keepdims=0> (x, a)"),
    "quantize_dequantize": (
        M,
        "float[2,6] y",
        "float s = {0.02}, uint8 z = {120}",
        "q = QuantizeLinear (x, s, z)\n y = DequantizeLinear (q, s, z)",
    ),
}
CASES |= {
    "resize_nearest": (
        X,
        "float[2,3,16,24] y",
        "float[4] s = {1,1,2,3}",
        'y = Resize <mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"> (x, , s)',
    ),
    "resize_nearest_half_pixel": (X, "float[2,3,16,16] y", "float[4] s = {1,1,2,2}", "y = Resize (x, , s)"),
    "resize_linear": (X, "float[2,3,16,24] y", "int64[4] z = {2,3,16,24}", 'y = Resize <mode="linear"> (x, , , z)'),
    "resize_linear_corners": (
        X,
        "float[2,3,16,16] y",
        "float[4] s = {1,1,2,2}",
        'y = Resize <mode="linear", coordinate_transformation_mode="align_corners"> (x, , s)',
    ),
    "constant_of_shape_expand": (
        M,
        "float[3,2,6] y",
        "int64[3] s = {3,1,1}",
        "o = ConstantOfShape <value = float[1] {2.0}> (s)\n e = Expand (x, s)\n y = Add (o, e)",
    ),
}
UNARY = [
    "Abs", "Neg", "Exp", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Tanh", "Sigmoid", "Relu", "Softsign", "Softplus",
    "Floor", "Ceil", "Sign", "Round", "Erf", "LeakyRelu", "HardSigmoid", "HardSwish", "Elu", "Selu", "Celu", "Mish",
    "ThresholdedRelu", "Reciprocal", "Asin", "Acos", "Atanh", "Identity", "Dropout", "Gelu",
]  # fmt: skip
CASES |= {name.lower(): (M, "float[2,6] y", "", f"y = {name} (x)") for name in UNARY}
CASES |= {
    "sqrt_log": (M, "float[2,6] y", "float e = {1.5}", "a = Add (x, e)\n b = Sqrt (a)\n y = Log (b)"),
    "gelu_tanh": (M, "float[2,6] y", "", 'y = Gelu <approximate="tanh"> (x)'),
}


def text_of(case, opset=20):
    inputs, outputs, constants, body = case
    return f"""<ir_version: 9, opset_import: ["" : {opset}]>
    g ({inputs}) => ({outputs}) <{constants}> {{ {body} }}"""


def random_feeds(model, seed=0):
    generator = np.random.default_rng(seed)
    return {
        value.name: generator.uniform(-0.98, 0.98, [d.dim_value or 3 for d in value.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for value in model.graph.input
    }


@pytest.mark.parametrize("name", CASES)
def test_lowering_equals_onnxruntime(name, save, build, evaluate):
    model = onnx.parser.parse_model(text_of(CASES[name]))
    path = save(model)
    feeds = random_feeds(model)
    expected = Reference(path).predict(feeds)
    result, package = build(path)
    assert [f for f in result["findings"] if f["severity"] == "error"] == []
    made = evaluate(package, feeds)
    for output, array in expected.items():
        assert made[output].shape == array.shape
        np.testing.assert_allclose(made[output], array, rtol=2e-5, atol=2e-6)
