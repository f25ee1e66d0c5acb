"""Resize in other forms, compared with onnxruntime's own kernel for every mode."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.optimizers.rewrites.resizing import DecomposeResize, ResizeForm

COORDINATES = [
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
]  # fmt: skip


def model(attributes, scales=None, sizes=None, shape="2, 3, 6, 5", opset=19, out="A, B, C, D"):
    given = f"float[{len(scales)}] s = {{{', '.join(map(str, scales))}}}" if scales else ""
    given += f"int64[{len(sizes)}] z = {{{', '.join(map(str, sizes))}}}" if sizes else ""
    roi = ", float[0] none = {}" if opset < 13 else ""
    first = "none" if opset < 13 else ""
    inputs = f"x, {first}, s" if scales else f"x, {first}, {first}, z"
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph (float[{shape}] x) => (float[{out}] y) <{given}{roi}> {{ y = Resize <{attributes}> ({inputs}) }}"""


def applies(rewrite, text):
    made = graph.infer_shapes(ir.from_proto(onnx.parser.parse_model(text)))
    return rewrite.applies(made.graph[0], made)


SCALES = [[1.0, 1.0, 2.0, 3.0], [1.0, 1.0, 0.5, 0.6], [1.0, 1.0, 1.7, 0.4]]


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("rewrite", [DecomposeResize(), ResizeForm()], ids=lambda rewrite: rewrite.name)
def test_nearest(rewrite, coordinates, nearest, scales, unchanged_values):
    text = model(
        f'mode = "nearest", coordinate_transformation_mode = "{coordinates}", nearest_mode = "{nearest}"', scales
    )
    if applies(rewrite, text):
        unchanged_values(rewrite, text)
    # Where rounding decides, which it does in few cases only, nothing is done.
    elif isinstance(rewrite, DecomposeResize):
        assert scales != SCALES[0] or coordinates in ("align_corners", "half_pixel_symmetric")


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("coordinates", COORDINATES[:5])
@pytest.mark.parametrize(
    "mode", ["linear", "cubic", 'cubic", exclude_outside = 1, cubic_coeff_a = -0.5, nearest_mode = "floor']
)
@pytest.mark.parametrize("rewrite", [DecomposeResize(), ResizeForm()], ids=lambda rewrite: rewrite.name)
def test_linear_and_cubic(rewrite, mode, coordinates, scales, unchanged_values):
    text = model(f'mode = "{mode}", coordinate_transformation_mode = "{coordinates}"', scales)
    if isinstance(rewrite, DecomposeResize) or applies(rewrite, text):
        unchanged_values(rewrite, text, tolerance=1e-4)


@pytest.mark.parametrize("scales", [[1.0, 1.0, 0.5, 0.6], [1.0, 1.0, 2.0, 0.4], [1.0, 1.0, 2.0, 1.5]])
@pytest.mark.parametrize("mode", ["linear", "cubic", 'linear", exclude_outside = 1, nearest_mode = "floor'])
def test_antialias(mode, scales, unchanged_values):
    text = model(f'mode = "{mode}", antialias = 1', scales)
    unchanged_values(DecomposeResize(), text, tolerance=1e-4)
    assert applies(ResizeForm(), text) == (min(scales) >= 1)
    if min(scales) >= 1:
        unchanged_values(ResizeForm(), text, tolerance=1e-4)


@pytest.mark.parametrize("opset", [11, 13, 19])
def test_sizes_become_scales_when_they_say_the_same(opset, unchanged_values):
    text = model('mode = "nearest"', sizes=[2, 3, 12, 10], opset=opset)
    assert unchanged_values(ResizeForm(), text) == ["Resize"]
    attributes = 'mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"'
    text = model(attributes, sizes=[2, 3, 7, 9], opset=opset)
    unchanged_values(ResizeForm(), text)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_one_scale_for_all_axes(policy, unchanged_values):
    attributes = f'mode = "linear", keep_aspect_ratio_policy = "{policy}", axes = [3, 2]'
    sizes = [10, 18] if policy == "not_larger" else [10, 6]
    text = model(attributes, sizes=sizes, opset=18)
    unchanged_values(ResizeForm(), text)
    unchanged_values(DecomposeResize(), text)
    assert not applies(ResizeForm(), model(attributes, sizes=[7, 11], opset=18))


def test_axes_of_an_image_of_any_size(unchanged_values):
    text = model('mode = "nearest", axes = [2, 3]', scales=[2.0, 2.0], shape="N, 3, H, W")
    ops = unchanged_values(ResizeForm(), text, {"N": 1, "H": 4, "W": 5}, {"N": 2, "H": 7, "W": 3})
    assert ops == ["Resize"]
    made = graph.infer_shapes(graph.name_nodes(ir.from_proto(onnx.parser.parse_model(text))))
    ResizeForm().apply(made, list(made.graph))
    node = made.graph[0]
    assert "axes" not in node.attributes
    assert node.attributes["coordinate_transformation_mode"].as_string() == "asymmetric"
    assert np.allclose(node.inputs[2].const_value.numpy(), [1, 1, 2, 2])


def test_sizes_with_a_computed_batch(unchanged_values):
    text = """<ir_version: 8, opset_import: ["": 17]>
    agraph (float[N, 3, 6, 5] x) => (float[N, 3, 12, 10] y) <int64[3] r = {3, 12, 10}> {
        s = Shape <end = 1> (x)
        z = Concat <axis = 0> (s, r)
        y = Resize <mode = "linear"> (x, , , z)
    }"""
    unchanged_values(ResizeForm(), text, {"N": 2})
    assert "MatMul" in unchanged_values(DecomposeResize(), text, {"N": 2})


def test_what_is_not_known_is_declined(never_applies):
    crop = 'mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"'
    text = model(crop, [1.0, 1.0, 2.0, 2.0]).replace("(x, , s)", "(x, r, s)")
    text = text.replace("<float", "<float[8] r = {0, 0, 0, 0, 1, 1, 1, 1}, float")
    never_applies(ResizeForm(), text)
    never_applies(DecomposeResize(), text)
    never_applies(DecomposeResize(), model('mode = "linear"', [1.0, 1.0, 2.0, 2.0], shape="N, 3, H, W"))
    computed = model('mode = "linear"', [1.0, 1.0, 0.6, 0.6], out="2, 3, 3, 3").replace("float[4] s =", "float[4] t =")
    computed = computed.replace("{ y =", "{ u = Abs (x) m = ReduceMax <keepdims = 0> (u) s = Mul (m, t) y =")
    never_applies(ResizeForm(), computed)
    never_applies(DecomposeResize(), computed)
    plain = 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
    never_applies(ResizeForm(), model(plain, [1.0, 1.0, 2.0, 2.0]))
