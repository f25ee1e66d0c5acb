"""Exports are equal to their source over every dynamic dimension, or nothing is written."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import deploykit
from deploykit.errors import DeploykitError, ModelError
from deploykit.isolation import workers

MODULES = """
import torch
from torch import nn
from layers import Double


class Branch(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x - 1


class SliceAssign(nn.Module):
    def forward(self, x):
        a = x.repeat(3, 2)
        a[:2] = x * 2
        return a


class TrainMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.BatchNorm1d(4)
        self.d = nn.Dropout(0.5)

    def forward(self, x):
        return self.d(self.b(x))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.LayerNorm(4)

    def forward(self, x):
        return torch.nn.functional.gelu(self.n(x)).split(2, -1)


class Flatten(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.l = nn.Linear(width, 2)

    def forward(self, x):
        return self.l(x).reshape(x.shape[0], -1)


class Frozen(nn.Module):
    def forward(self, x):
        return x.reshape(int(x.shape[0]) * 4) if x.shape[0] != 7 else x.reshape(28)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = Double()

    def forward(self, a, b, mask=None):
        return {"sum": self.d(a) + b, "product": a * b}


class Halves(nn.Module):
    def forward(self, x):
        return x[:, ::2] + x[:, 1::2]


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


def broken():
    raise RuntimeError("no data here")
"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    """One torch process for the whole module."""
    with workers() as found:
        yield found


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources") / "a folder, ünïcode"
    folder.mkdir()
    (folder / "nets.py").write_text(MODULES)
    (folder / "layers.py").write_text(
        "from torch import nn\n\n\nclass Double(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    )
    return lambda name: f"{folder / 'nets.py'}:{name}"


def run(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    """Outputs of onnxruntime without graph optimisation: the independent side."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def refusal(*args, output: Path, **options) -> DeploykitError:
    with pytest.raises(DeploykitError) as raised:
        deploykit.export(*args, output=output, **options)
    assert not list(output.parent.glob("*")), "something was written"
    return raised.value


def test_a_batch_of_one_stays_dynamic(source, tmp_path):
    out = tmp_path / "flat.onnx"
    report = deploykit.export(source("Flatten"), output=out, inputs=["x:float32[batch,4]"], dims=["batch=1..5"])
    assert report.exit_code == 0
    assert report.artifact.inputs[0].shape == ("batch", 4)
    assert report.artifact.outputs[0].as_dict() == {"name": "output", "dtype": "float32", "shape": ["batch", 2]}
    assert report.metrics["exporter"] == "dynamo"
    assert report.artifact.execution == "real"
    for batch in (1, 5):
        assert run(out, x=np.ones((batch, 4), np.float32))[0].shape == (batch, 2)


def test_the_same_source_gives_the_same_bytes_without_machine_paths(source, tmp_path):
    for name in ("a.onnx", "b.onnx"):
        deploykit.export(source("Flatten"), output=tmp_path / name, inputs=["x:float32[batch,4]"])
    first, second = ((tmp_path / name).read_bytes() for name in ("a.onnx", "b.onnx"))
    assert first == second
    folder = str(Path(source("Flatten")).parent.parent)
    for secret in (folder, "site-packages", str(Path.cwd())):
        assert secret.encode() not in first
        assert secret not in (tmp_path / "a.onnx.deploykit.json").read_text()
    assert b"namespace" in first, "module scopes name where a node comes from"


def test_a_branch_on_data_is_refused_with_its_line(source, tmp_path):
    for exporter in ("auto", "torchscript"):
        error = refusal(source("Branch"), output=tmp_path / "b.onnx", inputs=["x:float32[3]"], exporter=exporter)
        assert isinstance(error, ModelError)
        assert error.code == "DK613"
        assert "return x * 2 if x.sum() > 0 else x - 1" in error.context[0]
        assert "nets.py:9 in forward" in error.context[0]


def test_assignment_to_a_slice_is_kept(source, tmp_path):
    out = tmp_path / "s.onnx"
    deploykit.export(source("SliceAssign"), output=out, inputs=["x:float32[2,1]"])
    x = torch.tensor([[3.0], [-1.0]])
    expected = x.repeat(3, 2)
    expected[:2] = x * 2
    np.testing.assert_array_equal(run(out, x=x.numpy())[0], expected.numpy())


def test_training_modules_are_exported_in_evaluation_mode(source, tmp_path):
    out = tmp_path / "t.onnx"
    assert deploykit.export(source("TrainMode"), output=out, inputs=["x:float32[n,4]"]).exit_code == 0
    operators = [node.op_type for node in onnx.load(out).graph.node]
    assert "Dropout" not in operators
    x = np.full((3, 4), 2, np.float32)
    # Fresh running statistics are mean 0, variance 1: x / sqrt(1 + 1e-5).
    np.testing.assert_allclose(run(out, x=x)[0], x / np.sqrt(1 + 1e-5), rtol=1e-5)


@pytest.mark.parametrize(("opset", "exporter"), [(16, "torchscript"), (18, "dynamo"), (22, "dynamo")])
def test_the_opset_is_the_one_that_was_asked_for(source, tmp_path, opset, exporter):
    out = tmp_path / "n.onnx"
    report = deploykit.export(source("Norm"), output=out, inputs=["x:float32[2,4]"], opset=opset)
    assert report.metrics["exporter"] == exporter
    assert report.artifact.opset == opset
    assert [entry.version for entry in onnx.load(out).opset_import if entry.domain == ""] == [opset]
    assert [spec.name for spec in report.artifact.outputs] == ["output_0", "output_1"]


def test_an_opset_below_the_exporter_s_range_is_refused(source, tmp_path):
    error = refusal(source("Norm"), output=tmp_path / "n.onnx", inputs=["x:float32[2,4]"], opset=16, exporter="dynamo")
    assert error.code == "DK612"


def test_a_frozen_dimension_fails_and_nothing_is_written(source, tmp_path):
    report = deploykit.export(source("Frozen"), output=tmp_path / "f.onnx", inputs=["x:float32[n,4]"], dims=["n=1..9"])
    assert report.exit_code == 1
    text = " ".join(finding.message for finding in report.findings)
    assert "became the constant" in text
    assert report.artifact is None
    assert not list(tmp_path.iterdir())


def test_several_inputs_keep_their_order_and_outputs_take_their_keys(source, tmp_path):
    out = tmp_path / "two.onnx"
    report = deploykit.export(
        source("TwoInputs"), output=out, inputs=["b:float32[n,4]", "a:float32[n,4]"], dims=["n=1..8"]
    )
    assert [spec.name for spec in report.artifact.inputs] == ["b", "a"]
    assert [spec.name for spec in report.artifact.outputs] == ["sum", "product"]
    a, b = np.float32([[1, 2, 3, 4]]), np.float32([[5, 6, 7, 8]])
    total, product = run(out, a=a, b=b)
    np.testing.assert_allclose(total, 2 * a + b)
    np.testing.assert_allclose(product, a * b)


def test_the_imported_python_files_are_reported_with_digests(source, tmp_path):
    report = deploykit.export(source("TwoInputs"), output=tmp_path / "t.onnx", inputs=["a:float32[4]", "b:float32[4]"])
    files = report.metrics["source_files"]
    assert sorted(Path(file).name for file in files) == ["layers.py", "nets.py"]
    assert not list(Path(next(iter(files))).parent.glob("__pycache__"))


def test_the_second_exporter_is_used_and_both_reasons_are_told(source, tmp_path):
    report = deploykit.export(
        source("Halves"), output=tmp_path / "h.onnx", inputs=["x:float32[n,h]"], dims=["n=1..4", "h=2..12"]
    )
    assert report.exit_code == 0
    assert report.metrics["exporter"] == "torchscript"
    codes = {finding.code: finding.message for finding in report.findings}
    assert "dynamo exporter failed" in codes["DK617"]
    assert "the module itself fails" in codes["DK624"], "an odd h is the module's own refusal"


def test_a_random_module_fails_with_its_line(source, tmp_path):
    report = deploykit.export(source("Noise"), output=tmp_path / "noise.onnx", inputs=["x:float32[3]"])
    assert report.exit_code == 1
    assert report.error.code == "DK685"
    assert "nets.py" in report.error.context[0]
    assert "randn_like" in report.error.context[0]
    assert not list(tmp_path.glob("*"))


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("TwoInputs", {}, "DK620"),
        ("TwoInputs", {"inputs": ["a:float32[4]"]}, "DK620"),
        ("Flatten", {"inputs": ["x:float32[n,4]"], "dims": ["m=1..2"]}, "DK620"),
        ("Flatten", {"inputs": ["x:float32[n,5]"]}, "DK621"),
        ("Flatten", {"inputs": ["x:float32[n,4]"], "args": ["widht=4"]}, "DK604"),
        ("Flaten", {"inputs": ["x:float32[n,4]"]}, "DK603"),
        ("broken", {"inputs": ["x:float32[n,4]"]}, "DK610"),
        ("Flatten", {"inputs": ["x:float32[n,4]"], "exporter": "magic"}, "DK604"),
    ],
)
def test_what_does_not_fit_is_a_usage_error(source, tmp_path, name, options, code):
    error = refusal(source(name), output=tmp_path / "x.onnx", **options)
    assert (error.code, error.exit_code) == (code, 2)


