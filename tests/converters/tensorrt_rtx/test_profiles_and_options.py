"""Several profiles, options by name, and builds that repeat; engines are built here and not executed."""

from __future__ import annotations

import os

import pytest
from onnx import TensorProto, helper

import deploykit
from deploykit.converters.tensorrt_rtx.reproducible import in_turn
from deploykit.errors import UsageError

LINE = """
<ir_version: 9, opset_import: ["" : 19]>
line (float[n,4] x) => (float[n,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
  [product] h = MatMul (x, w)
  [active] y = Tanh (h)
}"""


def test_an_input_that_is_named_again_is_the_next_profile(save, tmp_path):
    report = deploykit.convert(
        save(LINE),
        to="tensorrt-rtx",
        output=tmp_path / "m.engine",
        profiles=["x=1x4:2x4:4x4", "x=5x4:8x4:64x4"],
        options={"sm": "89"},
    )
    assert report.exit_code == 0
    assert report.metrics["profiles"] == [{"x": "1x4:2x4:4x4"}, {"x": "5x4:8x4:64x4"}]
    one = deploykit.convert(
        tmp_path / "model.onnx",
        to="tensorrt-rtx",
        output=tmp_path / "o.engine",
        dims={"n": [1, 64]},
        options={"sm": "89"},
    )
    assert report.artifact.size_bytes > one.artifact.size_bytes  # kernels for each


def test_a_set_of_sizes_is_a_profile_each(save, tmp_path):
    report = deploykit.convert(
        save(LINE), to="tensorrt-rtx", output=tmp_path / "m.engine", dims=["n=1,8,32"], options={"sm": "89"}
    )
    assert [p["x"] for p in report.metrics["profiles"]] == ["1x4:1x4:1x4", "8x4:8x4:8x4", "32x4:32x4:32x4"]


def test_the_profile_that_contradicts_the_model_is_named(build, save):
    path = save("""
        <ir_version: 9, opset_import: ["" : 19]>
        halves (float[n] x) => (float[m] y) <int64[1] zero = {0}, int64[1] two = {2}, int64[1] one = {1}> {
          size = Shape (x)
          half = Div (size, two)
          a = Slice (x, zero, half, zero)
          b = Slice (x, half, size, zero)
          [sum] y = Add (a, b)
        }""")
    with pytest.raises(UsageError) as caught:
        build(path, profiles=[{"x": [[8], [8], [8]]}, {"x": [[10], [11], [12]]}])
    assert (caught.value.code, caught.value.node) == ("DK521", "sum")
    assert "of its profile 2, x=11" in caught.value.message


def test_a_workspace_limit_is_kept_by_the_builder(build, save):
    result, _ = build(save(LINE), dims={"n": [1, 4]}, workspace="64MiB", opt_level="5")
    assert [f for f in result["findings"] if f["severity"] == "error"] == []
    assert set(result["metrics"]["build"]["seconds"]) == {"parse", "build"}
    assert result["metrics"]["build"]["peak_rss_mb"] > 0
    assert result["built_for"]["compute_capabilities"] == ["8.9", "12.0"]


@pytest.mark.parametrize(
    ("options", "told"),
    [({"timing_cache": "layers.cache"}, "no timing cache"), ({"dla_core": "0"}, "DLA core 0 is not there")],
)
def test_an_option_that_this_version_lacks_is_refused_and_not_ignored(
    build, save, tmp_path, monkeypatch, options, told
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=told) as caught:
        build(save(LINE), dims={"n": [1, 4]}, **options)
    assert caught.value.code == "DK592"


@pytest.mark.parametrize("options", [{"opt_level": "6"}, {"workspace": "much"}, {"workspace": "0"}, {"dla_core": "x"}])
def test_a_bad_value_is_refused(build, save, options):
    with pytest.raises(UsageError) as caught:
        build(save(LINE), dims={"n": [1, 4]}, **options)
    assert caught.value.code == "DK527"


def shapes_model(path):
    """Many shape computations, of which the compiler's threads number temporaries as they come."""
    import onnx

    nodes, last = [], "x"
    for number in range(12):
        a, b, c = (f"{letter}{number}" for letter in "abc")
        nodes += [
            helper.make_node("Shape", [last], [f"s{number}"]),
            helper.make_node("Relu", [last], [a]),
            helper.make_node("Reshape", [a, f"s{number}"], [b]),
            helper.make_node("Add", [b, "w"], [c]),
        ]
        last = c
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [8], [0.5] * 8)]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", "m", 8]) for n in ("x", "y")]
    made = helper.make_graph(nodes, "g", value[:1], value[1:], weights)
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    return path


def test_builds_with_dynamic_shapes_repeat_in_other_processes(tmp_path):
    model = shapes_model(tmp_path / "m.onnx")
    report = deploykit.convert(
        model,
        to="tensorrt-rtx",
        output=tmp_path / "m.engine",
        dims={"n": [1, 8], "m": [1, 16]},
        options={"sm": "89", "prove_reproducible": True},
    )
    assert report.exit_code == 0, [f.message for f in report.findings]
    assert report.metrics["build"]["reproducible"] is True
    assert report.metrics["build"]["sha256"] == report.artifact.sha256
    assert "seconds" not in str(report.artifact.manifest())  # measurements stay in the report


@pytest.mark.slow
@pytest.mark.parametrize("time", range(3))
def test_a_recurrent_model_repeats(shared_model, tmp_path, time):
    report = deploykit.convert(
        shared_model("nsnet2/nsnet2-20ms-baseline.onnx"),
        to="tensorrt-rtx",
        output=tmp_path / f"{'m' * (time * 20 + 1)}.engine",
        dims={"batch_size": [1, 4], "frames": [1, 100]},
        options={"sm": "89", "prove_reproducible": True},
    )
    assert report.metrics["build"]["reproducible"] is True


def test_the_processor_is_given_back():
    before = os.sched_getaffinity(0), os.sched_getscheduler(0)
    with in_turn():
        assert len(os.sched_getaffinity(0)) == 1
    assert (os.sched_getaffinity(0), os.sched_getscheduler(0)) == before
