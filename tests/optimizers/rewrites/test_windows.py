"""Windows with their pads written out, compared with onnxruntime's own kernels."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deploykit.optimizers.rewrites.windows import ExplicitWindows


def model(call, x="float[N, 2, 9, 8] x", more="", opset=19):
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph ({x}{more}) => (float[N, A, B, C] y) {{ y = {call} }}"""


@pytest.mark.parametrize("opset", [11, 19])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("strides", ["1, 1", "2, 3"])
@pytest.mark.parametrize(
    ("call", "more"),
    [
        ("Conv <{}> (x, w)", ", float[3, 2, 3, 2] w"),
        ("MaxPool <{}, kernel_shape = [3, 2]> (x)", ""),
        ("AveragePool <{}, kernel_shape = [3, 2]> (x)", ""),
        ("AveragePool <{}, kernel_shape = [3, 2], count_include_pad = 1> (x)", ""),
    ],
)
def test_automatic_pads(call, more, strides, auto, opset, unchanged_values):
    text = model(call.format(f'auto_pad = "{auto}", strides = [{strides}]'), more=more, opset=opset)
    unchanged_values(ExplicitWindows(), text, {"N": 2}, tolerance=1e-4)


def test_automatic_pads_of_unknown_sizes(unchanged_values, never_applies):
    x = "float[N, 2, H, W] x"
    call = 'MaxPool <auto_pad = "SAME_UPPER", kernel_shape = [3, 2]{}> (x)'
    unchanged_values(ExplicitWindows(), model(call.format(""), x), {"N": 1, "H": 4, "W": 7}, {"N": 2, "H": 9, "W": 3})
    never_applies(ExplicitWindows(), model(call.format(", strides = [2, 2]"), x))


@settings(max_examples=60, deadline=None)
@given(
    op=st.sampled_from(["MaxPool", "AveragePool"]),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
)
def test_any_window_without_ceil_mode(op, kernel, strides, pads, unchanged_values):
    assume(all(pads[at] < kernel[at % 2] for at in range(4)))
    # A window wholly in the padding has no values; none of the two means the same there.
    attributes = f"kernel_shape = {list(kernel)}, strides = {list(strides)}, pads = {list(pads)}, ceil_mode = 1"
    rewrite, text = ExplicitWindows(), model(f"{op} <{attributes}> (x)")
    if applies(rewrite, text):
        unchanged_values(rewrite, text, {"N": 2}, {"N": 1})


def applies(rewrite, text):
    import onnx
    import onnx_ir as ir

    from deploykit import graph

    made = graph.infer_shapes(ir.from_proto(onnx.parser.parse_model(text)))
    return rewrite.applies(made.graph[0], made)


def test_ceil_mode_applies():
    assert applies(ExplicitWindows(), model("MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)"))


@pytest.mark.parametrize("strides", ["1, 1", "2, 1"])
@pytest.mark.parametrize("pads", ["0, 0, 0, 0", "1, 1, 2, 0"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("shape", ["N, 2, 9, 8", "N, 2, H, 8"])
def test_dilated_pool_by_slices(op, pads, strides, shape, unchanged_values):
    counted = ", count_include_pad = 1" if op == "AveragePool" else ""
    text = model(
        f"{op} <kernel_shape = [3, 2], dilations = [2, 3], strides = [{strides}], pads = [{pads}]{counted}> (x)",
        f"float[{shape}] x",
    )
    assert op not in unchanged_values(ExplicitWindows(), text, {"N": 2, "H": 9}, {"N": 1, "H": 6})


def test_pools_that_need_their_indices_or_count_no_padding_stay(never_applies):
    text = """<ir_version: 8, opset_import: ["": 19]>
    agraph (float[N, 2, 9, 8] x) => (float[N, 2, 8, 7] y, int64[N, 2, 8, 7] i) {
        y, i = MaxPool <kernel_shape = [2, 2], auto_pad = "VALID"> (x)
    }"""
    never_applies(ExplicitWindows(), text)
    call = "AveragePool <kernel_shape = [2, 2], dilations = [2, 2], pads = [1, 1, 1, 1]> (x)"
    never_applies(ExplicitWindows(), model(call))
    never_applies(ExplicitWindows(), model("MaxPool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (x)"))


@pytest.mark.parametrize(
    "attributes",
    [
        "pads = [1, 0, 0, 2], strides = [2, 3]",
        "pads = [1, 1, 2, 2], output_padding = [1, 1], strides = [2, 2]",
        'auto_pad = "SAME_UPPER", strides = [2, 2]',
        'auto_pad = "SAME_LOWER", strides = [2, 1]',
        'auto_pad = "VALID", strides = [2, 2]',
        "output_shape = [10, 8], strides = [2, 2]",
        'output_shape = [9, 8], strides = [2, 2], auto_pad = "SAME_UPPER"',
        "output_shape = [8, 9], strides = [2, 2], dilations = [1, 2]",
    ],
)
@pytest.mark.parametrize("opset", [11, 19])
def test_transposed_convolution(attributes, opset, unchanged_values):
    text = model(
        f"ConvTranspose <{attributes}> (x, w, b)", "float[N, 2, 5, 4] x", ", float[2, 3, 3, 3] w, float[3] b", opset
    )
    unchanged_values(ExplicitWindows(), text, {"N": 2}, tolerance=1e-4)


def test_transposed_convolution_of_unknown_size(unchanged_values):
    call = 'ConvTranspose <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)'
    text = model(call, "float[N, 2, H, 4] x", ", float[2, 3, 3, 3] w")
    unchanged_values(ExplicitWindows(), text, {"N": 2, "H": 5}, {"N": 1, "H": 3}, tolerance=1e-4)
