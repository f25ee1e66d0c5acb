"""Artifacts and their manifests: same content, same bytes; a manifest is a claim."""

import dataclasses
import json
import shutil

import pytest

from deploykit import io
from deploykit.artifact import Artifact, TensorSpec, artifact_from_dict, read_manifest, write_manifest


def made(folder, **facts):
    (folder / "m.xml").write_text("<net/>")
    (folder / "m.bin").write_bytes(b"weights")
    return Artifact.of(
        folder / "m.xml",
        "openvino",
        files=("m.xml", "m.bin"),
        inputs=(TensorSpec("x", "float32", ("batch", 3, 0)), TensorSpec("s", "string", None)),
        options={"b": 1, "a": "ü"},
        tool_versions={"z": "1", "a": "2"},
        parent_sha256="ab",
        opset=17,
        **facts,
    )


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (TensorSpec("x", "float32", ("batch", 3, 0)), "float32 [batch, 3, 0]"),
        (TensorSpec("x", "int64", ()), "int64 []"),
        (TensorSpec("x", "string", None), "string of unknown rank"),
    ],
)
def test_specs_describe_themselves_and_round_trip(spec, text):
    assert spec.describe() == text
    assert TensorSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


def test_digest_and_size_are_measured(tmp_path):
    artifact = made(tmp_path)
    assert artifact.size_bytes == 13
    assert artifact.sha256 == io.digest([tmp_path / "m.xml", tmp_path / "m.bin"])
    (tmp_path / "m.bin").write_bytes(b"Weights")
    assert Artifact.of(tmp_path / "m.xml", "openvino", files=("m.xml", "m.bin")).sha256 != artifact.sha256


def test_manifest_is_reproducible_and_relative(tmp_path):
    texts = []
    for where in ("one", "two with space"):
        (tmp_path / where).mkdir()
        file = write_manifest(made(tmp_path / where))
        assert file.name == "m.xml.deploykit.json"
        texts.append(file.read_bytes())
    assert texts[0] == texts[1]
    facts = json.loads(texts[0])
    assert facts["path"] == "m.xml"
    assert set(facts["files"]) == {"m.xml", "m.bin"}
    assert str(tmp_path) not in texts[0].decode()
    assert not {"time", "date", "seconds", "created"} & set(facts)


def test_read_manifest_gives_back_what_was_written(tmp_path):
    artifact = made(tmp_path, stage="convert", target="openvino", precision="int8", execution="real")
    write_manifest(artifact)
    assert read_manifest(artifact.path) == artifact
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in list(tmp_path.glob("m.*")):
        shutil.move(file, moved)
    assert read_manifest(moved / "m.xml") == dataclasses.replace(artifact, path=moved / "m.xml")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "null",
        '{"schema": "other/1"}',
        '{"schema": "deploykit.manifest/1"}',
        "\udcff",
        pytest.param("[" * 200_000 + "]" * 200_000, id="deep"),
    ],
)
def test_unreadable_manifests_are_none(tmp_path, text):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"x")
    if text is not None:
        (tmp_path / "m.onnx.deploykit.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_manifest(path) is None


def test_artifact_json_round_trip(tmp_path):
    artifact = made(tmp_path)
    back = artifact_from_dict(json.loads(json.dumps(artifact.as_dict())))
    assert (back.inputs, back.sha256, back.opset) == (artifact.inputs, artifact.sha256, 17)
    assert set(artifact.as_dict()) == {
        "path", "format", "target", "precision", "opset", "size_bytes", "sha256", "inputs", "outputs", "parent_sha256",
        "execution",
    }  # fmt: skip
