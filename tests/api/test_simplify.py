"""Simplified models are equal to their originals; an engine that fails, lies or enlarges is left out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest

import deploykit
from deploykit.errors import GateError, ModelError, OutputError, UsageError, VendorError
from deploykit.isolation import workers
from deploykit.optimizers import candidates, engines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module", autouse=True)
def pool():
    """The engines' processes, shared by the whole module."""
    with workers() as found:
        yield found


@pytest.fixture
def case(shared):
    """Path, inputs and expected outputs of a case, and what was recorded about it."""

    def find(name: str):
        folder = shared / "cases"
        entries = json.loads((folder / "index.json").read_text())["cases"]
        entry = next(entry for entry in entries if entry["name"] == name)
        return folder / entry["file"], [
            (dict(np.load(folder / io["inputs"])), io["expected"] and dict(np.load(folder / io["expected"])))
            for io in entry["io"]
        ]

    return find


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def save(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]>\n' + text), path)
    return path


SMALL = """agraph (float[n,4] x) => (float[n,4] y) <float[1] a = {2}, float[1] b = {3}>
    { c = Add(a, b)
      i = Identity(x)
      m = Mul(i, c)
      y = Relu(m) }"""

# What each case of the catalogue must do, besides equal outputs and an equal interface.
CASES = [
    "calib_dynamic_seq",
    "cse_outputs",
    "dynamic_batch_reshape",
    "expand_not_nop",
    "fold_blowup",
    "if_shared_init",
    "io_passthrough",
    "slice_chain",
    "zero_dim_input",
]


@pytest.mark.parametrize("engine", ["auto", "native"])
@pytest.mark.parametrize("name", CASES)
def test_the_cases_keep_interface_and_values(case, tmp_path, name, engine):
    path, data = case(name)
    out = tmp_path / "out.onnx"
    report = deploykit.simplify(path, output=out, engine=engine, max_growth=2)
    assert report.exit_code == 0
    made, before = onnx.load(out), onnx.load(path)
    onnx.checker.check_model(made, full_check=True)
    assert [i.SerializeToString() for i in made.graph.input] == [i.SerializeToString() for i in before.graph.input]
    assert [o.name for o in made.graph.output] == [o.name for o in before.graph.output]
    assert out.stat().st_size <= 2 * path.stat().st_size
    loaded = session(out)
    for feeds, expected in data:
        for output, value in zip(loaded.get_outputs(), loaded.run(None, feeds), strict=True):
            np.testing.assert_allclose(value, expected[output.name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["auto", "native", "onnxsim", "onnxslim"])
def test_custom_operators_are_kept_and_constants_around_them_folded(case, tmp_path, engine):
    path, _ = case("custom_op_default_domain")
    out = tmp_path / "out.onnx"
    report = deploykit.simplify(path, output=out, engine=engine, max_growth=2)
    nodes = {node.op_type: node for node in onnx.load(out).graph.node}
    assert set(nodes) - {"Constant"} == {"Relu", "BatchedNMS_TRT", "MyScale", "Mul"}
    assert nodes["BatchedNMS_TRT"].attribute[0].i == 5
    assert nodes["MyScale"].attribute[0].f == 2
    assert any("nms_plugin" in finding.message for finding in report.findings)


@pytest.mark.parametrize("engine", ["auto", "native"])
def test_random_nodes_survive_and_are_named(case, tmp_path, engine):
    path, data = case("random_not_folded")
    out = tmp_path / "out.onnx"
    report = deploykit.simplify(path, output=out, engine=engine, max_growth=2)
    assert report.exit_code == 0
    assert any("noise" in finding.message for finding in report.findings)
    node = next(node for node in onnx.load(out).graph.node if node.op_type == "RandomNormal")
    assert "seed" not in [attribute.name for attribute in node.attribute], "the seed of the comparison stays out"
    loaded = session(out)
    first, second = (loaded.run(None, data[0][0])[0] for _ in range(2))
    assert not np.array_equal(first, second)


def test_an_engine_that_freezes_random_numbers_fails_its_gate(case, tmp_path):
    path, _ = case("random_not_folded")
    report = deploykit.simplify(path, output=tmp_path / "out.onnx", engine="onnxslim")
    assert report.exit_code == 1
    assert isinstance(report.error, GateError)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "most_nodes"),
    [
        ("silero_vad/silero_vad.onnx", 152),
        ("silero_vad/silero_vad_op18_ifless.onnx", 90),
        ("ppocr_v4/cls.onnx", 179),
        ("digits/digits_cnn.onnx", 11),
    ],
)
def test_real_models_shrink(shared_model, tmp_path, name, most_nodes):
    path = shared_model(name)
    report = deploykit.simplify(path, output=tmp_path / "out.onnx")
    assert report.exit_code == 0
    assert report.metrics["nodes"]["after"] <= most_nodes
    assert report.metrics["bytes"]["after"] <= 1.05 * path.stat().st_size
    if report.metrics["engine"] != "none":
        assert report.metrics["parity"]["samples"] >= 3


