from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest

import deploykit
from deploykit.errors import OutputError, UsageError
from deploykit.pipeline.config import load_config

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[batch,3,32,32] image, int64[batch,length] "odd: name", float scale) => (float[batch,3,32,32] y) {
    y = Mul(image, scale)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "my model.onnx"
    graph = onnx.parser.parse_model(MODEL.replace('"odd: name"', "odd"))
    graph.graph.input[1].name = "odd: name"
    onnx.save(graph, path)
    return path


def test_the_file_is_valid_as_it_stands_and_has_the_model_s_inputs(model: Path) -> None:
    file = model.with_name("deploykit.yaml")
    report = deploykit.init(model, output=file)
    config = load_config(file)
    assert config.source == "my model.onnx"
    assert {name: (section.dtype, section.shape) for name, section in config.inputs.items()} == {
        "image": ("float32", ["batch", 3, 32, 32]),
        "odd: name": ("int64", ["batch", "length"]),
        "scale": ("float32", []),
    }
    assert config.inputs["image"].dims == {"batch": "1..8"}
    assert report.exit_code == 0
    assert report.metrics["config"] == str(file)


def test_only_the_batch_is_given_bounds(model: Path) -> None:
    file = model.with_name("deploykit.yaml")
    deploykit.init(model, output=file)
    assert load_config(file).inputs["odd: name"].dims == {"batch": "1..8"}
    assert "length: MIN..MAX" in file.read_text(encoding="utf-8")


def test_a_python_source_leaves_its_inputs_as_an_example(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("class Net: pass\n", encoding="utf-8")
    deploykit.init(f"{tmp_path}/model.py:Net", output=tmp_path / "deploykit.yaml")
    config = load_config(tmp_path / "deploykit.yaml")
    assert (config.source, config.inputs) == ("model.py:Net", {})
    text = (tmp_path / "deploykit.yaml").read_text(encoding="utf-8")
    assert "# inputs:\n#   image:" in text
    assert "# weights: weights.safetensors" in text


def test_the_example_of_a_python_source_is_valid_without_its_marks(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("class Net: pass\n", encoding="utf-8")
    file = tmp_path / "deploykit.yaml"
    deploykit.init(f"{tmp_path}/model.py:Net", output=file)
    head, _, rest = file.read_text(encoding="utf-8").partition("# inputs:")
    example, _, end = rest.partition("quantize:")
    file.write_text(f"{head}inputs:{example.replace(chr(10) + '# ', chr(10))}quantize:{end}", encoding="utf-8")
    assert load_config(file).inputs["image"].shape == ["batch", 3, 224, 224]


def test_a_model_elsewhere_is_named_by_its_whole_path(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    deploykit.init(model, output=folder / "deploykit.yaml")
    assert load_config(folder / "deploykit.yaml").source == str(model.resolve())


def test_an_existing_configuration_needs_force(model: Path) -> None:
    file = model.with_name("deploykit.yaml")
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError):
        deploykit.init(model, output=file)
    assert file.read_text(encoding="utf-8") == "mine"
    deploykit.init(model, output=file, force=True)
    assert load_config(file)


def test_the_configuration_must_be_yaml(model: Path) -> None:
    with pytest.raises(UsageError, match=r"should end in \.yaml"):
        deploykit.init(model, output=model.with_name("deploykit.json"))
