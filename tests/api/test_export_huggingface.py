"""Hugging Face folders become ONNX that answers as transformers does, under the ecosystem's names, or nothing does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import deploykit
from deploykit.artifact import read_manifest
from deploykit.errors import ModelError, OutputError, UsageError
from deploykit.isolation import run_isolated, workers
from deploykit.lazy import installed

pytestmark = pytest.mark.skipif(not installed("transformers") or not installed("torch"), reason="no transformers here")


@pytest.fixture(scope="module", autouse=True)
def pool():
    """One PyTorch process for the whole module; pytest itself never imports it."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([before] if before else [])])
    try:
        with workers() as found:
            found.get("torch")
            yield found
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def folder_of(pool, tmp_path_factory):
    """The folder of a family's model, as `folder_of("bert")`."""
    root = tmp_path_factory.mktemp("models")

    def make(family: str, function: str = "make", **saving: object) -> Path:
        arguments = {"folder": str(root / f"{family}{len(saving)}"), "family": family, **saving}
        return Path(str(run_isolated("torch", f"huggingface_models:{function}", arguments)))

    return make


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def codes(report) -> list[str]:
    return [finding.code for finding in report.findings]


def test_a_text_encoder_with_its_tokenizer_beside_it(folder_of, tmp_path):
    source = folder_of("bert")
    (source / "tokenizer.json").write_text("{}")
    (source / "vocab.txt").write_text("[PAD]\n")
    out = tmp_path / "bert.onnx"
    report = deploykit.export(source, output=out)
    assert report.exit_code == 0
    assert [(spec.name, spec.dtype, spec.shape) for spec in report.artifact.inputs] == [
        (name, "int64", ("batch_size", "sequence_length")) for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    (output,) = report.artifact.outputs
    assert (output.name, output.shape) == ("last_hidden_state", ("batch_size", "sequence_length", 32))
    assert report.metrics["task"] == "feature-extraction"
    proven = report.metrics["parity"]["proven"]
    assert {1, 40} <= set(proven["sequence_length"])
    assert all(len(sizes) >= 3 and 1 in sizes for sizes in proven.values())
    assert sorted(path.name for path in (tmp_path / "bert.assets").iterdir()) == [
        "config.json",
        "tokenizer.json",
        "vocab.txt",
    ]
    manifest = json.loads(out.with_name("bert.onnx.deploykit.json").read_text())
    assert list(manifest["companions"]) == ["bert.assets"]
    assert list(manifest["files"]) == ["bert.onnx"]
    assert str(tmp_path) not in json.dumps(manifest)
    assert read_manifest(out).companions == ("bert.assets",)


@pytest.mark.slow
def test_what_lies_beside_the_output_is_replaced_only_with_force(folder_of, tmp_path):
    source = folder_of("bert")
    (tmp_path / "m.assets").mkdir()
    (tmp_path / "m.assets" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError):
        deploykit.export(source, output=tmp_path / "m.onnx")
    assert (tmp_path / "m.assets" / "mine.txt").read_text() == "mine"
    assert not (tmp_path / "m.onnx").exists()
    assert deploykit.export(source, output=tmp_path / "m.onnx", force=True).exit_code == 0
    assert (tmp_path / "m.assets" / "config.json").is_file()


def test_a_classifier_in_shards_answers_as_its_own_class(folder_of, tmp_path):
    source = folder_of("bert-classifier", max_shard_size="20KB")
    assert len(list(source.glob("*.safetensors"))) > 1
    report = deploykit.export(source, output=tmp_path / "m.onnx")
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 100, (3, 11))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    feeds["attention_mask"][1, 6:] = 0
    np.savez(tmp_path / "feeds.npz", **feeds)
    arguments = {"path": str(source), "feeds": str(tmp_path / "feeds.npz"), "output": "logits"}
    expected = np.array(run_isolated("torch", "huggingface_models:answers", arguments)).reshape(3, 2)
    (got,) = session(tmp_path / "m.onnx").run(["logits"], feeds)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected) > 0.1
    assert report.metrics["task"] == "text-classification"


def test_a_decoder_with_its_cache_writes_what_generate_writes(folder_of, tmp_path):
    source = folder_of("gpt2")
    report = deploykit.export(source, output=tmp_path / "m.onnx")
    shapes = {spec.name: spec.shape for spec in (*report.artifact.inputs, *report.artifact.outputs)}
    assert shapes["past_key_values.1.value"] == ("batch_size", 2, "past_sequence_length", 16)
    assert shapes["present.0.key"] == ("batch_size", 2, "past_sequence_length + sequence_length", 16)
    assert shapes["attention_mask"] == ("batch_size", "past_sequence_length + sequence_length")
    assert {0, 39} <= set(report.metrics["parity"]["proven"]["past_sequence_length"])
    assert "DK683" in codes(report)

    run, prompt, found = session(tmp_path / "m.onnx"), [5, 17, 3, 42], []
    feeds = {"input_ids": np.array([prompt]), "position_ids": np.arange(4)[None]}
    feeds |= {name: np.zeros((1, 2, 0, 16), np.float32) for name in shapes if name.startswith("past")}
    for length in range(4, 12):
        feeds["attention_mask"] = np.ones((1, length), np.int64)
        made = dict(zip([o.name for o in run.get_outputs()], run.run(None, feeds), strict=True))
        found.append(int(made["logits"][0, -1].argmax()))
        feeds = {name.replace("present", "past_key_values"): made[name] for name in made if name != "logits"}
        feeds |= {"input_ids": np.array([found[-1:]]), "position_ids": np.array([[length]])}
    arguments = {"path": str(source), "prompt": prompt, "tokens": 8}
    assert found == run_isolated("torch", "huggingface_models:generated", arguments)


