"""An interrupted calibration goes on where it was, and its ranges are those of one that was not interrupted."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from quantize_models import onnx_text

from deploykit.data import Sample
from deploykit.errors import DataError
from deploykit.quantize import resume
from deploykit.quantize.calibration import Calibration, tapped_session
from deploykit.quantize.prepare import load_float
from deploykit.quantize.ranges import load_ranges
from deploykit.quantize.resume import Keeper, is_progress
from deploykit.quantize.thresholds import METHODS

KEYS = {"model_sha256": "m", "data_sha256": "d", "method": "auto"}
TEXT = """g (float[n,4] x, float[1,4] h) => (float[n,4] y, float[1,4] hn) {
    a = MatMul (x, w)  y = Relu (a)  hn = Add (h, o)
}"""
RNG = np.random.default_rng(0)
START = {"h": np.zeros((1, 4), np.float32)}
SAMPLES = [
    Sample(
        {"x": RNG.normal(scale=1 + i, size=(5 + i, 4)).astype(np.float32), **(START if i == 0 else {})}, None, str(i)
    )
    for i in range(12)
]
NAMES = ["x", "a", "y", "h", "hn"]


@pytest.fixture
def model(tmp_path):
    weights = {"w": np.eye(4, dtype=np.float32), "o": np.ones((1, 4), np.float32)}
    return load_float(onnx_text(TEXT, tmp_path / "m.onnx", **weights))[0]


@pytest.fixture
def every_sample(monkeypatch):
    """Saves after each sample, however long that takes."""
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr(resume, "SHARE", float("inf"))


def calibrated(model, samples, keeper=None):
    done = []
    with tapped_session(model, NAMES) as session:
        run = Calibration(
            session,
            NAMES,
            samples,
            total=12,
            carry={"h": "hn"},
            keeper=keeper,
            on_progress=lambda s: done.append(s.done),
        )
        try:
            run.collect()
        except KeyboardInterrupt:
            return run, done
    return run, done


def interrupted(after):
    yield from SAMPLES[:after]
    raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 5, 6, 11])
def test_what_was_saved_goes_on_to_the_same_ranges(model, tmp_path, every_sample, after):
    file = tmp_path / "r.json"
    _, first = calibrated(model, lambda: interrupted(after), Keeper(file, KEYS))
    assert first == list(range(1, after + 1))
    assert is_progress(file)
    resumed, rest = calibrated(model, lambda: SAMPLES, Keeper(file, KEYS))
    assert rest == list(range(after + 1, 13))
    whole, _ = calibrated(model, lambda: SAMPLES)
    assert (resumed.resumed, resumed.count, resumed.repeated, resumed.zeros) == (after, 12, 0, 0)
    for method in METHODS:
        assert resumed.ranges(method) == whole.ranges(method)
    assert resumed.ranges("minmax")["hn"].maximum == 12.0


@pytest.mark.parametrize("key", KEYS)
def test_what_was_saved_of_something_else_is_refused(model, tmp_path, every_sample, key):
    file = tmp_path / "r.json"
    calibrated(model, lambda: interrupted(3), Keeper(file, KEYS))
    with pytest.raises(DataError) as caught:
        calibrated(model, lambda: SAMPLES, Keeper(file, {**KEYS, key: "other"}))
    assert caught.value.code == "DK362"


def test_data_that_became_shorter_is_refused(model, tmp_path, every_sample):
    file = tmp_path / "r.json"
    calibrated(model, lambda: interrupted(6), Keeper(file, KEYS))
    with pytest.raises(DataError, match="6 samples before it was interrupted and 4 now") as caught:
        calibrated(model, lambda: SAMPLES[:4], Keeper(file, KEYS))
    assert caught.value.code == "DK364"


def test_a_save_that_fails_leaves_the_one_before(model, tmp_path, every_sample, monkeypatch):
    file = tmp_path / "r.json"
    calibrated(model, lambda: interrupted(4), Keeper(file, KEYS))
    before = file.read_bytes()

    def no_space(target, **arrays):
        target.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(resume.np, "savez", no_space)
    calibrated(model, lambda: SAMPLES, Keeper(file, KEYS))
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "r.json"]


def test_saving_is_rare_enough_to_cost_little(model, tmp_path):
    keeper = Keeper(tmp_path / "r.json", KEYS)
    assert not keeper.due()
    calibrated(model, lambda: SAMPLES, keeper)
    assert not (tmp_path / "r.json").exists()


SCRIPT = """
    import sys
    from pathlib import Path
    from deploykit.data import data_request
    from deploykit.progress import silent
    from deploykit.quantize import resume
    from deploykit.quantize.measuring import measure_ranges
    from deploykit.quantize.plan import observable
    from deploykit.quantize.prepare import load_float
    from deploykit.quantize.settings import Settings

    resume.EVERY, resume.SHARE = 0.0, float("inf")
    model = load_float(Path("m.onnx"))[0]
    request = data_request("samples.py:samples", "calibration")
    settings = Settings(data=request, ranges="r.json", model_sha256="m", data_sha256="d")
    found = measure_ranges(model, observable(model), Path("m.onnx"), settings, silent)
    print([finding.code for finding in found.findings], found.ranges.samples, len(open("runs").read()))
"""
DATA = """
    import os, pathlib, signal
    import numpy as np

    def samples():
        killed = pathlib.Path("killed")
        for index in range(10):
            if index == 6 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            with open("runs", "a") as file:
                file.write(".")
            yield {"x": np.random.default_rng(index).normal(size=(3, 4)).astype(np.float32)}
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_process_goes_on_and_the_finished_ranges_replace_its_file(tmp_path):
    text = "g (float[n,4] x) => (float[n,4] y) { a = MatMul (x, w)  y = MatMul (a, w) }"
    onnx_text(text, tmp_path / "m.onnx", w=np.eye(4, dtype=np.float32))
    (tmp_path / "samples.py").write_text(textwrap.dedent(DATA))

    def process():
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ), check=False)

    assert process().returncode < 0
    assert is_progress(tmp_path / "r.json")
    second = process()
    assert second.stdout.startswith("['DK338'] 10"), second.stderr
    found = load_ranges(tmp_path / "r.json", model_sha256="m", data_sha256="d", method="auto")
    third = process()
    assert third.stdout.startswith("['DK360'] 10"), third.stderr
    (tmp_path / "r.json").unlink()
    assert process().returncode == 0
    assert load_ranges(tmp_path / "r.json", model_sha256="m", data_sha256="d", method="auto") == found
