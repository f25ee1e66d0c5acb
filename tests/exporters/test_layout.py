"""A layout change keeps the values: checked with onnx's own evaluator, on graphs with Transposes of theirs too."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from deploykit.artifact import TensorSpec
from deploykit.errors import UsageError
from deploykit.exporters.layout import apply, changed, layout_specs, to_new, to_old

HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
GRAPHS = {
    "plain": "g (float[n,4,5,3] x) => (float[n,4,5,3] y) {y = Neg(x)}",
    "turned": "g (float[n,4,5,3] x) => (float[n,4,5,3] y) {a = Transpose<perm = [0,3,1,2]>(x) b = Neg(a) "
    "y = Transpose<perm = [0,2,3,1]>(b)}",
    "used twice": "g (float[n,4,5,3] x) => (float[n,4,5,3] y, float[n,4,5,3] z) {a = Transpose<perm = [0,3,1,2]>(x) "
    "b = Neg(a) y = Transpose<perm = [0,2,3,1]>(b) z = Add(x, y)}",
    "turned input is the output": "g (float[n,4,5,3] x) => (float[n,3,4,5] y) {y = Transpose<perm = [0,3,1,2]>(x)}",
    "only turned back": "g (float[n,3,4,5] x) => (float[n,4,5,3] y) {y = Transpose<perm = [0,2,3,1]>(x)}",
}


def outputs(proto, feeds):
    session = ReferenceEvaluator(proto)
    return dict(zip(session.output_names, session.run(None, feeds), strict=True))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("which", [("x",), ("y",), ("x", "y")])
def test_values_are_the_same_in_the_other_order(name, which):
    proto = parser.parse_model(HEAD + GRAPHS[name])
    shapes = {v.name: [d.dim_value or 2 for d in v.type.tensor_type.shape.dim] for v in proto.graph.input}
    feeds = {k: np.random.default_rng(0).standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    layouts = dict.fromkeys(which, "nchw")
    model = ir.from_proto(proto)
    apply(model, layouts)
    made = ir.to_proto(model)
    found = to_old(outputs(made, to_new(feeds, layouts)), layouts)
    for key, expected in outputs(proto, feeds).items():
        np.testing.assert_array_equal(found[key], expected)


def test_transposes_that_undo_each_other_go():
    model = ir.from_proto(parser.parse_model(HEAD + GRAPHS["turned"]))
    apply(model, {"x": "nchw", "y": "nchw"})
    assert [node.op_type for node in model.graph] == ["Neg"]
    assert [str(dim) for dim in model.graph.inputs[0].shape] == ["n", "3", "4", "5"]


SPECS = (TensorSpec("x", "float32", ("n", 4, 5, 3)), TensorSpec("y", "float32", (1, 10)))


@pytest.mark.parametrize(
    ("wanted", "there", "expected"),
    [
        ({"": "nchw"}, {"x": "nhwc"}, {"x": "nchw"}),
        ({"": "nhwc"}, {"x": "nhwc"}, {}),
        ({"x": "nchw"}, {}, {"x": "nchw"}),
        ({"": "nchw", "x": "nhwc"}, {"x": "nhwc"}, {}),
    ],
)
def test_what_changes(wanted, there, expected):
    assert changed(wanted, there, SPECS) == expected


@pytest.mark.parametrize("wanted", [{"": "nchw"}, {"y": "nchw"}, {"nobody": "nchw"}])
def test_what_cannot_change_is_named(wanted):
    with pytest.raises(UsageError) as raised:
        changed(wanted, {}, SPECS)
    assert raised.value.code == "DK691"
    assert "x" in raised.value.hint


def test_specs_turn_too():
    assert layout_specs(SPECS, {"x": "nchw"})[0].shape == ("n", 3, 4, 5)