@pytest.mark.parametrize("options", [{"sample": __file__}, {"exporter": "dynamo"}, {"weights": __file__}])
def test_an_onnx_file_takes_no_options_of_other_sources(tmp_path, options):
    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[1] x) => (float[1] y) { y = Relu(x) }'
    for folder in ("from", "to"):
        (tmp_path / folder).mkdir()
    onnx.save(onnx.parser.parse_model(text), tmp_path / "from" / "m.onnx")
    error = refusal(tmp_path / "from" / "m.onnx", output=tmp_path / "to" / "x.onnx", **options)
    assert (error.code, error.exit_code) == ("DK604", 2)


def test_constructor_arguments_change_the_module(source, tmp_path):
    report = deploykit.export(
        source("Flatten"), output=tmp_path / "w.onnx", inputs=["x:float32[n,6]"], args=["width=6"]
    )
    assert report.exit_code == 0


def test_a_sample_gives_shapes_and_values(source, tmp_path):
    np.savez(tmp_path / "sample.npz", x=np.ones((1, 4), np.float32))
    report = deploykit.export(source("Flatten"), output=tmp_path / "s.onnx", sample=tmp_path / "sample.npz")
    assert report.artifact.inputs[0].shape == (1, 4)
    dynamic = deploykit.export(
        source("Flatten"),
        output=tmp_path / "d.onnx",
        inputs=["x:float32[batch,4]"],
        sample=tmp_path / "sample.npz",
    )
    assert dynamic.artifact.inputs[0].shape == ("batch", 4), "a sample of batch 1 does not freeze the batch"


