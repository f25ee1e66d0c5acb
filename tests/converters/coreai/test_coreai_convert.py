"""Core AI: converted by coreai-onnx, run by Apple's own runtime, equal to ONNX Runtime; refused by node otherwise."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("coreai_onnx")

import deploykit
from deploykit.converters.coreai import asset
from deploykit.converters.coreai.convert import convert_job
from deploykit.converters.coreai.inspect import describe
from deploykit.converters.coreai.prepare import prepared
from deploykit.converters.coreai.support import support_job
from deploykit.converters.recurrent import write_out
from deploykit.errors import DataError, GateError, InvalidFileError, UnavailableError
from deploykit.graph import load, save
from deploykit.isolation import run_alone
from deploykit.reference import Reference
from deploykit.runtime import RuntimeOptions, open_runtime

NET = """agraph (float[N,3,8,8] x) => (float[N,5] y) {
    [conv] c = Conv <pads = [1,1,1,1]> (x, w)
    [relu] r = Relu (c)
    [mean] m = GlobalAveragePool (r)
    [flat] y = Flatten (m)
}"""


def weights(*shape, seed=5):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture
def net(onnx_file):
    return onnx_file(NET, w=weights(5, 3, 3, 3))


def convert(model, output, dims=None, profiles=None):
    return convert_job(str(model), str(output), {}, dims or {}, profiles or {}, "fp32")


def assert_equal(model, artifact, feeds, tolerance=1e-5):
    expected, found = Reference(model).predict(feeds), open_runtime(artifact).predict(feeds)
    assert list(expected) == list(found)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert np.allclose(found[name], array, rtol=1e-4, atol=tolerance * max(np.abs(array).max(), 1e-9)), name


@pytest.mark.parametrize("count", [1, 3])
def test_runs_like_onnx_runtime_at_every_batch(net, tmp_path, count):
    made = convert(net, tmp_path / "m.aimodel")
    assert made["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["N", 3, 8, 8]}]
    assert_equal(net, tmp_path / "m.aimodel", {"x": weights(count, 3, 8, 8, seed=1)})


def test_a_fixed_size_is_the_assets_own_and_bounds_are_kept(net, tmp_path):
    convert(net, tmp_path / "m.aimodel", dims={"N": [2, 2]})
    assert open_runtime(tmp_path / "m.aimodel").inputs[0].shape == (2, 3, 8, 8)
    convert(net, tmp_path / "b.aimodel", dims={"N": [1, 4]})
    runtime = open_runtime(tmp_path / "b.aimodel")
    assert (runtime.inputs[0].shape, runtime.bounds["x"][0]) == (("N", 3, 8, 8), [1, 4])


def test_quantized_models_are_computed_exactly(int8_conv, tmp_path):
    made = convert(int8_conv, tmp_path / "m.aimodel")
    assert made["metrics"]["float_biases"] == 1
    feeds = {"x": weights(2, 4, 8, 8, seed=2)}
    expected, found = Reference(int8_conv).predict(feeds)["y"], open_runtime(tmp_path / "m.aimodel").predict(feeds)["y"]
    assert np.abs(expected - found).max() <= 0.03 + 1e-6  # one level of the output
    assert (expected != found).mean() < 0.01


def test_the_bias_becomes_the_float_that_it_stands_for(int8_conv):
    model, count = prepared(int8_conv, {}, {})
    assert count == 1
    (conv,) = [node for node in model.graph if node.op_type == "Conv"]
    before = {value.name: value.const_value.numpy() for value in load(int8_conv).graph.initializers.values()}
    assert np.array_equal(conv.inputs[2].const_value.numpy(), before["b"].astype(np.float32) * before["bs"])


def test_64_bits_become_32_and_are_given_back(onnx_file, tmp_path):
    model = onnx_file(
        "agraph (int64[N] ids, float[4,3] t) => (float[N,3] y, int64[N] twice) "
        "{ y = Gather (t, ids) twice = Add (ids, ids) }"
    )
    made = convert(model, tmp_path / "m.aimodel")
    assert [finding["code"] for finding in made["findings"]] == ["DK529", "DK529"]
    feeds = {"ids": np.array([3, 0], np.int64), "t": weights(4, 3)}
    assert_equal(model, tmp_path / "m.aimodel", feeds)
    with pytest.raises(DataError) as caught:
        open_runtime(tmp_path / "m.aimodel").predict({**feeds, "ids": np.array([2**31, 0], np.int64)})
    assert caught.value.code == "DK586"


def test_sizes_that_follow_from_fixed_inputs_are_constants(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[N,4,6] x) => (float[N,rest] y) {
            [shape] s = Shape (x) [first] f = Gather (s, zero) [one] u = Unsqueeze (f, axes)
            [cat] t = Concat <axis = 0> (u, last) [flat] y = Reshape (x, t)
        }""",
        zero=np.array(0),
        axes=np.array([0]),
        last=np.array([-1]),
    )
    loaded, _ = prepared(model, {"N": [2, 2]}, {})
    assert [node.op_type for node in loaded.graph] == ["Reshape"]
    convert(model, tmp_path / "m.aimodel", dims={"N": [2, 2]})
    assert_equal(model, tmp_path / "m.aimodel", {"x": weights(2, 4, 6)})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("after", [0, 1])
