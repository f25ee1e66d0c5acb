"""The build bundle: what is in it, that it repeats, and that its program builds, runs and compares on its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_gpu import FakeDriver, add_runtime
from fake_tensorrt import make

import deploykit
from deploykit.converters.tensorrt import engine, why_not_here
from deploykit.converters.tensorrt.execution import Session
from deploykit.errors import ExitCode, OutputError, UnavailableError

pytestmark = pytest.mark.skipif(why_not_here() is None, reason="engines are built here")
PROGRAM = """
import sys
sys.path[:0] = [{here!r}]
import fake_gpu, fake_tensorrt
sys.modules["tensorrt"] = fake_gpu.add_runtime(fake_tensorrt.make({version!r}), "model.onnx", off={off})
sys.modules["deploykit"] = None  # the bundle stands alone
sys.argv = ["build.py"]
sys.path.insert(0, ".")
import build
raise SystemExit(build.main([], driver=fake_gpu.FakeDriver()))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A bundle of a model with two profiles, and its report."""
    import onnx
    from fake_tensorrt import CNN

    folder = tmp_path_factory.mktemp("bundle")
    onnx.save(onnx.parser.parse_model(CNN), folder / "model.onnx")
    report = deploykit.convert(
        folder / "model.onnx",
        to="tensorrt@10.16",
        output=folder / "m.engine",
        profiles=["image=1x1x8x8:2x1x8x8:4x1x8x8", "image=5x1x8x8:6x1x8x8:8x1x8x8"],
        options={"timing_cache": "layers.cache", "workspace": "256MiB"},
    )
    return folder / "m.bundle", report


def test_it_is_exit_3_passed_and_kept(made):
    home, report = made
    assert (report.exit_code, report.status) == (ExitCode.UNAVAILABLE, "passed")
    assert report.artifact.path == home
    assert report.artifact.execution == "none"
    assert report.metrics["parity"] is None
    (told,) = report.findings
    assert told.code == "DK590"
    assert "no NVIDIA" in told.message
    assert "trtexec.sh" in told.message
    assert not home.with_suffix(".engine").exists()  # never a pretend engine


def test_what_is_in_it(made):
    home, report = made
    facts = json.loads((home / "bundle.json").read_text())
    assert facts["format"] == "deploykit.bundle/1"
    assert facts["check"]["verdict"] == "runs whole"
    assert json.loads((home / "profiles.json").read_text())[1]["image"][2] == [8, 1, 8, 8]
    line = (home / "trtexec.sh").read_text()
    assert "--stronglyTyped" in line
    assert "--profile=1 --minShapes=image:5x1x8x8" in line
    sample = facts["samples"][0]
    inputs, outputs = np.load(home / sample["inputs"]), np.load(home / sample["outputs"])
    import onnxruntime

    session = onnxruntime.InferenceSession(home / "model.onnx")
    np.testing.assert_allclose(session.run(None, dict(inputs))[0], outputs["scores"], rtol=1e-5)
    found = deploykit.inspect(home)
    assert found.artifact.format == "tensorrt-bundle"
    assert found.metrics["samples"] == len(facts["samples"])
    assert report.artifact.sha256 == found.artifact.sha256


def test_the_same_model_gives_the_same_bytes_in_another_process(made, tmp_path):
    home, _ = made
    shutil.copy(home.parent / "model.onnx", tmp_path / "model.onnx")
    call = (
        "import deploykit, sys; r = deploykit.convert('model.onnx', to='tensorrt@10.16', output='again.bundle', "
        "profiles=['image=1x1x8x8:2x1x8x8:4x1x8x8', 'image=5x1x8x8:6x1x8x8:8x1x8x8'], "
        "options={'timing_cache': 'layers.cache', 'workspace': '256MiB'}); print(r.artifact.path)"
    )
    subprocess.run([sys.executable, "-c", call], cwd=tmp_path, check=True)
    first = {p.relative_to(home): p.read_bytes() for p in home.rglob("*") if p.is_file()}
    again = tmp_path / "again.bundle"
    assert {p.relative_to(again): p.read_bytes() for p in again.rglob("*") if p.is_file()} == first


def run(home, version, off=0.0):
    program = PROGRAM.format(here=str(Path(__file__).parent), version=version, off=off)
    return subprocess.run([sys.executable, "-c", program], cwd=home, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["8.6.1", "10.13.3", "11.4.1"])
def test_its_program_builds_and_compares_with_every_generation(made, tmp_path, version):
    home = shutil.copytree(made[0], tmp_path / "copied")
    done = run(home, version)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PASSED") == 3
    assert "equal to the ONNX model" in done.stdout
    facts = json.loads((home / "model.engine.deploykit.json").read_text())
    assert facts["built_for"] == {"tensorrt": version, "gpu": "Fake GPU", "compute_capabilities": ["8.9"]}
    assert facts["execution"] == "real"
    assert (home / "layers.cache").read_bytes() == b"+timed"


def test_its_program_fails_where_other_values_are_computed(made, tmp_path):
    done = run(shutil.copytree(made[0], tmp_path / "copied"), "10.13.3", off=0.01)
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert "OTHER VALUES" in done.stdout


def test_its_program_says_what_is_missing(made):
    done = subprocess.run([sys.executable, "build.py"], cwd=made[0], capture_output=True, text=True)
    assert done.returncode == 3
    assert "no engine can be built here" in done.stderr


def test_the_output_has_the_suffix_of_an_engine_or_none(made, tmp_path):
    with pytest.raises(OutputError) as caught:
        deploykit.convert(
            made[0].parent / "model.onnx", to="tensorrt", output=tmp_path / "m.plan", dims={"batch": [1, 2]}
        )
    assert caught.value.code == "DK123"
    with pytest.raises(UnavailableError) as there:
        deploykit.validate(made[0].parent / "model.onnx", made[0])
    assert there.value.code == "DK502"


def test_a_session_changes_profiles_and_refuses_other_shapes(made):
    trt = add_runtime(make("10.13.3"), made[0] / "model.onnx")
    profiles = json.loads((made[0] / "profiles.json").read_text())
    built = engine.build(trt, engine.logger(trt), str(made[0] / "model.onnx"), {}, profiles)
    driver = FakeDriver()
    session = Session(trt, driver, engine.logger(trt), bytes(built.plan))
    import onnxruntime

    reference = onnxruntime.InferenceSession(made[0] / "model.onnx")
    for batch in (1, 8, 2, 4):
        feed = {"image": np.random.default_rng(batch).normal(size=(batch, 1, 8, 8)).astype(np.float32)}
        np.testing.assert_allclose(session.run(feed)["scores"], reference.run(None, feed)[0], rtol=1e-6)
    assert trt.asked["switched"] == [1, 0]
    with pytest.raises(ValueError, match=r"no profile of the engine takes image \(9, 1, 8, 8\)"):
        session.run({"image": np.zeros((9, 1, 8, 8), np.float32)})
    session.close()
    assert driver.buffers == {}


def test_run_goes_on_with_other_targets(made, tmp_path):
    model = made[0].parent / "model.onnx"
    report = deploykit.run(str(model), to=("tensorrt", "onnxruntime"), dims=("batch=1..4",), output=tmp_path / "out")
    assert report.exit_code == ExitCode.UNAVAILABLE
    assert report.status == "passed"
    rows = {row["target"]: row for row in report.metrics["rows"]}
    assert rows["onnxruntime"]["status"] == "passed"
    assert rows["onnxruntime"]["execution"] == "real"
    assert (tmp_path / "out/tensorrt/fp32/model.bundle/bundle.json").is_file()
    assert not (tmp_path / "out/tensorrt/fp32/model.engine").exists()
