"""Catalogue case 8c: an engine of another version or GPU is refused with both named, before it is deserialised."""

from __future__ import annotations

import json

import pytest

import deploykit
from deploykit.converters.tensorrt.header import read_header
from deploykit.converters.tensorrt.loading import expect_same
from deploykit.errors import UnavailableError
from deploykit.target import format_of

ADA = [("NVIDIA RTX 4090", "8.9")]


def plan(path, magic=b"ftrt", version=(10, 13, 3, 7)):
    path.write_bytes(magic + bytes(20) + bytes(version) + bytes(40))
    return path


def manifest(path, **facts):
    known = {"schema": "deploykit.manifest/1", "path": path.name, "format": "tensorrt", "target": "tensorrt"}
    known |= dict.fromkeys(("precision", "sha256", "parent_sha256"), "x") | {"opset": 17, "size_bytes": 1}
    known |= {"inputs": [], "outputs": [], "execution": "none"}
    path.with_name(path.name + ".deploykit.json").write_text(json.dumps(known | facts))


def refused(path, installed="10.13.3", here=ADA, package="tensorrt", title="TensorRT"):
    with pytest.raises(UnavailableError) as caught:
        expect_same(path, package, title, installed, here)
    assert caught.value.code == "DK591"
    return caught.value.message


def test_another_version_is_refused_by_the_header_alone(tmp_path):
    path = plan(tmp_path / "m.engine")
    expect_same(path, "tensorrt", "TensorRT", "10.13.3.9", ADA)
    assert "built by TensorRT 10.13.3.7, and TensorRT 11.4.1 is installed" in refused(path, installed="11.4.1")
    assert "TensorRT 10.13.2" in refused(path, installed="10.13.2")


def test_any_bytes_with_a_manifest_of_another_version_are_refused(tmp_path):
    path = tmp_path / "m.engine"
    path.write_bytes(b"not an engine at all")
    manifest(path, tool_versions={"tensorrt": "8.6.1"})
    assert "TensorRT 8.6.1" in refused(path)
    manifest(path, built_for={"tensorrt": "10.13.3", "compute_capabilities": ["8.9"]})
    expect_same(path, "tensorrt", "TensorRT", "10.13.3", ADA)


def test_another_gpu_is_refused_with_both_named(tmp_path):
    path = plan(tmp_path / "m.engine")
    manifest(path, built_for={"tensorrt": "10.13.3", "compute_capabilities": ["12.0"]})
    told = refused(path)
    assert "compute capability 12.0" in told
    assert "NVIDIA RTX 4090, has 8.9" in told
    expect_same(path, "tensorrt", "TensorRT", "10.13.3", [])  # without a GPU there is nothing to compare
    compatible = {"tensorrt": "10.13.3", "compute_capabilities": ["8.0"], "hardware_compatibility": "ampere_plus"}
    manifest(path, built_for=compatible)
    expect_same(path, "tensorrt", "TensorRT", "10.13.3", ADA)


@pytest.mark.parametrize("command", ["bench", "validate"])
def test_commands_refuse_a_foreign_engine_before_they_look_for_a_gpu(save, tmp_path, command):
    """The version of the installed TensorRT-RTX is known here, also without a GPU."""
    pytest.importorskip("tensorrt_rtx")
    path = tmp_path / "m.engine"
    assert deploykit.convert(save(), to="tensorrt-rtx", output=path, dims={"batch": [1, 2]}).exit_code == 0
    content = bytearray(path.read_bytes())
    content[24:28] = bytes([1, 2, 0, 5])
    path.write_bytes(content)
    with pytest.raises(UnavailableError) as caught:
        deploykit.bench(path, seconds=0.1) if command == "bench" else deploykit.validate(tmp_path / "model.onnx", path)
    assert caught.value.code == "DK591"
    assert "TensorRT-RTX 1.2.0.5" in caught.value.message
    assert "is installed here" in caught.value.message


def test_one_suffix_two_products(tmp_path):
    """The content decides, else the manifest; never the order of the table."""
    assert format_of(plan(tmp_path / "a.engine")) == "tensorrt"
    assert format_of(plan(tmp_path / "b.engine", b"vtrt")) == "tensorrt-rtx"
    path = tmp_path / "c.engine"
    path.write_bytes(b"any")
    manifest(path)
    assert format_of(path) == "tensorrt"
    manifest(path, target="tensorrt-rtx", format="tensorrt-rtx")
    assert format_of(path) == "tensorrt-rtx"


def test_inspect_tells_the_version_of_a_classic_engine(tmp_path):
    report = deploykit.inspect(plan(tmp_path / "m.engine"))
    assert report.artifact.format == "tensorrt"
    assert report.metrics["tensorrt_version"] == "10.13.3.7"
    assert "nothing was executed" in report.metrics["method"]


def test_the_metadata_of_ultralytics_is_read_over(tmp_path):
    data = json.dumps({"task": "detect"}).encode()
    path = tmp_path / "yolo.engine"
    path.write_bytes(len(data).to_bytes(4, "little") + data + plan(tmp_path / "m.engine").read_bytes())
    header = read_header(path)
    assert (header.product, header.dotted, header.offset) == ("tensorrt", "10.13.3.7", 4 + len(data))
