"""A size that --dim fixes in a source that is exported first."""

import pytest

import deploykit

SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.last(x)
"""


@pytest.fixture
def source(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(SOURCE, encoding="utf-8")
    return f"{tmp_path / 'net.py'}:Net"


@pytest.mark.parametrize(("dims", "shape"), [(["batch=3"], [3, 4]), (["batch=2..5"], ["batch", 4])])
def test_one_size_and_a_range(source, tmp_path, dims, shape):
    report = deploykit.convert(
        source, to="onnxruntime", output=tmp_path / "net.onnx", inputs=["x:float32[batch,4]"], dims=dims
    )
    assert report.exit_code == 0
    assert list(report.artifact.inputs[0].shape) == shape
    assert not [finding for finding in report.findings if finding.code in ("DK204", "DK534")]


def test_a_dimension_that_the_source_does_not_have_is_refused(source, tmp_path):
    with pytest.raises(deploykit.errors.UsageError) as refused:
        deploykit.convert(
            source, to="onnxruntime", output=tmp_path / "net.onnx", inputs=["x:float32[batch,4]"], dims=["bath=3"]
        )
    assert "bath" in refused.value.message