def test_a_decoder_without_a_cache_and_with_bounds(folder_of, tmp_path):
    report = deploykit.export(
        folder_of("llama"),
        output=tmp_path / "m.onnx",
        task="text-generation",
        dims=["batch_size=2", "sequence_length=3..9"],
    )
    assert [spec.shape for spec in report.artifact.inputs] == [(2, "sequence_length")] * 3
    assert {3, 9} <= set(report.metrics["parity"]["proven"]["sequence_length"])
    assert list(report.metrics["parity"]["proven"]) == ["sequence_length"]
    assert [spec.name for spec in report.artifact.outputs] == ["logits"]


def test_bin_weights_and_a_lower_opset(folder_of, tmp_path):
    report = deploykit.export(folder_of("bert-mlm", "make_bin"), output=tmp_path / "m.onnx", opset=17)
    assert report.exit_code == 0
    assert report.artifact.opset == 17
    assert report.metrics["task"] == "fill-mask"


def test_an_image_size_of_the_users(folder_of, tmp_path):
    report = deploykit.export(
        folder_of("resnet"),
        output=tmp_path / "m.onnx",
        inputs=["pixel_values:float32[batch_size,3,height,width]"],
        dims=["height=32..64", "width=32..64"],
    )
    assert report.exit_code == 0
    assert report.artifact.inputs[0].shape == ("batch_size", 3, "height", "width")
    assert {32, 64} <= set(report.metrics["parity"]["proven"]["width"])


@pytest.mark.parametrize(
    ("family", "options", "code", "said"),
    [
        ("bert", {"task": "feature-extractoin"}, "DK679", "no task"),
        ("bert", {"task": "object-detection"}, "DK679", "no model for object-detection"),
        ("bert", {"task": "question-answering"}, "DK680", "which would be random"),
        ("bert", {"inputs": ["pixel_values:float32[1,3,8,8]"]}, "DK620", "is no input"),
        ("bert", {"dims": ["length=1..4"]}, "DK620", "names no dimension"),
        ("bert", {"exporter": "torchscript"}, "DK604", "Hugging Face"),
        ("clip", {"task": "feature-extraction"}, "DK681", "CLIPModel itself fails"),
        ("mamba", {}, "DK681", "other forms than keys and values"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(folder_of, tmp_path, family, options, code, said):
    with pytest.raises((ModelError, UsageError)) as refused:
        deploykit.export(folder_of(family), output=tmp_path / "m.onnx", **options)
    assert refused.value.code == code
    assert said in refused.value.message
    assert refused.value.hint
    assert family != "clip" or "pixel_values" in refused.value.context[0]
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_the_weights_do_not_have_are_shown(folder_of, tmp_path):
    source = folder_of("bert")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "intermediate_size": 3}))
    with pytest.raises(ModelError) as refused:
        deploykit.export(source, output=tmp_path / "m.onnx")
    assert refused.value.code == "DK680"
    assert "where config.json asks for [3" in "".join(refused.value.context)


def test_a_folder_of_links_as_the_hub_cache_has_them(folder_of, tmp_path):
    source = folder_of("bert")
    (source / "tokenizer.json").write_text("{}")
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(source.iterdir())):
        file.rename(tmp_path / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    report = deploykit.convert(snapshot, to="openvino", output=tmp_path / "m.xml")
    assert report.exit_code == 0
    assert not (tmp_path / "m.assets" / "tokenizer.json").is_symlink()
    assert json.loads((tmp_path / "m.xml.deploykit.json").read_text())["companions"].keys() == {"m.assets"}


def test_code_in_the_folder_is_not_run(folder_of, tmp_path):
    source = tmp_path / "model"
    source.mkdir()
    marker = tmp_path / "ran"
    (source / "modeling_custom.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    auto = {"AutoConfig": "modeling_custom.CustomConfig", "AutoModel": "modeling_custom.CustomModel"}
    (source / "config.json").write_text(json.dumps({"model_type": "my-own", "auto_map": auto}))
    (source / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError) as refused:
        deploykit.export(source, output=tmp_path / "m.onnx")
    assert refused.value.code == "DK678"
    assert "modeling_custom.CustomModel" in refused.value.message
    assert not marker.exists()


def test_weights_that_are_pickles_of_other_things_are_not_loaded(folder_of, tmp_path):
    source = folder_of("bert-mlm", "make_bin")
    marker = tmp_path / "ran"
    payload = f"cos\nsystem\n(S'touch {marker}'\ntR.".encode()
    (source / "pytorch_model.bin").write_bytes(payload)
    with pytest.raises(ModelError) as refused:
        deploykit.export(source, output=tmp_path / "m.onnx")
    assert refused.value.code in ("DK607", "DK680")
    assert not marker.exists()


def test_task_belongs_to_hugging_face_folders(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("class Net: ...\n")
    with pytest.raises(UsageError) as refused:
        deploykit.export(f"{file}:Net", output=tmp_path / "m.onnx", task="fill-mask")
    assert refused.value.code == "DK604"
