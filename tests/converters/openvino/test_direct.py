"""The direct routes: OpenVINO's own front-ends of PyTorch and TensorFlow, proven equal to the source."""

from __future__ import annotations

import pytest

import deploykit
from deploykit.artifact import TensorSpec
from deploykit.converters.openvino.torch_route import write
from deploykit.errors import UsageError, VendorError
from deploykit.isolation import workers
from deploykit.route import Handed

MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(3, 5, 3, padding=1)

    def forward(self, image, factor):
        return torch.relu(self.conv(image)).mean((2, 3)) * factor, image.sum((1, 2, 3))

def net():
    return Net().eval()

class Odd(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[1]

def odd():
    return Odd().eval()
"""
INPUTS = ["image:float32[batch,3,8,8]", "factor:float32[1]"]


@pytest.fixture(scope="module", autouse=True)
def one_pool():
    """The workers of all tests, started once."""
    with workers():
        yield


@pytest.fixture
def module(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "nets.py").write_text(MODULE, encoding="utf-8")
    return f"{tmp_path / 'nets.py'}:net"


def convert(source, output, **more):
    return deploykit.convert(source, to="openvino", output=output, force=True, **more)


def test_a_pytorch_module_is_equal_and_its_bytes_repeat(module, tmp_path):
    contents = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        options = {"route": "torch"}
        report = convert(module, tmp_path / name / "m.xml", inputs=INPUTS, dims=["batch=1..16"], options=options)
        assert not report.failed, report.findings
        contents.append([(tmp_path / name / file).read_bytes() for file in ("m.xml", "m.bin")])
    assert contents[0] == contents[1]
    made = report.artifact
    assert made is not None
    assert (made.execution, report.metrics["route"]) == ("real", "torch")
    assert [(spec.name, spec.shape) for spec in made.inputs] == [("image", ("batch", 3, 8, 8)), ("factor", (1,))]
    assert [finding.code for finding in report.findings if "equal to" in finding.message] == ["DK555"]


@pytest.mark.slow
def test_torchscript_goes_the_same_way(module, tmp_path):
    import importlib.util

    import torch

    spec = importlib.util.spec_from_file_location("nets", tmp_path / "nets.py")
    nets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nets)
    torch.jit.script(nets.net()).save(str(tmp_path / "net.pt"))
    report = convert(tmp_path / "net.pt", tmp_path / "m.xml", inputs=INPUTS, options={"route": "torch"})
    assert not report.failed, report.findings


def test_nothing_is_reported_to_the_vendor(tmp_path, monkeypatch):
    telemetry = pytest.importorskip("openvino_telemetry")
    torch = pytest.importorskip("torch")

    def fail(*_, **__):
        raise AssertionError("telemetry was started")

    monkeypatch.setattr(telemetry.Telemetry, "__init__", fail)
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),)).run_decompositions({})
    x, y = TensorSpec("x", "float32", (2, 3)), TensorSpec("y", "float32", (2, 3))
    made = write(Handed(program, (x,), (y,), tmp_path / "m.xml", {}, {}, {}))
    assert [spec["name"] for spec in (*made["inputs"], *made["outputs"])] == ["x", "y"]


@pytest.mark.slow
def test_by_itself_the_way_goes_through_onnx(module, tmp_path):
    report = convert(module, tmp_path / "m.xml", inputs=INPUTS)
    assert report.metrics["route"] == "onnx"


@pytest.mark.slow
def test_what_the_front_end_refuses_is_an_error_with_its_reason(module, tmp_path):
    source = module.replace(":net", ":odd")
    with pytest.raises(VendorError) as caught:
        convert(source, tmp_path / "m.xml", inputs=["x:float32[4,4]"], options={"route": "torch"})
    assert caught.value.code == "DK556"
    assert "svd" in caught.value.message
    assert not list(tmp_path.glob("m.*"))


def test_options_of_the_other_way_are_refused(module, tmp_path):
    with pytest.raises(UsageError, match="known to the ONNX route only"):
        convert(module, tmp_path / "m.xml", inputs=INPUTS, options={"route": "torch", "weights": "int8"})


@pytest.mark.slow
def test_a_keras_model_with_two_inputs_keeps_their_order(tmp_path):
    keras = pytest.importorskip("keras")
    image, factor = keras.Input((8, 8, 3), name="b_image"), keras.Input((4,), name="a_factor")
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, activation="relu")(image))
    outputs = [keras.layers.Dense(3, name="z")(x), keras.layers.Multiply(name="a")([x, factor])]
    keras.Model([image, factor], outputs).save(tmp_path / "m.keras")
    report = convert(tmp_path / "m.keras", tmp_path / "m.xml", options={"route": "tensorflow"})
    assert not report.failed, report.findings
    assert [spec.name for spec in report.artifact.inputs] == ["b_image", "a_factor"]
    assert [spec.name for spec in report.artifact.outputs] == ["z", "a"]
