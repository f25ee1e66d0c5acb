import subprocess
import sys
import zipfile

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import deploykit
from deploykit.errors import DeploykitError, InvalidFileError, UnavailableError, UsageError, VendorError
from deploykit.isolation import workers
from deploykit.runtime import open_runtime

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 5)
    def forward(self, image):
        return self.head(torch.relu(self.conv(image)).mean((2, 3)))

class Decides(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(4, 4)
    def forward(self, x):
        if bool(x.sum() > 0):
            return self.head(x)
        return -x

class Refuses(torch.nn.Module):
    def forward(self, x):
        if bool(x.sum() > 0):
            return x + float(str(2.5)[:3])
        return eval("-x")

class Scaled(torch.nn.Module):
    def forward(self, a, b, *, scale):
        return a + b * scale, a - b

class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(4, 2).half()
    def forward(self, x):
        return self.head(x)
"""
IMAGE = ["image:float32[batch,3,height,8]"]
X = ["x:float32[batch,4]"]
BOTH = pytest.mark.parametrize(("to", "suffix"), [("torchscript", ".pt"), ("pt2", ".pt2")])


@pytest.fixture(scope="module", autouse=True)
def _workers():
    with workers():
        yield


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "net.py"
    path.write_text(SOURCE)
    return path


def make(net, name, to, output, inputs, **options):
    return deploykit.convert(f"{net}:{name}", to=to, output=output, inputs=inputs, samples=2, options=options)


def eager(net, name, *tensors, **named):
    scope: dict = {}
    exec(compile(net.read_text(), str(net), "exec"), scope)
    with torch.no_grad():
        return scope[name]().eval()(*tensors, **named)


@BOTH
def test_a_module_becomes_an_artifact_with_its_names_and_open_sizes(net, tmp_path, to, suffix):
    report = make(net, "Net", to, tmp_path / f"m{suffix}", IMAGE)
    assert not report.failed, report.findings
    assert report.artifact.execution == "real"
    assert report.metrics["parity"]["source"]["samples"] > 2
    runtime = open_runtime(tmp_path / f"m{suffix}")
    assert [(s.name, s.shape) for s in runtime.inputs] == [("image", ("batch", 3, "height", 8))]
    for batch, height in ((2, 8), (5, 9)):
        image = np.random.default_rng(batch).normal(size=(batch, 3, height, 8)).astype(np.float32)
        wanted = eager(net, "Net", torch.from_numpy(image)).numpy()
        np.testing.assert_allclose(runtime.predict({"image": image})["output"], wanted, 1e-5, 1e-6)
    facts = deploykit.inspect(tmp_path / f"m{suffix}").metrics
    assert facts["dynamic_dims"] == ["batch", "height"]
    assert facts["nodes"] > 3


@BOTH
def test_arguments_by_name_only_and_several_outputs(net, tmp_path, to, suffix):
    inputs = ["a:float32[n,4]", "b:float32[n,4]", "scale:float32[]"]
    assert not make(net, "Scaled", to, tmp_path / f"m{suffix}", inputs).failed
    a, b = (np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32) for seed in (1, 2))
    found = open_runtime(tmp_path / f"m{suffix}").predict({"a": a, "b": b, "scale": np.array(2, np.float32)})
    np.testing.assert_allclose(found["output_0"], a + 2 * b, 1e-6)
    np.testing.assert_allclose(found["output_1"], a - b, 1e-6)


@BOTH
def test_half_precision_stays(net, tmp_path, to, suffix):
    report = make(net, "Half", to, tmp_path / f"m{suffix}", ["x:float16[batch,4]"])
    assert not report.failed
    assert report.artifact.precision == "fp16"
    assert (
        open_runtime(tmp_path / f"m{suffix}").predict({"x": np.ones((2, 4), np.float16)})["output"].dtype == np.float16
    )


def test_what_values_decide_is_scripted_and_not_frozen(net, tmp_path):
    report = make(net, "Decides", "torchscript", tmp_path / "m.pt", X)
    assert not report.failed
    assert report.metrics["method"] == "script"
    runtime = open_runtime(tmp_path / "m.pt")
    for sign in (1, -1):
        x = sign * np.ones((2, 4), np.float32)
        np.testing.assert_allclose(
            runtime.predict({"x": x})["output"], eager(net, "Decides", torch.from_numpy(x)), 1e-6
        )


def test_a_trace_that_was_asked_for_fails_where_it_has_frozen_a_decision(net, tmp_path):
    report = make(net, "Decides", "torchscript", tmp_path / "m.pt", X, method="trace")
    codes = {finding.code for finding in report.findings}
    assert report.failed
    assert {"DK582", "DK532"} <= codes
    assert not (tmp_path / "m.pt").exists()


def test_what_cannot_be_scripted_is_refused_with_the_line_that_decides(net, tmp_path):
    with pytest.raises(VendorError, match=r"torch\.jit\.script does not take") as refused:
        make(net, "Refuses", "torchscript", tmp_path / "m.pt", X)
    assert refused.value.code == "DK556"
    assert "x.sum() > 0" in " ".join(refused.value.context)


def test_torch_export_refuses_what_values_decide(net, tmp_path):
    with pytest.raises(VendorError, match=r"torch\.export does not take") as refused:
        make(net, "Decides", "pt2", tmp_path / "m.pt2", X)
    assert "route=onnx" not in refused.value.hint


def test_a_bad_method_is_refused(net, tmp_path):
    with pytest.raises(UsageError, match="none of auto, trace, script"):
        make(net, "Net", "torchscript", tmp_path / "m.pt", IMAGE, method="freeze")


@BOTH
def test_onnx_is_refused_with_the_way(shared_model, tmp_path, to, suffix):
    with pytest.raises(UnavailableError, match="not made from an ONNX model") as refused:
        deploykit.convert(shared_model("digits/digits_cnn.onnx"), to=to, output=tmp_path / f"m{suffix}")
    assert refused.value.code == "DK214"


def test_an_artifact_is_a_source_again(net, tmp_path):
    make(net, "Net", "pt2", tmp_path / "m.pt2", IMAGE)
    assert not deploykit.convert(tmp_path / "m.pt2", to="torchscript", output=tmp_path / "m.pt", samples=2).failed
    exported = deploykit.export(tmp_path / "m.pt2", output=tmp_path / "m.onnx")
    assert not exported.failed
    for reference, candidate in (("m.pt2", "m.onnx"), ("m.onnx", "m.pt2"), ("m.onnx", "m.pt")):
        report = deploykit.validate(tmp_path / reference, tmp_path / candidate, samples=3)
        assert not report.failed, (reference, report.findings)
        assert report.metrics["outputs"][0]["name"] == "output"


@pytest.mark.slow
@BOTH
def test_two_processes_in_two_folders_write_the_same_bytes(net, tmp_path, to, suffix):
    texts = []
    for place in "ab":
        folder = tmp_path / place
        folder.mkdir()
        (folder / "net.py").write_text(SOURCE)
        command = [sys.executable, "-m", "deploykit", "convert", "net.py:Net", "--to", to, "-o", f"m{suffix}"]
        subprocess.run([*command, "--input", IMAGE[0], "--samples", "1"], cwd=folder, check=True, capture_output=True)
        texts.append((folder / f"m{suffix}").read_bytes())
    assert texts[0] == texts[1]
    assert str(tmp_path).encode() not in b"".join(
        zipfile.ZipFile(tmp_path / "a" / f"m{suffix}").read(n)
        for n in zipfile.ZipFile(tmp_path / "a" / f"m{suffix}").namelist()
    )


@BOTH
def test_weights_without_a_program_and_damaged_files_are_refused(tmp_path, to, suffix):
    torch.save({"w": torch.ones(2)}, tmp_path / f"weights{suffix}")
    (tmp_path / f"text{suffix}").write_text("nothing")
    for name in ("weights", "text"):
        with pytest.raises((InvalidFileError, DeploykitError)) as refused:
            deploykit.inspect(tmp_path / f"{name}{suffix}")
        assert refused.value.code == "DK528"


def test_files_made_elsewhere_are_run(net, tmp_path):
    scope: dict = {}
    exec(compile(SOURCE, "net", "exec"), scope)
    module, image = scope["Net"]().eval(), torch.randn(2, 3, 8, 8)
    torch.jit.save(torch.jit.trace(module, image), tmp_path / "m.pt")
    torch.export.save(torch.export.export(module, (image,)), tmp_path / "m.pt2")
    for name in ("m.pt", "m.pt2"):
        found = open_runtime(tmp_path / name).predict({"image": image.numpy()})
        np.testing.assert_allclose(found["output"], module(image).detach().numpy(), 1e-5, 1e-6)
