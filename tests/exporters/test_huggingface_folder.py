"""What a Hugging Face folder lacks is said before anything is loaded, with the way out."""

from __future__ import annotations

import json

import pytest

from deploykit.errors import ExitCode, ModelError
from deploykit.exporters.huggingface_folder import companions, copy_companions, is_huggingface, read_folder
from deploykit.exporters.sources import detect, takes


def folder(tmp_path, files):
    """A folder with files of these contents; mappings are written as JSON."""
    made = tmp_path / "model"
    for name, content in files.items():
        file = made / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return made


CONFIG = {"model_type": "bert"}
REFUSED = {
    "no weights": ({"config.json": CONFIG}, "no weights", "model.safetensors"),
    "GGUF beside a configuration": ({"config.json": CONFIG, "q4.gguf": b"GGUF"}, "q4.gguf", "llama.cpp"),
    "GGUF alone": ({"q4.gguf": b"GGUF"}, "q4.gguf", "llama.cpp"),
    "TensorFlow": ({"config.json": CONFIG, "tf_model.h5": b"\x89HDF"}, "TensorFlow weights", "from_tf=True"),
    "Flax": ({"config.json": CONFIG, "flax_model.msgpack": b"x"}, "Flax weights", "from_flax=True"),
    "ONNX": ({"config.json": CONFIG, "onnx/model.onnx": b"x"}, "an ONNX model", "onnx/model.onnx -o"),
    "another name": ({"config.json": CONFIG, "net.safetensors": b"x"}, "another name", "model.safetensors"),
    "an adapter": (
        {"adapter_config.json": {"base_model_name_or_path": "org/base"}, "adapter_model.safetensors": b"x"},
        "adapter (PEFT)",
        "merge_and_unload",
    ),
    "a pipeline": (
        {"model_index.json": {"_class_name": "P"}, "text_encoder/config.json": CONFIG, "unet/config.json": {}},
        "diffusers pipeline",
        "text_encoder",
    ),
    "a part of a pipeline": (
        {"config.json": {"_class_name": "UNet2DConditionModel"}},
        "UNet2DConditionModel",
        "factory",
    ),
    "no type": ({"config.json": {"hidden_size": 3}, "model.safetensors": b"x"}, "without model_type", "model_type"),
    "not JSON": ({"config.json": b"{,", "model.safetensors": b"x"}, "cannot be read", "again"),
    "quantized": (
        {"config.json": {**CONFIG, "quantization_config": {"quant_method": "gptq"}}, "model.safetensors": b"x"},
        "'gptq'",
        "deploykit quantize",
    ),
    "a Git LFS pointer": (
        {"config.json": CONFIG, "model.safetensors": b"version https://git-lfs.github.com/spec/v1\noid x"},
        "Git LFS pointer",
        "git lfs pull",
    ),
    "missing shards": (
        {
            "config.json": CONFIG,
            "model.safetensors.index.json": {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}},
            "model-1.safetensors": b"x",
        },
        "lacks 1 of the 2",
        "whole folder",
    ),
    "an index that leaves the folder": (
        {"config.json": CONFIG, "model.safetensors.index.json": {"weight_map": {"a": "../other/model.safetensors"}}},
        "leaves the folder",
        "do not use it",
    ),
    "an empty index": (
        {"config.json": CONFIG, "pytorch_model.bin.index.json": {"weight_map": {}}},
        "names no file",
        "again",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_without_its_model_is_refused_with_the_way_out(tmp_path, case):
    files, said, way = REFUSED[case]
    made = folder(tmp_path, files)
    assert is_huggingface(made)
    assert takes(detect(made)) == "huggingface"
    with pytest.raises(ModelError) as refused:
        read_folder(made)
    assert refused.value.code == "DK677"
    assert refused.value.exit_code == ExitCode.INVALID_INPUT
    assert said in refused.value.message
    assert way in refused.value.hint


def test_a_missing_shard_is_named(tmp_path):
    with pytest.raises(ModelError) as refused:
        read_folder(folder(tmp_path, REFUSED["missing shards"][0]))
    assert list(refused.value.context) == ["missing: model-2.safetensors"]


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_whole_folder_is_read(tmp_path, name):
    found = read_folder(folder(tmp_path, {"config.json": CONFIG, name: b"weights"}))
    assert found.config == CONFIG


def test_only_what_users_of_the_model_need_is_copied(tmp_path):
    files = {"config.json": CONFIG, "model.safetensors": b"x", "tokenizer.json": {}, "1_Pooling/config.json": {}}
    made = folder(tmp_path, {**files, "README.md": b"x", "modeling_custom.py": b"raise SystemExit"})
    assert companions(made) == ["1_Pooling/config.json", "config.json", "tokenizer.json"]
    assert copy_companions(made, tmp_path / "out") == companions(made)
    assert sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")) == companions(
        made
    )


def test_a_folder_of_other_things_is_no_model(tmp_path):
    assert not is_huggingface(folder(tmp_path, {"README.md": b"x"}))