def test_the_voice_model_still_answers_alike(shared_model, tmp_path):
    path, out = shared_model("silero_vad/silero_vad.onnx"), tmp_path / "out.onnx"
    deploykit.simplify(path, output=out)
    rng = np.random.default_rng(0)
    for rate, length in ((16000, 576), (8000, 288)):
        feeds = {
            "input": rng.normal(size=(1, length)).astype(np.float32),
            "state": rng.normal(size=(2, 1, 128)).astype(np.float32),
            "sr": np.array(rate),
        }
        for old, new in zip(session(path).run(None, feeds), session(out).run(None, feeds), strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-6)


def test_it_takes_the_fewest_nodes_and_writes_the_same_bytes_again(tmp_path):
    path = save(tmp_path / "in.onnx", SMALL)
    first = deploykit.simplify(path, output=tmp_path / "a.onnx")
    deploykit.simplify(path, output=tmp_path / "b.onnx")
    assert first.metrics["nodes"] == {"before": 4, "after": 2}
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert first.artifact.parent_sha256
    assert first.artifact.execution == "real"
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".data") == []


def test_nothing_gained_keeps_the_original_bytes_and_says_so(tmp_path):
    path = save(tmp_path / "in.onnx", "agraph (float[n] x) => (float[n] y) { y = Relu(x) }")
    report = deploykit.simplify(path, output=tmp_path / "out.onnx")
    assert report.metrics["engine"] == "none"
    assert (tmp_path / "out.onnx").read_bytes() == path.read_bytes()
    assert "DK640" in [finding.code for finding in report.findings]


def test_a_dimension_can_be_fixed(tmp_path):
    path = save(tmp_path / "in.onnx", SMALL)
    report = deploykit.simplify(path, output=tmp_path / "out.onnx", dims=["n=3"])
    assert report.artifact.inputs[0].shape == (3, 4)
    assert report.artifact.outputs[0].shape == (3, 4)
    assert session(tmp_path / "out.onnx").run(None, {"x": np.ones((3, 4), np.float32)})[0].tolist() == [[5.0] * 4] * 3


@pytest.mark.parametrize("engine", ["auto", "native"])
def test_outputs_declare_what_follows_from_a_fixed_dimension(engine, tmp_path):
    text = """agraph (float[n,4] x) => (float[unk,8] y) { a = Identity(x) b = Relu(a) y = Concat <axis=1> (b, b) }"""
    path = save(tmp_path / "in.onnx", text)
    fixed = deploykit.simplify(path, output=tmp_path / "fixed.onnx", dims=["n=1"], engine=engine)
    assert fixed.artifact.outputs[0].shape == (1, 8)
    free = deploykit.simplify(path, output=tmp_path / "free.onnx", engine=engine)
    assert free.artifact.outputs[0].shape == ("unk", 8)


@pytest.mark.parametrize("options", [{"dims": ["m=3"]}, {"engine": "magic"}, {"max_growth": 0.5}, {"dims": ["n=1..3"]}])
def test_options_that_do_not_fit_are_refused(tmp_path, options):
    path = save(tmp_path / "in.onnx", SMALL)
    with pytest.raises(UsageError):
        deploykit.simplify(path, output=tmp_path / "out.onnx", **options)
    assert not (tmp_path / "out.onnx").exists()


def test_an_existing_output_needs_force(tmp_path):
    path = save(tmp_path / "in.onnx", SMALL)
    (tmp_path / "out.onnx").write_text("precious")
    with pytest.raises(OutputError):
        deploykit.simplify(path, output=tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_text() == "precious"


def test_a_crash_of_one_engine_is_a_line_in_the_report(tmp_path, monkeypatch):
    real = candidates.run_isolated

    def isolated(name: str, function: str, arguments: dict, **options):
        if arguments.get("engine") == "onnxsim":
            # A function that dies as native code does.
            return real("crashing", "os:abort", {}, **options)
        return real(name, function, arguments, **options)

    monkeypatch.setattr(candidates, "run_isolated", isolated)
    path = save(tmp_path / "in.onnx", SMALL)
    report = deploykit.simplify(path, output=tmp_path / "out.onnx")
    assert report.exit_code == 0
    assert report.metrics["nodes"]["after"] == 2
    assert any(f.code == "DK641" and "onnxsim" in f.message for f in report.findings)
    with pytest.raises(VendorError):
        deploykit.simplify(path, output=tmp_path / "alone.onnx", engine="onnxsim")


def test_a_hanging_engine_is_stopped(tmp_path, monkeypatch):
    real = candidates.run_isolated

    def isolated(name: str, function: str, arguments: dict, **options):
        if arguments.get("engine") == "onnxslim":
            return real("hanging", "signal:pause", {}, **{**options, "timeout": 0.5})
        return real(name, function, arguments, **options)

    monkeypatch.setattr(candidates, "run_isolated", isolated)
    report = deploykit.simplify(save(tmp_path / "in.onnx", SMALL), output=tmp_path / "out.onnx")
    assert any(f.code == "DK641" and "onnxslim" in f.message for f in report.findings)
    assert report.metrics["nodes"]["after"] == 2


def test_a_wrong_result_is_never_used(tmp_path):
    path = save(tmp_path / "in.onnx", SMALL)
    wrong = save(tmp_path / "wrong.onnx", SMALL.replace("b = {3}", "b = {4}"))
    outcome = engines.verify_job(str(path), str(wrong), {}, 0)
    assert outcome["compared"]
    assert not outcome["outputs"][0]["passed"]
    assert any(finding["severity"] == "error" for finding in outcome["findings"])


def test_a_model_beyond_one_message_is_left_to_the_native_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "LARGEST_MESSAGE", 100)
    path = save(tmp_path / "in.onnx", SMALL)
    report = deploykit.simplify(path, output=tmp_path / "out.onnx", max_growth=2)
    assert report.metrics["engine"] == "native"
    assert "DK637" in [finding.code for finding in report.findings]
    with pytest.raises(ModelError):
        deploykit.simplify(path, output=tmp_path / "alone.onnx", engine="onnxsim")


