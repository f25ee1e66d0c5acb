"""The chain over a small real model: reuse, resumption, failures that stop nothing else, gates."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.errors import ExitCode, OutputError, UsageError
from deploykit.pipeline import engine
from deploykit.pipeline.config import load_config

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[batch, 4] x) => (float[batch, 3] y)
<float[4,3] w = {1.0, -2.0, 0.5, 0.25, 1.5, -1.0, 2.0, 0.75, -0.5, -1.25, 0.3, 0.9}, float[3] b = {0.1, -0.2, 0.3}>
{
    h = MatMul (x, w)
    y = Add (h, b)
}
"""
YAML = """\
source: net.onnx
dims: {batch: 1..4}
simplify: {engine: native}
quantize:
  - {precision: fp16}
  - {precision: int8, calib: calib.npz, method: minmax}
targets:
  onnxruntime:
evaluate: {data: test.npz, metric: top1}
validate: {data: test.npz}
bench: false
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("the chain 链")
    onnx.save(onnx.parser.parse_model(MODEL), folder / "net.onnx")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 4)).astype(np.float32)
    weights = np.array([1, -2, 0.5, 0.25, 1.5, -1, 2, 0.75, -0.5, -1.25, 0.3, 0.9], np.float32).reshape(4, 3)
    np.savez(folder / "calib.npz", x=x)
    np.savez(folder / "test.npz", x=x[:32], y=(x[:32] @ weights + [0.1, -0.2, 0.3]).argmax(1))
    (folder / "deploykit.yaml").write_text(YAML, encoding="utf-8")
    first = deploykit.run(folder / "deploykit.yaml")
    return folder, first


@pytest.fixture
def project(template, tmp_path):
    """A copy of the project after its first run."""
    import shutil

    folder = tmp_path / "project"
    shutil.copytree(template[0], folder)
    return folder


def statuses(report):
    return {step["step"]: step["status"] for step in report.metrics["steps"]}


def edit(project: Path, old: str, new: str) -> Path:
    path = project / "deploykit.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_a_run_makes_every_artifact_and_says_what_it_found(template):
    folder, report = template
    assert report.exit_code == ExitCode.OK, [f.message for f in report.findings if f.severity == "error"]
    out = folder / "deploykit-out"
    document = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert document["status"] == "passed"
    rows = {row["precision"]: row for row in document["metrics"]["rows"]}
    assert set(rows) == {"fp32", "fp16", "int8"}
    for precision, row in rows.items():
        assert Path(row["artifact"]) == out / "onnxruntime" / precision / "net.onnx"
        assert row["execution"] == "real"
        assert row["accuracy"] == pytest.approx(100, abs=4)
        assert row["parity"]["parent"]["outputs"][0]["passed"]
        assert (out / "onnxruntime" / precision / "net.onnx.deploykit.json").is_file()
    assert "report.json" in {path.name for path in out.iterdir()}
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    assert set(statuses(report).values()) == {"done"}


def test_a_second_run_does_nothing_again(project):
    report = deploykit.run(project / "deploykit.yaml")
    assert report.exit_code == ExitCode.OK
    assert set(statuses(report).values()) == {"cached"}


def test_a_second_run_gives_the_same_artifacts(project, template):
    report = deploykit.run(project / "deploykit.yaml", no_cache=True)
    assert set(statuses(report).values()) == {"done"}
    assert [a.sha256 for a in report.artifacts] == [a.sha256 for a in template[1].artifacts]


def test_changed_calibration_data_redoes_quantization_and_what_follows(project):
    np.savez(project / "calib.npz", x=np.random.default_rng(1).normal(size=(96, 4)).astype(np.float32) * 3)
    done = {key for key, status in statuses(deploykit.run(project / "deploykit.yaml")).items() if status == "done"}
    assert done == {"quantize int8 (onnxruntime)", "convert onnxruntime int8", "evaluate onnxruntime int8"}


def test_a_lost_artifact_is_published_again_without_work(project):
    lost = project / "deploykit-out" / "onnxruntime" / "int8" / "net.onnx"
    lost.unlink()
    report = deploykit.run(project / "deploykit.yaml")
    assert set(statuses(report).values()) == {"cached"}
    assert lost.is_file()


def test_an_interrupted_run_resumes(project, monkeypatch):
    np.savez(project / "calib.npz", x=np.random.default_rng(2).normal(size=(96, 4)).astype(np.float32))
    settled = engine.Engine._execute

    def interrupted(self, step, subjects, key):
        if step.key.startswith("convert"):
            raise KeyboardInterrupt
        return settled(self, step, subjects, key)

    monkeypatch.setattr(engine.Engine, "_execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        deploykit.run(project / "deploykit.yaml")
    monkeypatch.undo()
    report = deploykit.run(project / "deploykit.yaml")
    assert statuses(report)["quantize int8 (onnxruntime)"] == "cached"
    assert statuses(report)["convert onnxruntime int8"] == "done"


def test_a_failing_step_skips_what_needs_it_and_nothing_else(project):
    path = edit(project, "method: minmax", "method: entropy")
    np.savez(project / "calib.npz", z=np.zeros((3, 9), np.float32), other=np.zeros(3, np.float32))
    report = deploykit.run(path)
    found = statuses(report)
    assert found["quantize int8 (onnxruntime)"] == "failed"
    assert found["convert onnxruntime int8"] == "skipped"
    assert found["convert onnxruntime fp16"] == "cached"
    assert report.exit_code == ExitCode.INVALID_INPUT
    assert any(f.severity == "error" and f.code.startswith("DK3") for f in report.findings)
    row = next(row for row in report.metrics["rows"] if row["precision"] == "int8")
    assert row["artifact"] is None
    assert "quantize int8" in row["reason"]


def test_a_bug_in_one_step_is_told_and_stops_nothing_else(project, monkeypatch):
    np.savez(project / "calib.npz", x=np.random.default_rng(3).normal(size=(96, 4)).astype(np.float32))
    called = engine.Engine._call

    def broken(self, step, subjects, folder):
        if step.stage == "quantize":
            raise ZeroDivisionError("a bug")
        return called(self, step, subjects, folder)

    monkeypatch.setattr(engine.Engine, "_call", broken)
    report = deploykit.run(project / "deploykit.yaml")
    assert report.exit_code == ExitCode.BUG
    assert any("ZeroDivisionError" in f.message for f in report.findings)
    assert statuses(report)["convert onnxruntime fp32"] == "cached"


def test_an_accuracy_drop_beyond_the_limit_fails(project):
    path = edit(project, "metric: top1", "metric: worse.py:score, max_drop: 1")
    (project / "worse.py").write_text(
        "def score(outputs, label):\n    return 100.0 if outputs['y'].dtype == 'float32' else 0.0\n",
        encoding="utf-8",
    )
    report = deploykit.run(path, precision=["fp32", "fp16"])
    assert report.exit_code == ExitCode.GATE_FAILED
    gate = [f for f in report.findings if f.code == "DK820"]
    assert len(gate) == 1
    assert "100.00 points" in gate[0].message
    assert {row["precision"]: row["status"] for row in report.metrics["rows"]} == {"fp32": "passed", "fp16": "failed"}


def test_only_runs_a_stage_and_what_it_needs(project):
    report = deploykit.run(project / "deploykit.yaml", only=["quantize"])
    assert {key.split()[0] for key in statuses(report)} == {"export", "simplify", "quantize"}


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(project):
    np.savez(project / "calib.npz", x=np.random.default_rng(4).normal(size=(96, 4)).astype(np.float32))
    before = sorted(project.rglob("*"))
    report = deploykit.run(project / "deploykit.yaml", dry_run=True)
    found = statuses(report)
    assert found["export"] == "cached"
    assert found["quantize int8 (onnxruntime)"] == "planned"
    assert found["convert onnxruntime int8"] == "planned"
    assert sorted(project.rglob("*")) == before


def test_a_written_configuration_replays_to_the_same_bytes(project, tmp_path):
    replay = project / "replay.yaml"
    first = deploykit.run(project / "deploykit.yaml", write_config=replay)
    assert load_config(replay).export.opset == 17
    second = deploykit.run(replay, output=tmp_path / "again")
    assert [a.sha256 for a in second.artifacts] == [a.sha256 for a in first.artifacts]


def test_one_line_does_the_same_without_a_file(project, tmp_path):
    report = deploykit.run(
        project / "net.onnx",
        to=["onnxruntime"],
        precision=["int8"],
        calib=str(project / "calib.npz"),
        eval=str(project / "test.npz"),
        output=tmp_path / "out",
    )
    assert report.exit_code == ExitCode.OK
    assert (tmp_path / "out" / "onnxruntime" / "int8" / "net.onnx").is_file()


def test_a_folder_of_the_users_own_is_not_written_into(project, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words", encoding="utf-8")
    with pytest.raises(OutputError) as caught:
        deploykit.run(project / "deploykit.yaml", output=tmp_path / "mine")
    assert caught.value.code == "DK120"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_unknown_stage_is_refused(project):
    with pytest.raises(UsageError, match="no stage 'quantise'"):
        deploykit.run(project / "deploykit.yaml", only=["quantise"])


@pytest.mark.parametrize(
    ("option", "value", "key"),
    [("calib", "c.npz", "quantize"), ("dims", ["n=1..2"], "dims"), ("seed", 3, "seed"), ("weights", "w.pt", "weights")],
)
def test_an_option_that_a_configuration_would_silence_is_refused(project, option, value, key):
    with pytest.raises(UsageError, match=f"--{option.removesuffix('s') if option == 'dims' else option} ") as caught:
        deploykit.run(project / "deploykit.yaml", **{option: value})
    assert f"`{key}`" in caught.value.hint