def test_weights_are_loaded_from_both_formats(source, tmp_path):
    from safetensors.torch import save_file

    state = {"l.weight": torch.full((2, 4), 0.5), "l.bias": torch.tensor([1.0, -1.0])}
    torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, tmp_path / "w.pt")
    save_file(state, tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        out = tmp_path / f"{name}.onnx"
        deploykit.export(source("Flatten"), output=out, inputs=["x:float32[n,4]"], weights=tmp_path / name)
        np.testing.assert_allclose(run(out, x=np.ones((1, 4), np.float32))[0], [[3.0, 1.0]])


def test_weights_of_another_module_name_the_keys(source, tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    torch.save({"l.weight": torch.zeros(2, 4), "l.biass": torch.zeros(2)}, folder / "w.pt")
    out = tmp_path / "out"
    out.mkdir()
    error = refusal(source("Flatten"), output=out / "x.onnx", inputs=["x:float32[n,4]"], weights=folder / "w.pt")
    assert error.code == "DK608"
    assert any("missing" in line and "l.bias" in line for line in error.context)
    assert any("l.biass" in line for line in error.context)


class Trap:
    """Writes a marker file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


def test_weights_that_are_a_pickle_are_not_run(source, tmp_path):
    folder, out = tmp_path / "weights", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    torch.save({"l.weight": Trap(folder / "marker")}, folder / "w.pt")
    error = refusal(source("Flatten"), output=out / "x.onnx", inputs=["x:float32[n,4]"], weights=folder / "w.pt")
    assert error.code == "DK607"
    assert not (folder / "marker").exists()


def exported_program(path: Path) -> Path:
    dim = torch.export.Dim("rows", max=16)
    program = torch.export.export(torch.nn.Linear(4, 2).eval(), (torch.ones(3, 4),), dynamic_shapes=({0: dim},))
    torch.export.save(program, path)
    return path


def test_an_exported_program_keeps_its_dimensions(tmp_path):
    path = exported_program(tmp_path / "lin.pt2")
    report = deploykit.export(path, output=tmp_path / "a.onnx")
    assert isinstance(report.artifact.inputs[0].shape[0], str)
    named = deploykit.export(path, output=tmp_path / "b.onnx", inputs=["x:float32[batch,4]"], dims=["batch=1..8"])
    assert [spec.shape for spec in (*named.artifact.inputs, *named.artifact.outputs)] == [("batch", 4), ("batch", 2)]


def test_pickles_in_an_exported_program_are_not_run(tmp_path):
    good = exported_program(tmp_path / "good.pt2")
    marker = tmp_path / "marker"
    evil = tmp_path / "evil.pt2"
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(evil, "w") as made:
        for name in source.namelist():
            trapped = name.endswith(".pt")
            made.writestr(name, pickle.dumps(Trap(marker)) if trapped else source.read(name))
    with pytest.raises(DeploykitError) as refused:
        deploykit.export(evil, output=tmp_path / "x.onnx")
    assert refused.value.exit_code == 2
    assert not marker.exists()


def test_torchscript_files_are_exported(tmp_path):
    module = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).eval())
    module.save(str(tmp_path / "m.pt"))
    out = tmp_path / "m.onnx"
    report = deploykit.export(tmp_path / "m.pt", output=out, inputs=["x:float32[batch,4]"], dims=["batch=1..8"])
    assert report.metrics["exporter"] == "torchscript"
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(run(out, x=x)[0], module(torch.from_numpy(x)).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_file_of_a_package_is_sent_to_its_module(tmp_path):
    folder = tmp_path / "pkg" / "nets"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "net.py").write_text("from .layers import Net\n")
    (tmp_path / "out").mkdir()
    error = refusal(f"{folder / 'net.py'}:Net", output=tmp_path / "out" / "x.onnx", inputs=["x:float32[n,4]"])
    assert error.code == "DK610"
    assert error.hint.endswith(f"cd {tmp_path} && deploykit export pkg.nets.net:NAME")
