"""The main job on a real model: what `make demo` promises, in numbers, and the client that calls the server."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "digits"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The example, trained and run in a folder of its own."""
    folder = tmp_path_factory.mktemp("demo") / "digits"
    folder.mkdir()
    for name in ("model.py", "train.py", "client.py", "deploykit.yaml"):
        shutil.copy(SOURCE / name, folder)
    trained = subprocess.run([sys.executable, folder / "train.py"], capture_output=True, text=True, check=True)
    done = deploykit(folder, "run", "deploykit.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "deploykit-out" / "report.json").read_text(encoding="utf-8"))
    return folder, trained.stdout, report


def deploykit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploykit", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ})


def rows(report):
    return {(row["target"], row["precision"]): row for row in report["metrics"]["rows"]}


def test_training_reaches_the_accuracy_that_the_example_needs(demo):
    assert float(demo[1].split(":")[1].strip().rstrip("%\n")) >= 98


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_int8_keeps_the_accuracy_on_the_real_engine(demo, target):
    found = rows(demo[2])
    row, floating = found[target, "int8"], found[target, "fp32"]
    assert row["execution"] == floating["execution"] == "real"
    assert floating["accuracy"] - row["accuracy"] <= 0.5
    assert row["int8_macs_share"] >= 0.9
    assert floating["int8_macs_share"] == 0


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_what_runs_here_was_compared_scored_and_measured(demo, target, precision):
    row = rows(demo[2])[target, precision]
    assert row["status"] == "passed"
    assert all(output["passed"] for gate in row["parity"].values() for output in gate["outputs"])
    assert row["accuracy"] >= 98
    assert row["p50_ms"] > 0
    assert row["throughput_per_s"] > 0
    assert row["rss_mb"]["peak"] > row["rss_mb"]["base"] > 0


@pytest.mark.parametrize(
    ("target", "precision"),
    [("tensorrt-rtx", "fp16"), ("tensorrt-rtx", "int8")],
)
def test_what_only_can_be_built_here_says_so(demo, target, precision):
    row = rows(demo[2])[target, precision]
    assert row["status"] == "passed"
    assert row["execution"] == "none"
    assert row["accuracy"] is None
    assert Path(demo[0] / row["artifact"]).exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML itself runs here")
@pytest.mark.parametrize("precision", ["fp16", "int8-weights"])
def test_core_ml_is_compared_and_scored_by_a_simulation_and_never_timed(demo, precision):
    row = rows(demo[2])["coreml", precision]
    assert (row["status"], row["execution"]) == ("passed", "simulated")
    assert "Apple's documented semantics" in row["engine"]
    assert all(output["passed"] for gate in row["parity"].values() for output in gate["outputs"])
    assert row["accuracy"] >= 98
    assert row["p50_ms"] is None
    assert row["throughput_per_s"] is None


def test_the_engine_holds_both_gpus_by_its_own_bytes(demo):
    document = deploykit(demo[0], "inspect", "deploykit-out/tensorrt-rtx/int8/DigitsCNN.engine", "--json").stdout
    assert "sm89" in document
    assert "sm120" in document


def test_the_report_can_be_read_without_a_network(demo):
    page = (demo[0] / "deploykit-out" / "report.html").read_text(encoding="utf-8")
    for words in ("onnxruntime", "tensorrt-rtx", "only built", "simulated", "real"):
        assert words in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_the_second_run_is_cached(demo):
    done = deploykit(demo[0], "run", "deploykit.yaml", "--json")
    steps = json.loads(done.stdout)["metrics"]["steps"]
    assert {step["status"] for step in steps} == {"cached"}


def test_the_best_artifact_answers_stock_clients(demo):
    folder = demo[0]
    done = subprocess.run(
        [sys.executable, folder / "client.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    right = lines[0].rpartition("are ")[2]
    assert f"tritonclient, JSON: {right}" in lines
    assert f"tritonclient, binary tensors: {right}" in lines
    assert any("/predict" in line and line.endswith(right.strip("[]").split(",")[0]) for line in lines)
    assert lines[-1] == "the server stopped with exit code 0"
