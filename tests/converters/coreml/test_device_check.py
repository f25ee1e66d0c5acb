"""The check beside a package: what it holds, and its Python program run end to end with the interpreter as Core ML."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from PIL import Image

import deploykit
from deploykit import io
from deploykit.converters.coreml.device_check import check as program
from deploykit.converters.coreml.runtime import SimulatedRuntime
from deploykit.parity import TOLERANCES, OutputComparison

pytestmark = pytest.mark.usefixtures("pool")
HEADER = '<ir_version: 9, opset_import: ["" : 19]>'
NET = (
    HEADER
    + """
net (float[batch,3,4,4] image, int64[batch] kind, bool flag, float scale) => (float[batch,3] scores, int64[batch] twice,
 bool off)
<int64[2] axes = {2,3}, float[3,3] w = {1,0,2,0,1,0,3,0,1}, int64 two = {2}>
{
  p = ReduceMean <keepdims=0> (image, axes)
  m = MatMul (p, w)
  scores = Mul (m, scale)
  twice = Mul (kind, two)
  off = Not (flag)
}"""
)
PICTURE = (
    HEADER
    + """
net (float[1,3,4,6] image) => (float[1,3] scores)
<int64[2] axes = {2,3}>
{ p = ReduceMean <keepdims=0> (image, axes)
  scores = Softmax (p) }"""
)


class Model:
    """The interpreter where coremltools' MLModel is: the package's names, pictures as Pillow images."""

    def __init__(self, package, unit, change=0.0):
        self.runtime, self.unit, self.change = SimulatedRuntime(package), unit, change
        self.given = []

    def predict(self, given):
        self.given.append(given)
        feeds = {}
        for name, value in given.items():
            image = self.runtime.door.images.get(name)
            if image is None:
                feeds[name] = value
                continue
            rows = np.asarray(value)
            assert value.mode == ("RGB" if image.channels == 3 else "L")
            rows = rows[:, :, ::-1] if image.rule.color == "bgr" else rows
            feeds[name] = (rows.transpose(2, 0, 1) if rows.ndim == 3 else rows[None])[None]
        made = self.runtime._interpreter.run(feeds)
        return {
            name: value if isinstance(value, (str, int, dict)) else value + self.change for name, value in made.items()
        }


@pytest.fixture
def convert(tmp_path):
    def run(text, name="net", **options):
        model = tmp_path / f"{name}.onnx"
        onnx.save(onnx.parser.parse_model(text), model)
        given = {"dims": options.pop("dims", ())} | {k: options.pop(k) for k in ("data", "samples") if k in options}
        report = deploykit.convert(
            model, to="coreml", output=tmp_path / f"{name}.mlpackage", options=options, force=True, **given
        )
        assert not report.failed, report.findings
        return report, tmp_path / f"{name}.check"

    return run


def run_check(folder, capsys, change=0.0, *arguments):
    """Exit code, printed lines, and the models that were loaded."""
    loaded = []

    def load(package, unit):
        loaded.append(Model(package, unit, change))
        return loaded[-1]

    code = program.main(["--folder", str(folder), *arguments], loader=load)
    return code, capsys.readouterr().out.splitlines(), loaded


def test_arrays_and_their_types_are_checked_on_every_unit(convert, capsys):
    _, folder = convert(NET, dims=["batch=2"])
    code, lines, loaded = run_check(folder, capsys)
    assert code == 0, lines
    assert [model.unit for model in loaded] == ["CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"]
    first = loaded[0].given[0]
    kinds = {name: (array.dtype.name, array.shape) for name, array in first.items()}
    assert kinds == {
        "image": ("float32", (2, 3, 4, 4)), "kind": ("int32", (2,)), "flag": ("float32", (1,)),
        "scale": ("float32", (1,)),
    }  # fmt: skip
    assert len(loaded[0].given) == 3
    assert len([line for line in lines if line.startswith(("CPU", "ALL"))]) == 4 * 3


def test_a_wrong_output_is_found_and_ends_with_1(convert, capsys):
    _, folder = convert(NET, dims=["batch=2"])
    code, lines, _ = run_check(folder, capsys, 1e-2, "--unit", "cpu")
    assert code == 1
    assert {line.split()[1] for line in lines if "FAILED" in line and line.startswith("CPU")} == {
        "off",
        "scores",
        "twice",
    }
    assert lines[-1] == "FAILED"


def test_pictures_and_classes_are_checked(convert, capsys, tmp_path):
    (tmp_path / "names.json").write_text('["a", "b", "c"]')
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for number in range(4):
        Image.fromarray(rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)).save(tmp_path / "pictures" / f"{number}.png")
    _, folder = convert(
        PICTURE, image_input="image:bgr", image_scale="1/255", class_labels=str(tmp_path / "names.json"),
        data=str(tmp_path / "pictures"),
    )  # fmt: skip
    code, lines, loaded = run_check(folder, capsys)
    assert code == 0, lines
    # The picture is the user's own, red first, whatever order the package takes.
    given = np.asarray(loaded[0].given[0]["image"])
    own = [np.asarray(Image.open(tmp_path / "pictures" / f"{number}.png")) for number in range(4)]
    assert any(np.array_equal(given, picture) for picture in own)
    facts = json.loads((folder / "check.json").read_text())
    assert facts["outputs"]["scores"]["labels"] == ["a", "b", "c"]
    facts["outputs"]["scores"]["labels"] = ["a", "b", "d"]
    (folder / "check.json").write_text(json.dumps(facts))
    code, lines, _ = run_check(folder, capsys, 0.0, "--unit", "all")
    assert code == 1
    assert "other labels" in lines[-2]


def test_the_folder_stands_by_itself(convert, tmp_path):
    """Copied away, in an interpreter without deploykit: on another system than Apple's it says so and ends with 3."""
    report, folder = convert(NET, dims=["batch=1"])
    place = tmp_path / "elsewhere" / "net.check"
    shutil.copytree(folder, place)
    text = "import runpy, sys; sys.modules['deploykit'] = None; sys.argv = ['check.py']; "
    text += f"runpy.run_path({str(place / 'check.py')!r}, run_name='__main__')"
    made = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    if sys.platform != "darwin":
        assert made.returncode == 3
        assert "Apple systems only" in made.stderr
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "check.json", "samples", "check.py", "CoreMLCheck.swift", "main.swift", "CoreMLCheckTests.swift", "README.md",
    }  # fmt: skip
    assert report.artifact.companions == ("net.check",)
    written = json.loads((folder.parent / "net.mlpackage.deploykit.json").read_text())
    assert written["companions"] == {"net.check": io.digest([folder])}
    assert "net.check" not in written["files"]


