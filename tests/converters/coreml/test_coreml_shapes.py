"""Ranges and sets of sizes: what the package allows, what the simulation refuses, and what random data keeps to."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import parser

import deploykit
from deploykit.converters.coreml.runtime import SimulatedRuntime
from deploykit.converters.coreml.shapes import Flexibility, shapes_in, write_shapes
from deploykit.errors import DataError
from deploykit.reference import Reference

LINEAR = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[batch,4] x) => (float[batch,3] y)
<float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}> { [mm] y = MatMul (x, w) }"""
PAIR = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[batch,n] x, float[batch,k] z, float[2] c) => (float[batch,s] y, float[2] d)
{ [join] y = Concat <axis=1> (x, z) d = Relu (c) }"""
IOS18 = {"minimum_deployment_target": "iOS18"}
RANDOM = np.random.default_rng(0)


def spec_of(package):
    from deploykit.converters.coreml.inspect import open_spec

    return open_spec(package)


def errors(result):
    return [(f["code"], f["message"]) for f in result["findings"] if f["severity"] == "error"]


def test_a_set_of_batch_sizes_is_enumerated_and_nothing_else_is_taken(build, save, evaluate):
    model = save(LINEAR)
    result, package = build(model, dims={"batch": [1, 8, 1, 8]})
    assert errors(result) == []
    found = shapes_in(spec_of(package))
    assert found.shapes == {"x": ((1, 4), (8, 4))}
    assert (found.usual, found.ranges) == ({"x": (1, 4)}, {})
    for count in (1, 8):
        x = RANDOM.normal(size=(count, 4)).astype(np.float32)
        made = evaluate(package, {"x": x})["y"]
        assert made.shape == (count, 3)  # on devices a batch was seen to collapse to 1 without a word
        np.testing.assert_allclose(made, Reference(model).predict({"x": x})["y"], rtol=1e-5)
    runtime = SimulatedRuntime(package)
    assert runtime.bounds == {"x": [[1, 8, 1, 8], [4, 4]]}
    for count in (2, 9):
        with pytest.raises(
            DataError, match=rf"'x' has shape \[{count}, 4\], which the package does not take"
        ) as caught:
            runtime.predict({"x": np.zeros((count, 4), np.float32)})
        assert caught.value.code == "DK547"
        assert caught.value.context == ("it takes [1, 4] or [8, 4]",)


@pytest.mark.parametrize(
    ("bounds", "told"), [([1, 8, 1, 8], "[1, 4] or [8, 4]"), ([1, 8], "[1..8, 4]"), ([2, 2], None)]
)
def test_inspect_says_which_shapes_are_taken(build, save, bounds, told):
    _, package = build(save(LINEAR), dims={"batch": bounds})
    found = deploykit.inspect(package).metrics
    assert found.get("takes") == (None if told is None else {"x": told})


def test_the_first_size_is_the_default(build, save):
    _, package = build(save(LINEAR), dims={"batch": [1, 8, 8, 1]})
    assert shapes_in(spec_of(package)).usual == {"x": (8, 4)}


@pytest.mark.parametrize("bounds", [[2, 6], [3, 3]])
def test_ranges_are_kept_to_as_well(build, save, bounds):
    _, package = build(save(LINEAR), dims={"batch": bounds})
    runtime = SimulatedRuntime(package)
    for count in {bounds[0], sum(bounds) // 2, bounds[1]}:
        assert runtime.predict({"x": np.ones((count, 4), np.float32)})["y"].shape == (count, 3)
    for count in (bounds[0] - 1, bounds[1] + 1):
        with pytest.raises(DataError, match="does not take"):
            runtime.predict({"x": np.ones((count, 4), np.float32)})


def test_two_inputs_with_two_shapes_each_belong_together_by_position(build, save, evaluate):
    model = save(PAIR)
    dims = {"batch": [1, 8, 1, 8], "n": [2, 3, 2, 3], "k": [5, 5]}
    result, package = build(model, dims=dims, **IOS18)
    assert errors(result) == []
    found = shapes_in(spec_of(package))
    # coremltools alone would move the repeated default to the front of z's list.
    assert found.shapes == {
        "x": ((1, 2), (1, 3), (8, 2), (8, 3)),
        "z": ((1, 5), (1, 5), (8, 5), (8, 5)),
    }
    assert found.usual == {"x": (1, 2), "z": (1, 5), "c": (2,)}
    for x_shape, z_shape in zip(found.shapes["x"], found.shapes["z"], strict=True):
        feeds = {
            name: RANDOM.normal(size=shape).astype(np.float32)
            for name, shape in (("x", x_shape), ("z", z_shape), ("c", (2,)))
        }
        for name, array in Reference(model).predict(feeds).items():
            np.testing.assert_array_equal(evaluate(package, feeds)[name], array)
    runtime = SimulatedRuntime(package)
    mixed = {"x": np.ones((1, 2), np.float32), "z": np.ones((8, 5), np.float32), "c": np.ones(2, np.float32)}
    with pytest.raises(DataError, match=r"does not take 'x' \[1, 2\], 'z' \[8, 5\] together"):
        runtime.predict(mixed)


def test_lists_of_several_inputs_need_ios18_and_the_refusal_says_so(build, check, save):
    dims = {"batch": [1, 8, 1, 8], "n": [2, 2], "k": [5, 5]}
    for target in ("iOS16", "iOS17"):
        result, package = build(save(PAIR), dims=dims, minimum_deployment_target=target)
        ((code, message),) = errors(result)
        assert code == "DK546"
        assert "2 inputs ('x', 'z')" in message
        assert target in message
        assert not package.exists()
    assert [f["code"] for f in check(save(PAIR), dims=dims)["findings"]] == ["DK546"]
    assert errors(build(save(PAIR), dims=dims, **IOS18)[0]) == []


def test_a_short_range_beside_a_set_is_listed_and_a_long_one_refused(build, save):
    result, package = build(save(PAIR), dims={"batch": [2, 2], "n": [1, 8, 1, 8], "k": [3, 5]}, **IOS18)
    assert errors(result) == []
    assert [f["code"] for f in result["findings"]] == ["DK549"]
    assert shapes_in(spec_of(package)).shapes["z"] == ((2, 3), (2, 4), (2, 5)) * 2
    result, _ = build(save(PAIR), dims={"batch": [2, 2], "n": [1, 8, 1, 8], "k": [3, 500]}, **IOS18)
    ((code, message),) = errors(result)
    assert code == "DK546"
    assert "dimension 'k' has the range 3..500, and n=1,8 is a set" in message
    result, _ = build(save(LINEAR), dims={"batch": [1, 8, 1, 8]}, profiles={"x": [[1, 4], [2, 4], [8, 4]]})
    assert errors(result)[0][0] == "DK546"


def test_more_than_128_shapes_are_refused(build, save):
    sizes = list(range(1, 130))
    ((code, message),) = errors(build(save(LINEAR), dims={"batch": [1, 129, *sizes]})[0])
    assert code == "DK546"
    assert "129 combinations" in message
    assert errors(build(save(LINEAR), dims={"batch": [1, 128, *sizes[:128]]})[0]) == []


def test_foreign_lists_that_are_no_product_are_kept_to():
    foreign = Flexibility({"a": (1,), "b": (2,)}, {}, {"a": ((1,), (3,)), "b": ((2,), (4,))})
    foreign.check({"a": (3,), "b": (4,)})
    with pytest.raises(DataError, match="together"):
        foreign.check({"a": (1,), "b": (4,)})


def test_lists_that_coremltools_has_sorted_differently_are_written_by_position(build, save):
    _, package = build(save(PAIR), dims={"batch": [1, 1], "n": [2, 3, 2, 3], "k": [4, 5, 4, 5]}, **IOS18)
    spec = spec_of(package)
    wanted = shapes_in(spec)
    for item in spec.description.input:
        item.type.multiArrayType.enumeratedShapes.shapes.sort(key=str)
    write_shapes(spec, wanted)
    assert shapes_in(spec).shapes == wanted.shapes == {
        "x": ((1, 2), (1, 2), (1, 3), (1, 3)),
        "z": ((1, 4), (1, 5), (1, 4), (1, 5)),
    }  # fmt: skip


def test_convert_compares_at_every_size_of_the_set(tmp_path, save, pool):
    model = save(PAIR)
    report = deploykit.convert(
        model,
        to="coreml",
        output=tmp_path / "m.mlpackage",
        dims={"batch": "1,4,8", "n": {2, 3, 5}, "k": "3..5"},
        options=IOS18,
        samples=2,
    )
    assert report.error is None
    assert report.metrics["parity"]["parent"]["samples"] == 27  # 3 * 3 * 3: all of them, not the 2 that were asked for
    manifest = json.loads((tmp_path / "m.mlpackage.deploykit.json").read_text())
    assert manifest["options"]["dims"] == {"batch": [1, 8, 1, 4, 8], "n": [2, 5, 2, 3, 5], "k": [3, 5]}
    # Without bounds of its own, a comparison keeps to what the package allows.
    report = deploykit.validate(model, tmp_path / "m.mlpackage", samples=30)
    assert report.metrics["samples"] == 30
    assert all(row["passed"] for row in report.metrics["outputs"])


def test_other_targets_take_the_set_as_a_range_and_say_so(tmp_path, save):
    report = deploykit.convert(save(LINEAR), to="openvino", output=tmp_path / "m.xml", dims=["batch=2,6"])
    (told,) = [f for f in report.findings if f.code == "DK545"]
    assert "sizes 2, 6; OpenVINO takes 2..6" in told.message
    assert report.error is None
    assert deploykit.validate(save(LINEAR), tmp_path / "m.xml", dims=["batch=3"]).error is None


def test_a_failed_conversion_leaves_nothing_behind_in_its_process(build, save, evaluate):
    """Symbols have no names of their own: a name was seen to leak from one conversion into the next."""
    broken = LINEAR.replace("float[batch,3] y", "float[batch,7] y")
    for dims in ({"batch": [1, 8]}, {"batch": [1, 8, 1, 8]}):
        assert errors(build(save(broken), dims=dims)[0]) != []
        result, package = build(save(LINEAR), dims=dims)
        assert errors(result) == []
        for count in (1, 8):
            x = RANDOM.normal(size=(count, 4)).astype(np.float32)
            expected = Reference(save(LINEAR)).predict({"x": x})["y"]
            np.testing.assert_allclose(evaluate(package, {"x": x})["y"], expected, rtol=1e-5)


def test_dimensions_that_two_inputs_share_stay_tied(agrees):
    model = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[n,s,4] x, float[n,s] m, float[n,4] b) => (float[n,s,4] y) <int64[1] two = {2}, int64[1] one = {1}> {
        u = Unsqueeze (m, two)
        v = Mul (x, u)
        w = Unsqueeze (b, one)
        y = Add (v, w)
    }"""
    for n, s in ((1, 3), (3, 5), (4, 9)):
        feeds = {"x": (n, s, 4), "m": (n, s), "b": (n, 4)}
        feeds = {name: RANDOM.normal(size=shape).astype(np.float32) for name, shape in feeds.items()}
        agrees(parser.parse_model(model), feeds, dims={"n": [1, 4], "s": [3, 9]})