def test_gru_written_out_is_what_onnx_runtime_computes(onnx_file, tmp_path, direction, after):
    ways = 2 if direction == "bidirectional" else 1
    model = onnx_file(
        f"""agraph (float[4,2,3] x) => (float[4,{ways},2,5] y, float[{ways},2,5] last) {{
            [gru] y, last = GRU <hidden_size = 5, direction = "{direction}", linear_before_reset = {after}> (x, w, r, b)
        }}""",
        w=weights(ways, 15, 3),
        r=weights(ways, 15, 5, seed=6),
        b=weights(ways, 30, seed=7),
    )
    loaded = load(model)
    assert write_out(loaded) == 1
    save(loaded, tmp_path / "plain.onnx")
    feeds = {"x": weights(4, 2, 3, seed=8)}
    expected, found = Reference(model).predict(feeds), Reference(tmp_path / "plain.onnx").predict(feeds)
    for name in ("y", "last"):
        assert np.allclose(expected[name], found[name], atol=1e-5), name


def test_nodes_without_a_lowering_are_named_all_at_once(onnx_file, tmp_path):
    model = onnx_file(
        "agraph (float[2] x) => (float[2] y) { [first] a = my.ops.Odd (x) [second] y = my.ops.Other (a) }"
    )
    rows = support_job(str(model), {}, {}, {})["nodes"]
    assert {row["node"]: row["verdict"] for row in rows} == {"first": "unsupported", "second": "unsupported"}
    assert all(row["remedy"] and row["source"].startswith("coreai-onnx ") for row in rows)
    with pytest.raises(GateError) as caught:
        convert(model, tmp_path / "m.aimodel")
    assert (caught.value.code, caught.value.node) == ("DK526", "first")
    assert not (tmp_path / "m.aimodel").exists()


def test_a_node_that_cannot_be_lowered_is_named_with_the_reason(shared_model):
    rows = support_job(str(shared_model("silero_vad/silero_vad.onnx")), {}, {}, {})["nodes"]
    refused = [row for row in rows if row["verdict"] == "unsupported"]
    assert [row["op"] for row in refused] == ["If"]
    assert "shapes differ between branches" in refused[0]["reason"]


def test_bytes_are_the_same_in_every_process_and_have_no_date(net, tmp_path):
    contents = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        arguments = {"model": str(net), "options": {}, "dims": {}, "profiles": {}, "precision": "fp32"}
        run_alone(
            "coreai",
            "deploykit.converters.coreai.convert:convert_job",
            {**arguments, "output": str(tmp_path / name / "m.aimodel")},
        )
        files = sorted((tmp_path / name / "m.aimodel").iterdir())
        contents.append({file.name: file.read_bytes() for file in files})
    assert contents[0] == contents[1]
    assert json.loads(contents[0][asset.METADATA])["creationDate"].startswith("1970")
    assert str(tmp_path).encode() not in b"".join(contents[0].values())