def test_the_same_conversion_writes_the_same_check(convert):
    digests = set()
    for _ in range(2):
        _, folder = convert(NET, dims=["batch=2"])
        digests.add(io.digest([folder]))
    assert len(digests) == 1


def test_nothing_replaces_a_strangers_folder(tmp_path):
    from deploykit.errors import OutputError

    model = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(PICTURE), model)
    (tmp_path / "net.check").mkdir()
    (tmp_path / "net.check" / "mine.txt").write_text("kept")
    with pytest.raises(OutputError) as caught:
        deploykit.convert(model, to="coreml", output=tmp_path / "net.mlpackage")
    assert caught.value.code == "DK120"
    assert (tmp_path / "net.check" / "mine.txt").read_text() == "kept"
    assert not (tmp_path / "net.mlpackage").exists()


def test_a_sample_that_is_too_large_is_left_out_and_said(convert):
    large = HEADER + "net (float[1,3,900,900] x) => (float[1,3,900,900] y) { y = Relu (x) }"
    report, folder = convert(large, samples=1)
    assert not folder.exists()
    assert [finding.message for finding in report.findings if finding.code == "DK554"] == [
        "no check for a Mac lies beside the package: one sample with its outputs has 19 MiB, and 16 are kept at most"
    ]


def test_the_limits_are_those_of_the_comparison():
    """The program's own comparison against deploykit's, which it cannot import."""
    rng = np.random.default_rng(1)
    rows = [name for name in TOLERANCES if name != "bf16"]
    verdicts = set()
    for row in rows:
        limits = {
            "rtol": TOLERANCES[row].rtol, "atol_factor": TOLERANCES[row].atol_factor,
            "min_sqnr_db": TOLERANCES[row].min_sqnr_db,
        }  # fmt: skip
        for noise in (0, 1e-6, 1e-4, 1e-3, 3e-3, 1e-2, 5e-2, 0.2, np.nan):
            ours, theirs = OutputComparison("y", TOLERANCES[row]), program.Comparison(limits, exact=False)
            for _ in range(2):
                expected = rng.normal(size=(3, 5)).astype(np.float32)
                made = expected + np.float32(noise) * rng.normal(size=(3, 5)).astype(np.float32)
                ours.add(expected, made)
                theirs.add(expected, made)
            passed, largest, decibels = theirs.result()
            wanted = ours.result()
            assert passed == wanted["passed"], (row, noise)
            if passed and noise:
                assert largest == pytest.approx(wanted["max_abs"])
                assert decibels == pytest.approx(wanted["sqnr_db"])
            verdicts.add(passed)
    assert verdicts == {True, False}
