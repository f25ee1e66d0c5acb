"""A Hugging Face model folder as it lies on the disk: what it holds, and why it is not taken; standard library only."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import TYPE_CHECKING, Any

from deploykit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_LFS = b"version https://git-lfs"
# What users of the model need besides it: tokenizers, preprocessors, generation settings, the pooling of sentence
# transformers.
_COMPANIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
)
# Other frameworks' files: (pattern, what it is, the way out).
_OTHER_WEIGHTS = (
    ("*.gguf", "GGUF weights", "export the folder that the GGUF file was made from; llama.cpp runs the file itself"),
    (
        "tf_model*.h5",
        "TensorFlow weights",
        "transformers below 5 reads them: from_pretrained(folder, from_tf=True).save_pretrained('converted')",
    ),
    (
        "flax_model*",
        "Flax weights",
        "transformers below 5 reads them: from_pretrained(folder, from_flax=True).save_pretrained('converted')",
    ),
    ("onnx/*.onnx", "an ONNX model", "deploykit export {found} -o model.onnx takes that"),
    ("*.onnx", "an ONNX model", "deploykit export {found} -o model.onnx takes that"),
    ("*.safetensors", "safetensors under another name", "name them model.safetensors, or add their index file"),
    ("*.bin", "weights under another name", "name them pytorch_model.bin, or add their index file"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Folder:
    """A folder with a configuration and all of its weights."""

    path: Path
    config: dict[str, Any]


def is_huggingface(path: Path) -> bool:
    """Whether a folder is of the Hugging Face kinds, those that are refused with a reason included."""
    names = ("config.json", "adapter_config.json", "model_index.json")
    return any((path / name).is_file() for name in names) or any(path.glob("*.gguf"))


def read_folder(path: Path) -> Folder:
    """The folder's configuration, after a look at everything that can be missing.

    Raises ModelError (DK677): a diffusers pipeline, an adapter without its model, quantized weights, no weights or
    weights of another framework, shards or Git LFS files that were not downloaded.
    """
    if (path / "model_index.json").is_file():
        parts = sorted(entry.parent.name for entry in path.glob("*/config.json"))
        raise _refused(
            path,
            "is a diffusers pipeline of several models",
            f"export its transformers parts one by one (deploykit export {path}/text_encoder -o ...); for the others "
            "write a factory that loads one of them, and name it: model.py:factory",
            [f"parts: {', '.join(parts)}"] if parts else [],
        )
    if (path / "adapter_config.json").is_file():
        base = _json(path / "adapter_config.json").get("base_model_name_or_path")
        raise _refused(
            path,
            "is an adapter (PEFT), which changes the weights of another model",
            "merge it first, in your own code: PeftModel.from_pretrained(base, adapter).merge_and_unload()"
            ".save_pretrained('merged'), and export 'merged'",
            [f"its base model: {base}"] if base else [],
        )
    if not (path / "config.json").is_file():
        found = next(iter(sorted(path.glob("*.gguf"))), path)
        raise _refused(path, f"has {_OTHER_WEIGHTS[0][1]} ({found.name}) only", _OTHER_WEIGHTS[0][2])
    config = _json(path / "config.json")
    _check_config(path, config)
    _check_weights(path)
    return Folder(path, config)


def companions(path: Path) -> list[str]:
    """Names, within the folder, of the files that belong beside an exported model; sorted."""
    return sorted(name for name in _COMPANIONS if (path / name).is_file())


def copy_companions(path: Path, destination: Path) -> list[str]:
    """Copies the tokenizer, preprocessor and configuration files to a new folder; returns their names."""
    names = companions(path)
    for name in names:
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path / name, target)
    return names


def _check_config(path: Path, config: dict[str, Any]) -> None:
    if "_class_name" in config:
        raise _refused(
            path,
            f"is a diffusers model ({config['_class_name']}), and transformers does not load it",
            "write a factory that loads it and name it: deploykit export model.py:factory --input ...",
        )
    if not isinstance(config.get("model_type"), str):
        raise _refused(
            path,
            "has a config.json without model_type, so nothing says what the model is",
            "add model_type as in the model's original config.json, or write a factory: model.py:factory",
        )
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else "unknown"
        raise _refused(
            path,
            f"has weights that are quantized already (method {method!r})",
            "export the folder of the original float weights, and use deploykit quantize on the result",
        )


def _check_weights(path: Path) -> None:
    present = [name for name in _WEIGHTS if (path / name).is_file()]
    if not present:
        raise _no_weights(path)
    main = path / present[0]
    files = [main] if main.suffix != ".json" else list(_shards(path, main))
    for file in files:
        with file.open("rb") as stream:
            if stream.read(len(_LFS)) == _LFS:
                raise _refused(path, f"has a Git LFS pointer in the place of {file.name}", "git lfs pull")


def _shards(path: Path, index: Path) -> Iterator[Path]:
    names = sorted({str(name) for name in (_json(index).get("weight_map") or {}).values()})
    if not names:
        raise _refused(path, f"has an index of weights that names no file ({index.name})", "download it again")
    outside = [name for name in names if "/" in name or "\\" in name or name in (".", "..")]
    if outside:
        raise _refused(path, f"has an index of weights that leaves the folder: {outside[0]!r}", "do not use it")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise _refused(
            path,
            f"lacks {len(missing)} of the {len(names)} weight files that {index.name} names",
            "download the whole folder",
            [f"missing: {', '.join(missing[:6])}"],
        )
    return (path / name for name in names)


def _no_weights(path: Path) -> ModelError:
    for pattern, what, way in _OTHER_WEIGHTS:
        found = next(iter(sorted(path.glob(pattern))), None)
        if found is not None:
            return _refused(path, f"has {what} ({found.name}) and no weights of PyTorch", way.format(found=found))
    return _refused(
        path,
        "has a configuration and no weights",
        f"one of {', '.join(_WEIGHTS)} has to be there: download the whole folder, or model.save_pretrained(folder)",
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise _refused(
            file.parent, f"has a {file.name} that cannot be read: {problem}", "download it again"
        ) from problem
    return found if isinstance(found, dict) else {}


def _refused(path: Path, what: str, way: str, context: list[str] | None = None) -> ModelError:
    return ModelError(f"{path} {what}", code="DK677", file=path, context=context or [], hint=way)