def test_inspect_tells_interface_operators_and_sizes(net, tmp_path):
    convert(net, tmp_path / "m.aimodel")
    facts = describe(tmp_path / "m.aimodel")
    assert facts["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["N", 5]}]
    assert facts["operators"]["conv2d"] == 1
    assert (facts["functions"], facts["precision"]) == (["main"], "fp32")
    assert facts["parameters_by_dtype"]["float32"] >= 135


def _cut(place):
    file = place / asset.PROGRAM
    file.write_bytes(file.read_bytes()[:-40])


def _cut_unseen(place):
    _cut(place)
    (place / asset.HASH).unlink()


def _link(place):
    (place / "outside").symlink_to("/etc/hostname")


def _text(place):
    (place / asset.METADATA).write_text("[1, 2", encoding="utf-8")


def _gone(place):
    (place / asset.PROGRAM).unlink()


@pytest.mark.parametrize("damage", [_cut, _cut_unseen, _link, _text, _gone])
def test_damaged_and_hostile_assets_are_refused(net, tmp_path, damage):
    convert(net, tmp_path / "m.aimodel")
    damage(tmp_path / "m.aimodel")
    with pytest.raises(InvalidFileError) as caught:
        describe(tmp_path / "m.aimodel")
    assert caught.value.code == "DK528"
    with pytest.raises(InvalidFileError):
        open_runtime(tmp_path / "m.aimodel")


def test_metadata_of_somebody_else_under_our_name_is_left_alone(net, tmp_path):
    convert(net, tmp_path / "m.aimodel")
    file = tmp_path / "m.aimodel" / asset.METADATA
    found = json.loads(file.read_text(encoding="utf-8"))
    found["creatorDefinedMetadata"]["deploykit"] = "[]"
    file.write_text(json.dumps(found), encoding="utf-8")
    assert [spec.shape for spec in open_runtime(tmp_path / "m.aimodel").inputs] == [("x_0", 3, 8, 8)]


def test_another_device_is_refused(net, tmp_path):
    convert(net, tmp_path / "m.aimodel")
    with pytest.raises(UnavailableError) as caught:
        open_runtime(tmp_path / "m.aimodel", RuntimeOptions(device="gpu"))
    assert caught.value.code == "DK222"


def test_where_there_is_no_wheel_the_reason_is_told(monkeypatch, net, tmp_path):
    from deploykit import lazy
    from deploykit.converters import coreai
    from deploykit.errors import MissingDependencyError

    monkeypatch.setattr(coreai, "_PYTHONS", ((3, 98), (3, 99)))
    monkeypatch.setattr(lazy, "installed", lambda package: not package.startswith("coreai"))
    row = next(r for r in deploykit.targets().metrics["targets"] if r["name"] == "coreai")
    assert not row["convert"]
    assert "Python 3.98 and 3.99 only" in row["missing"]
    with pytest.raises(MissingDependencyError) as caught:
        deploykit.convert(net, to="coreai", output=tmp_path / "m.aimodel")
    assert caught.value.exit_code == 3
    assert "Python 3.98 and 3.99 only" in caught.value.hint


def test_half_precision_runs(onnx_file, tmp_path):
    half = onnx_file("agraph (float16[N,8] x) => (float16[N,6] y) { y = MatMul (x, w) }", w=weights(8, 6).astype("e"))
    convert(half, tmp_path / "m.aimodel")
    assert describe(tmp_path / "m.aimodel")["precision"] == "fp16"
    feeds = {"x": weights(3, 8, seed=9).astype("e")}
    expected, found = Reference(half).predict(feeds)["y"], open_runtime(tmp_path / "m.aimodel").predict(feeds)["y"]
    assert np.allclose(expected, found, rtol=1e-2, atol=2e-3 * np.abs(expected).max())


def test_the_prepared_model_is_equal_to_the_one_it_was(int8_conv, tmp_path):
    loaded, _ = prepared(int8_conv, {}, {})
    assert isinstance(loaded, ir.Model)
    save(loaded, tmp_path / "p.onnx")
    feeds = {"x": weights(1, 4, 8, 8, seed=3)}
    assert np.array_equal(Reference(int8_conv).predict(feeds)["y"], Reference(tmp_path / "p.onnx").predict(feeds)["y"])
