"""A transformers model from a folder, ready for export: flat tensors in and out, key/value caches included.

Runs in the torch worker, offline; no code of the folder is run.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

# Before transformers and its hub client are imported: nothing here goes to the network.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer

from deploykit.errors import ModelError
from deploykit.exporters.diagnosis import reason
from deploykit.exporters.huggingface_folder import read_folder
from deploykit.exporters.huggingface_inputs import Inputs, inputs_of, past_name, present_name
from deploykit.exporters.huggingface_tasks import Task, choose_task, read_config
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.exporters.request import HuggingfaceRequest
    from deploykit.runtime import Feeds, Outputs

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class Flat(torch.nn.Module):  # type: ignore[misc]
    """The model with tensors by name only: caches are `past_key_values.N.key` in and `present.N.key` out.

    Parameters have `_` where names have dots.
    """

    def __init__(self, model: torch.nn.Module, task: Task, outputs: Sequence[str], layers: int) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.outputs = tuple(outputs)
        self.layers = layers

    def forward(self, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Outputs by name."""
        options: dict[str, Any] = {"return_dict": True}
        if self.task.generates:
            options["use_cache"] = self.task.past
        if self.task.past:
            pairs = [
                (tensors.pop(parameter(past_name(n, "key"))), tensors.pop(parameter(past_name(n, "value"))))
                for n in range(self.layers)
            ]
            options[cache_parameter(self.model)] = _cache(pairs)
        made = self.model(**tensors, **options)
        found = {name: made[name] for name in self.outputs}
        if self.task.past:
            for n, layer in enumerate(made[cache_parameter(self.model)].layers):
                found[present_name(n, "key")], found[present_name(n, "value")] = layer.keys, layer.values
        return found


