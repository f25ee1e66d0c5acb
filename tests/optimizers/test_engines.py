"""What the native engine's worker remembers of an original, and when it looks again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import onnx
import pytest

from deploykit import graph, reference
from deploykit.artifact import artifact_from_dict, write_manifest
from deploykit.optimizers import engines

if TYPE_CHECKING:
    from pathlib import Path

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'
RELU = "agraph (float[n,4] x) => (float[n,4] y) { i = Identity(x) y = Relu(i) }"
SHORT = "agraph (float[n,4] x) => (float[n,4] y) { y = Relu(x) }"
WRONG = "agraph (float[n,4] x) => (float[n,4] y) { y = Abs(x) }"


def save(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(HEADER + text), path)
    return path


@pytest.fixture
def opened(monkeypatch):
    """Names of the files that the reference opens from here on."""
    names: list[str] = []
    session = reference._session

    def noting(path, threads):
        names.append(path.name)
        return session(path, threads)

    monkeypatch.setattr(reference, "_session", noting)
    return names


def test_the_original_is_run_once_for_several_candidates(tmp_path, opened):
    original = save(tmp_path / "original.onnx", RELU)
    right, wrong = save(tmp_path / "right.onnx", SHORT), save(tmp_path / "wrong.onnx", WRONG)
    outcomes = [engines.verify_job(str(original), str(other), {}, 0, several=True) for other in (wrong, right)]
    assert [outcome["outputs"][0]["passed"] for outcome in outcomes] == [False, True]
    assert outcomes[1]["samples"] >= 3
    assert opened == ["original.onnx", "wrong.onnx", "right.onnx"]
    engines.verify_job(str(original), str(right), {}, seed=1)
    assert opened[3:] == ["original.onnx", "right.onnx"], "another seed gives other inputs"


def test_a_changed_original_is_looked_at_again(tmp_path, opened):
    original, other = save(tmp_path / "original.onnx", RELU), save(tmp_path / "other.onnx", SHORT)
    assert engines.verify_job(str(original), str(other), {}, 0, several=True)["outputs"][0]["passed"]
    made = engines.present_job(str(original), str(other), str(tmp_path / "out.onnx"))
    assert made["original"] == {"nodes": 2, "random": []}
    save(original, WRONG)
    os.utime(original, ns=(1, 1))
    assert not engines.verify_job(str(original), str(other), {}, 0, several=True)["outputs"][0]["passed"]
    assert opened.count("original.onnx") == 2
    made = engines.present_job(str(original), str(other), str(tmp_path / "out.onnx"))
    assert made["original"] == {"nodes": 1, "random": []}


def test_a_presentation_is_given_to_each_result_alike(tmp_path):
    model = onnx.parser.parse_model(HEADER + RELU)
    model.producer_name = "an exporter"
    model.metadata_props.add(key="labels", value="a,b")
    onnx.save(model, tmp_path / "in.onnx")
    other = save(tmp_path / "other.onnx", SHORT)
    written = []
    for name in ("one.onnx", "two.onnx"):
        facts = engines.present_job(str(tmp_path / "in.onnx"), str(other), str(tmp_path / name))
        written.append((tmp_path / name).read_bytes())
        shown = graph.describe(tmp_path / name).as_dict()
        assert facts["interface"] == {key: shown[key] for key in ("inputs", "outputs", "opset")}
    assert written[0] == written[1]
    made = onnx.load(tmp_path / "two.onnx")
    assert (made.producer_name, made.metadata_props[0].value) == ("an exporter", "a,b")


def test_a_worker_describes_a_model_as_it_is_described_here(tmp_path):
    path = save(tmp_path / "in.onnx", RELU)
    here = graph.describe(path)
    assert artifact_from_dict(engines.describe_job(str(path)), path) == here
    write_manifest(artifact_from_dict({**here.manifest(), "stage": "export", "options": {"a": 1}}, path))
    told = artifact_from_dict(engines.describe_job(str(path)), path)
    assert told == graph.describe(path)
    assert (told.stage, told.options) == ("export", {"a": 1})
