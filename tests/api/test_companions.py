"""What lies beside a model (a tokenizer) goes with everything that is made of it."""

import json
from pathlib import Path

import onnx
import pytest

import deploykit
from deploykit.artifact import Artifact, read_manifest, write_manifest

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[batch, 4] x) => (float[batch, 3] y)
<float[4,3] w = {1.0, -2.0, 0.5, 0.25, 1.5, -1.0, 2.0, 0.75, -0.5, -1.25, 0.3, 0.9}>
{
    y = MatMul (x, w)
}
"""


@pytest.fixture
def model(tmp_path) -> Path:
    """An ONNX file as `export` leaves one of a Hugging Face folder."""
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    (tmp_path / "net.assets").mkdir()
    (tmp_path / "net.assets" / "tokenizer.json").write_text("{}")
    write_manifest(Artifact.of(path, "onnx", companions=("net.assets",)))
    return path


def test_a_quantized_file_has_its_own_copy(model, tmp_path):
    out = tmp_path / "half.onnx"
    deploykit.quantize(model, output=out, precision="fp16")
    assert (tmp_path / "half.assets" / "tokenizer.json").read_text() == "{}"
    assert read_manifest(out).companions == ("half.assets",)


def test_a_converted_file_beside_its_parent_shares_what_is_there(model, tmp_path):
    report = deploykit.convert(model, to="openvino", output=tmp_path / "net.xml")
    assert report.exit_code == 0
    assert [path.name for path in tmp_path.glob("*.assets")] == ["net.assets"]


def test_a_file_replaced_in_place_keeps_it(model, tmp_path):
    deploykit.simplify(model, output=model, engine="native", force=True)
    assert (tmp_path / "net.assets" / "tokenizer.json").is_file()
    assert read_manifest(model).companions == ("net.assets",)


def test_what_is_gone_is_not_asked_for(model, tmp_path):
    (tmp_path / "net.assets" / "tokenizer.json").unlink()
    (tmp_path / "net.assets").rmdir()
    deploykit.simplify(model, output=tmp_path / "small.onnx", engine="native")
    assert "companions" not in json.loads((tmp_path / "small.onnx.deploykit.json").read_text())


def test_a_run_publishes_it_beside_every_artifact(model, tmp_path):
    report = deploykit.run(
        model, to=["onnxruntime"], precision=["fp32", "fp16"], output=tmp_path / "out", only=["convert"]
    )
    assert len(report.artifacts) == 2
    for artifact in report.artifacts:
        assert (artifact.path.parent / "net.assets" / "tokenizer.json").read_text() == "{}"


def test_a_package_has_it_in_the_version_folder(model, tmp_path):
    report = deploykit.package(model, as_="repository", output=tmp_path / "models")
    assert report.exit_code == 0
    assert [path.name for path in (tmp_path / "models").iterdir() if path.is_dir()] == ["net"]
    version = tmp_path / "models" / "net" / "1"
    assert (version / "model.assets" / "tokenizer.json").is_file()
    assert read_manifest(version / "model.onnx").companions == ("model.assets",)