def test_sizes_without_a_name_are_not_tied(agrees):
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[1,a,b] x) => (float[1,c] y) { y = Flatten (x) }'
    )
    for axis in (1, 2):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "?"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    agrees(model, {"x": RANDOM.normal(size=(1, 3, 5)).astype(np.float32)}, dims={"?": [2, 6]})


def test_the_manifest_says_what_differs_at_the_interface_and_which_shapes_are_taken(tmp_path, save):
    model = save("""
    <ir_version: 9, opset_import: ["" : 17]>
    g (int64[n,3] "input.ids", bool[n,3] mask, float scale) => (bool[n,3] "out:0", float[n,3] y) {
      b = Equal ("input.ids", "input.ids")
      "out:0" = And (b, mask)
      f = Cast <to=1> ("input.ids")
      y = Mul (f, scale)
    }""")
    texts = set()
    for name in ("a", "b"):
        output = tmp_path / name / "m.mlpackage"
        output.parent.mkdir()
        deploykit.convert(model, to="coreml", output=output, dims=["n=2..4"], samples=3)
        texts.add(output.with_name("m.mlpackage.deploykit.json").read_text())
    assert len(texts) == 1
    interface = json.loads(texts.pop())["interface"]

    def spec(name, dtype, *shape):
        return {"name": name, "dtype": dtype, "shape": list(shape)}

    assert interface == {
        "changed": [
            {
                "kind": "input",
                "model": spec("input.ids", "int64", "n", 3),
                "artifact": spec("input_ids", "int32", "n", 3),
            },
            {"kind": "input", "model": spec("mask", "bool", "n", 3), "artifact": spec("mask", "float32", "n", 3)},
            {"kind": "input", "model": spec("scale", "float32"), "artifact": spec("scale", "float32", 1)},
            {"kind": "output", "model": spec("out:0", "bool", "n", 3), "artifact": spec("out_0", "float32", "n", 3)},
        ],
        "ranges": {"input.ids": [[2, 4], [3, 3]], "mask": [[2, 4], [3, 3]]},
    }