OLD = """<ir_version: 3, opset_import: ["": 6]>
    agraph (float[2,3] x, float[3] s) => (float[2,3] y) <float[3] s = {1,4,9}>
    { r = Sqrt(s) i = Identity(x) p = PRelu(i, s) y = Mul <axis = 1, broadcast = 1> (p, r) }"""
TRAINING = """<ir_version: 8, opset_import: ["": 15, "ai.onnx.preview.training": 1]>
    agraph (float[2] a, float[2] b) => (float[2] c, float[2] d)
    { i = Identity(a) c = Add(i, b) d = ai.onnx.preview.training.Gradient <xs = ["i"], y = "c"> (i) }"""


def test_a_model_that_the_reference_does_not_take_is_compared_by_the_standard_s_definitions(tmp_path):
    path = tmp_path / "in.onnx"
    onnx.save(onnx.parser.parse_model(OLD), path)
    report = deploykit.simplify(path, output=tmp_path / "out.onnx", engine="native")
    assert report.exit_code == 0
    assert report.metrics["nodes"] == {"before": 4, "after": 2}
    assert "DK660" in [finding.code for finding in report.findings]


def test_a_model_that_nothing_runs_is_kept_and_the_report_says_so(tmp_path):
    path = tmp_path / "in.onnx"
    onnx.save(onnx.parser.parse_model(TRAINING), path)
    report = deploykit.simplify(path, output=tmp_path / "out.onnx", engine="native")
    assert report.exit_code == 0
    assert report.metrics["engine"] == "none"
    assert (tmp_path / "out.onnx").read_bytes() == path.read_bytes()
    assert any(finding.code == "DK632" and finding.severity == "warning" for finding in report.findings)


def test_where_rounding_shows_the_native_engine_does_without_what_changes_it(shared_model, tmp_path):
    report = deploykit.simplify(shared_model("ppocr_v4/det.onnx"), output=tmp_path / "out.onnx", engine="native")
    assert report.exit_code == 0
    assert any(f.code == "DK661" and "native once more" in f.message for f in report.findings)


def test_outputs_that_are_nan_for_half_of_the_numbers_are_compared_on_the_others(tmp_path):
    path = save(tmp_path / "in.onnx", "agraph (float[n,4] x) => (float[n,4] y) { i = Identity(x) y = Sqrt(i) }")
    report = deploykit.simplify(path, output=tmp_path / "out.onnx")
    assert report.metrics["nodes"]["after"] == 1
    assert all(row["passed"] for row in report.metrics["parity"]["outputs"])


def test_a_small_file_may_grow_by_the_names_that_a_saving_needs(tmp_path):
    path = save(
        tmp_path / "in.onnx",
        "agraph (float[batch,3,4] x) => (float[batch,12] y) <int64 zero = {0}, int64[1] ax = {0}, int64[1] rest = {12}>"
        "{ s = Shape(x) b = Gather(s, zero) u = Unsqueeze(b, ax) t = Concat <axis=0> (u, rest) y = Reshape(x, t) }",
    )
    report = deploykit.simplify(path, output=tmp_path / "out.onnx", max_growth=1)
    assert report.metrics["nodes"]["after"] == 1


def test_a_large_model_is_left_to_the_native_engine_unless_another_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "LARGEST_FOR_ALL", 100)
    path = save(tmp_path / "in.onnx", SMALL)
    report = deploykit.simplify(path, output=tmp_path / "out.onnx")
    assert report.metrics["engine"] == "native"
    assert "DK662" in [finding.code for finding in report.findings]
    report = deploykit.simplify(path, output=tmp_path / "slim.onnx", engine="onnxslim")
    assert report.metrics["engine"] == "onnxslim"