def cache_parameter(model: torch.nn.Module) -> str:
    """What the model calls its cache: transformers 5 is renaming `past_key_values` to `cache`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def parameter(name: str) -> str:
    """The parameter of `Flat.forward` for an input."""
    return name.replace(".", "_")


def _cache(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> DynamicCache:
    """A cache of full layers, sliding windows too: the mask keeps to the window.

    Filled by hand, since `update` would concatenate each tensor with an empty one.
    """
    cache = DynamicCache()
    cache.layers = []
    for keys, values in pairs:
        layer = DynamicLayer()
        layer.keys, layer.values = keys, values
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        cache.layers.append(layer)
    return cache


@dataclasses.dataclass(slots=True)
class Pretrained:
    """A loaded model: how it is called, its inputs, and what was found on the way."""

    flat: Flat
    task: Task
    inputs: Inputs
    findings: list[Finding]

    def tensors(self, feeds: Feeds) -> dict[str, torch.Tensor]:
        """Arguments of `flat` for feeds by input name."""
        return {parameter(spec.name): torch.from_numpy(np.array(feeds[spec.name])) for spec in self.inputs.specs}

    def run(self, feeds: Feeds) -> Outputs:
        """Outputs by name of the model in eager mode."""
        with torch.no_grad():
            made = self.flat(**self.tensors(feeds))
        return {name: tensor.detach().numpy() for name, tensor in made.items()}


_last: tuple[str, Pretrained] | None = None


def load(request: HuggingfaceRequest) -> Pretrained:
    """The model of the request; the last one is kept, so that export and its proof see the same object.

    Raises ModelError: DK677 for folders without a whole model, DK678 for remote code, DK680 for weights that do not
    fit, DK681 for unknown inputs or caches; UsageError (DK679, DK620) for a task or inputs that do not fit.
    """
    global _last
    path = Path(request["path"])
    stamps = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(path.iterdir())]
    key = json.dumps([request, stamps], sort_keys=True)
    if _last is None or _last[0] != key:
        _last = None
        _last = (key, _load(request, path))
    return _last[1]


def _load(request: HuggingfaceRequest, path: Path) -> Pretrained:
    read_folder(path)
    config = read_config(path)
    task, auto = choose_task(config, request["task"], path)
    model, lost = _from_pretrained(path, auto, config)
    outputs = [*task.outputs, *(name for name in task.optional if not lost)]
    findings = _said(request, config, task, model)
    caches = _caches(model, path) if task.past else []
    inputs = inputs_of(model, task, path, request["inputs"], request["dims"], caches)
    flat = Flat(model, task, outputs, len(caches)).eval()
    pretrained = Pretrained(flat, task, inputs, findings)
    sizes = inputs.example()
    try:
        made = pretrained.run(inputs.feeds(sizes, (request["seed"], 0)))
    except Exception as problem:  # a model may fail in any way on inputs that are not its own
        shapes = ", ".join(f"{spec.name} {list(inputs.shape(spec, sizes))}" for spec in inputs.specs)
        raise ModelError(
            f"{type(model).__name__} itself fails on {shapes}: {reason(problem)}",
            code="DK681",
            file=path,
            context=_others(model, inputs),
            hint="describe the inputs it takes with --input, bound their sizes with --dim, or write a factory: "
            "model.py:factory",
        ) from problem
    flat.outputs = tuple(name for name in outputs if made.get(name) is not None)
    return pretrained


def _others(model: Any, inputs: Inputs) -> list[str]:
    """The kinds of input that the model takes besides those that were inferred."""
    known = {spec.name for spec in inputs.specs}
    kinds = ("input_ids", "pixel_values", "input_values", "input_features", "bbox", "decoder_input_ids")
    taken = inspect.signature(model.forward).parameters
    others = [name for name in kinds if name in taken and name not in known]
    return [f"forward takes {', '.join(others)} as well, which is not inferred"] if others else []


def _said(request: HuggingfaceRequest, config: Any, task: Task, model: Any) -> list[Finding]:
    findings = []
    if request["task"] is None:
        text = f"the task is {task.name}, for {', '.join(config.architectures)} in config.json"
        findings.append(note("DK682", text, hint="--task takes another one"))
    kept = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    if kept != "float32":
        text = f"the weights are {kept} in the folder and float32 in the ONNX"
        findings.append(note("DK682", text, hint="deploykit quantize --precision fp16|bf16 makes them narrow again"))
    return findings


def _from_pretrained(path: Path, auto: Any, config: Any) -> tuple[Any, list[str]]:
    """The model in float32, and the names of pooler weights that the folder lacks."""
    try:
        model, facts = auto.from_pretrained(
            path,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            # So that they are listed; they are refused below.
            ignore_mismatched_sizes=True,
        )
    except Exception as problem:  # transformers, torch and safetensors raise many kinds here
        text = str(problem)
        if "weights_only" in text or "WeightsUnpickler" in text:
            raise ModelError(
                f"the weights in {path} have other objects than tensors, and loading them would run code",
                code="DK607",
                file=path,
                hint="where the model was made: model.save_pretrained(folder) writes safetensors",
            ) from problem
        raise ModelError(
            f"transformers cannot load the model in {path}: {reason(problem)}",
            code="DK680",
            file=path,
            hint="AutoModel.from_pretrained(folder) fails alike in your own code: mend the folder there",
        ) from problem
    missing = sorted(facts["missing_keys"])
    wrong = sorted(_sizes(key) for key in facts.get("mismatched_keys") or ())
    lost = [name for name in missing if "pooler" in name]
    bad = [name for name in missing if name not in lost] + wrong
    if wrong and len(bad) == len(wrong):
        raise ModelError(
            f"{len(wrong)} weights in the folder have other sizes than config.json asks for",
            code="DK680",
            file=path,
            context=[*wrong[:3]],
            hint="compare config.json with the one that the weights came with",
        )
    if bad:
        raise ModelError(
            f"the folder has no weights for {len(bad)} tensors of {type(model).__name__}, which would be random",
            code="DK680",
            file=path,
            context=[f"missing or of another shape: {', '.join(bad[:6])}"],
            hint="--task takes the part that was trained; deploykit export without --task takes the one in config.json",
        )
    return model.eval(), lost


def _sizes(mismatch: Any) -> str:
    """A weight of another size than config.json asks for, with both; transformers gives (name, found, wanted)."""
    if not isinstance(mismatch, tuple) or len(mismatch) != 3:
        return str(mismatch)
    name, found, wanted = mismatch
    return f"{name} is {list(found)} where config.json asks for {list(wanted)}"


def _caches(model: Any, path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Heads and width of keys and of values, by layer; seen in one call of the model.

    Raises ModelError (DK681) when its state is not one key and one value tensor for each layer.
    """
    with torch.no_grad():
        made = model(input_ids=torch.ones(1, 2, dtype=torch.int64), use_cache=True, return_dict=True)
    layers = getattr(made.get(cache_parameter(model)), "layers", None) or []
    pairs: list[tuple[Any, Any]] = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in layers]
    if not pairs or not all(_is_cached(tensor) for pair in pairs for tensor in pair):
        kinds = sorted({type(layer).__name__ for layer in layers}) or ["none"]
        raise ModelError(
            f"{type(model).__name__} keeps its state in other forms than keys and values ({', '.join(kinds)})",
            code="DK681",
            file=path,
            hint="--task text-generation exports it without a cache",
        )
    return [((k.shape[1], k.shape[3]), (v.shape[1], v.shape[3])) for k, v in pairs]


def _is_cached(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.ndim == 4 and tensor.shape[2] == 2
