"""run_stage publishes what passed every gate, and nothing else."""

import errno
import os

import pytest

from deploykit.artifact import Artifact, TensorSpec, read_manifest
from deploykit.errors import ExitCode, GateError, OutputError
from deploykit.progress import Progress
from deploykit.report import failure, note, warning
from deploykit.stage import Product, Stage, Verification, run_stage


class Copy(Stage):
    """Copies its input with a companion file; each step can be told to do something else."""

    name = "copy"

    def __init__(self, requires=(), run=None, product=None, ensures=None):
        self.found, self.during, self.product, self.verify = requires, run, product or {}, ensures

    @property
    def options(self):
        return {"b": 2, "a": 1}

    def requires(self, inputs):
        return list(self.found)

    def run(self, inputs, output, on_progress):
        on_progress(Progress("copying", "it", 1, 1))
        output.write_bytes(inputs["model"].path.read_bytes())
        output.with_name("m.bin").write_text("bin")
        if self.during:
            self.during(output)
        return Product(
            **{
                "format": "openvino",
                "inputs": (TensorSpec("x", "float32", ("n",)),),
                "files": (output.name, "m.bin"),
                "tool_versions": {"tool": "1"},
                **self.product,
            }
        )

    def ensures(self, inputs, made, on_progress):
        assert made.path.read_bytes() == inputs["model"].path.read_bytes()
        return self.verify(made) if self.verify else Verification(execution="real", metrics={"checked": 1})


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "m.onnx").write_text("model")
    return {"model": Artifact.of(folder / "m.onnx", "onnx")}


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "m.xml"


def test_a_published_artifact_has_files_manifest_and_origin(source, out):
    steps = []
    report = run_stage(Copy(product={"metrics": {"size": 5}}), source, out, on_progress=steps.append)
    artifact = report.artifact
    assert sorted(p.name for p in out.parent.iterdir()) == ["m.bin", "m.xml", "m.xml.deploykit.json"]
    assert (report.status, report.metrics) == ("passed", {"size": 5, "checked": 1})
    assert (artifact.path, artifact.execution, artifact.stage) == (out, "real", "copy")
    assert artifact.parent_sha256 == source["model"].sha256
    assert read_manifest(out) == artifact
    assert [step.stage for step in steps] == ["copying"]
    assert report.seconds > 0


def test_manifests_are_the_same_wherever_and_whenever(source, out, tmp_path):
    other = tmp_path / "другое место" / "m.xml"
    other.parent.mkdir()
    for path in (out, other):
        run_stage(Copy(), source, path)
    assert out.with_name("m.xml.deploykit.json").read_bytes() == other.with_name("m.xml.deploykit.json").read_bytes()


def gate(_):
    raise GateError("the vendor's parser refuses node 'n'", node="n")


@pytest.mark.parametrize(
    "stage",
    [
        Copy(requires=[failure("DK2", "unsupported")]),
        Copy(run=gate),
        Copy(product={"findings": [failure("DK4", "bad")]}),
        Copy(ensures=lambda made: Verification(findings=[failure("DK401", "differs")])),
        Copy(ensures=gate),
    ],
    ids=["requires", "run raises", "run finds", "ensures finds", "ensures raises"],
)
@pytest.mark.parametrize("old", [True, False])
def test_a_failed_gate_publishes_nothing(source, out, stage, old):
    if old:
        out.write_text("old")
    report = run_stage(stage, source, out, force=True)
    assert (report.status, report.exit_code, report.artifact) == ("failed", ExitCode.GATE_FAILED, None)
    assert [p.name for p in out.parent.iterdir()] == (["m.xml"] if old else [])
    assert not old or out.read_text() == "old"
    assert report.as_dict()["findings"]


def test_warnings_and_notes_do_not_stop(source, out):
    stage = Copy(requires=[warning("DK2", "w")], product={"findings": [note("DK3", "n")]})
    report = run_stage(stage, source, out)
    assert report.status == "passed"
    assert [finding.code for finding in report.findings] == ["DK2", "DK3"]


def test_an_existing_output_is_refused_before_any_work(source, out):
    out.write_text("old")
    worked = []
    with pytest.raises(OutputError) as caught:
        run_stage(Copy(run=worked.append), source, out)
    assert caught.value.code == "DK120"
    assert worked == []


@pytest.mark.parametrize("where", ["run", "ensures"])
@pytest.mark.parametrize("problem", [KeyboardInterrupt, ValueError])
def test_interrupts_and_bugs_leave_what_was_there(source, out, where, problem):
    def stop(_):
        raise problem

    out.write_text("old")
    with pytest.raises(problem):
        run_stage(Copy(**{where: stop}), source, out, force=True)
    assert {p.name: p.read_text() for p in out.parent.iterdir()} == {"m.xml": "old"}


def test_a_full_disk(source, out):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OutputError) as caught:
        run_stage(Copy(run=full), source, out)
    assert caught.value.code == "DK125"
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["m.onnx", "m.bin"])
def test_what_an_input_needs_is_never_replaced(tmp_path, name):
    (tmp_path / "m.onnx").write_text("model")
    (tmp_path / "m.bin").write_text("weights of the input")
    artifact = Artifact.of(tmp_path / "m.onnx", "onnx", files=("m.onnx", "m.bin"))
    output = tmp_path / "m.xml"
    with pytest.raises(OutputError, match=r"which .* needs") as caught:
        run_stage(
            Copy(run=lambda staging: staging.with_name(name).write_text("new")), {"model": artifact}, output, force=True
        )
    assert caught.value.code == "DK128"
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"m.onnx": "model", "m.bin": "weights of the input"}


def test_an_input_may_be_replaced_as_a_whole(tmp_path):
    (tmp_path / "m.xml").write_text("model")
    (tmp_path / "m.bin").write_text("weights")
    artifact = Artifact.of(tmp_path / "m.xml", "openvino", files=("m.xml", "m.bin"))
    run_stage(Copy(), {"model": artifact}, tmp_path / "m.xml", force=True)
    assert (tmp_path / "m.bin").read_text() == "bin"