def test_the_manifest_of_an_unchanged_interface_says_nothing_of_it(tmp_path, save):
    fixed = LINEAR.replace("batch", "2")
    deploykit.convert(save(fixed), to="coreml", output=tmp_path / "m.mlpackage", samples=1)
    assert "interface" not in json.loads((tmp_path / "m.mlpackage.deploykit.json").read_text())
    deploykit.convert(save(LINEAR), to="coreml", output=tmp_path / "s.mlpackage", dims=["batch=1,8"], samples=1)
    manifest = json.loads((tmp_path / "s.mlpackage.deploykit.json").read_text())
    assert manifest["interface"] == {"shapes": {"x": [[1, 4], [8, 4]]}}


@pytest.mark.parametrize(
    ("dims", "profile"),
    [
        ("?,3,?", [[1, 3, 8], [1, 3, 8], [1, 3, 8]]),
        ("?,3,?", [[10, 3, 80], [12, 3, 90], [20, 3, 100]]),
        ("n,3,?", [[1, 3, 8], [1, 3, 8], [1, 3, 8]]),
    ],
)
def test_comparison_keeps_to_the_profile_of_dimensions_without_names(save, tmp_path, dims, profile):
    text = f"""<ir_version: 9, opset_import: ["": 17]> g (float[{dims}] x) => (float[{dims}] y) {{ y = Neg (x) }}"""
    result = deploykit.convert(save(text), to="coreml", output=tmp_path / "m.mlpackage", profiles={"x": profile})
    assert result.status == "passed"
    (row,) = result.metrics["parity"]["parent"]["outputs"]
    assert row["passed"]
