"""Tasks by the names the ecosystem uses: which class of transformers loads the model, and what its outputs are."""

from __future__ import annotations

import dataclasses
import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers

from deploykit.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A task: its auto class, the outputs that the ONNX has, and those that it has where the model gives them.

    past: key/value caches are inputs and outputs too.
    """

    name: str
    auto: str
    outputs: tuple[str, ...] = ("logits",)
    optional: tuple[str, ...] = ()
    past: bool = False

    @property
    def generates(self) -> bool:
        """Whether the model continues a text, so that positions are an input."""
        return self.name.startswith("text-generation")


# In the order in which an architecture's name is looked up.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("fill-mask", "AutoModelForMaskedLM"),
        Task("text-classification", "AutoModelForSequenceClassification"),
        Task("token-classification", "AutoModelForTokenClassification"),
        Task("question-answering", "AutoModelForQuestionAnswering", ("start_logits", "end_logits")),
        Task("text-generation-with-past", "AutoModelForCausalLM", past=True),
        Task("text-generation", "AutoModelForCausalLM"),
        Task("image-classification", "AutoModelForImageClassification"),
        Task("object-detection", "AutoModelForObjectDetection", ("logits", "pred_boxes")),
        Task("semantic-segmentation", "AutoModelForSemanticSegmentation"),
        Task("depth-estimation", "AutoModelForDepthEstimation", ("predicted_depth",)),
        Task("audio-classification", "AutoModelForAudioClassification"),
        Task("automatic-speech-recognition", "AutoModelForCTC"),
        Task("image-feature-extraction", "AutoModelForImage", ("last_hidden_state",), ("pooler_output",)),
        Task("feature-extraction", "AutoModel", ("last_hidden_state",)),
    )
}
_ENCODERS = "AutoModelForTextEncoding"


def choose_task(config: Any, wanted: str | None, path: Path) -> tuple[Task, type]:
    """The task, and the auto class that loads it: the wanted one, or the one that the configuration's class is for.

    Raises UsageError (DK679) for a task that is unknown or does not fit the model, and when the configuration names no
    class that tells one.
    """
    fitting = fitting_tasks(config)
    if wanted is not None:
        if wanted not in TASKS:
            near = difflib.get_close_matches(wanted, TASKS, 1)
            raise _unfit(f"there is no task {wanted!r}", path, fitting, f"did you mean {near[0]!r}?" if near else "")
        if wanted not in fitting:
            raise _unfit(f"{type(config).__name__} has no model for {wanted}", path, fitting)
        return TASKS[wanted], _loader(TASKS[wanted], config)
    names = list(getattr(config, "architectures", None) or ())
    for task in TASKS.values():
        if task.name in fitting and any(name in _classes(task, config) for name in names):
            if task.past and not getattr(config.get_text_config(), "use_cache", True):
                continue
            if task.name == "fill-mask" and getattr(config, "is_encoder_decoder", False):
                continue  # it can fill masks, and is as often there to summarise or translate
            return task, _loader(task, config)
    named = f"its configuration names {', '.join(names)}" if names else "its configuration names no class"
    raise _unfit(f"the task is not known: {named}", path, fitting)


def fitting_tasks(config: Any) -> list[str]:
    """Names of the tasks for which transformers has a class of this model."""
    return [task.name for task in TASKS.values() if _classes(task, config)]


def _classes(task: Task, config: Any) -> set[str]:
    """Names of the classes of the configuration's model for the task."""
    autos = [task.auto, _ENCODERS] if task.name == "feature-extraction" else [task.auto]
    found = [_tables(auto).get(type(config), None) for auto in autos]
    kinds = [kind for entry in found for kind in (entry if isinstance(entry, tuple) else (entry,))]
    return {kind.__name__ for kind in kinds if kind is not None}


def _tables(auto: str) -> Mapping[Any, Any]:
    """Configuration classes to model classes; images have a table of their own and no auto class."""
    if auto == "AutoModelForImage":
        images: Mapping[Any, Any] = transformers.MODEL_FOR_IMAGE_MAPPING
        return images
    found: Mapping[Any, Any] = getattr(transformers, auto)._model_mapping
    return found


def _loader(task: Task, config: Any) -> type:
    """The auto class; of an encoder with a decoder the features are the encoder's."""
    name = "AutoModel" if task.auto == "AutoModelForImage" else task.auto
    if task.name == "feature-extraction":
        encoder = _tables(_ENCODERS).get(type(config), None)
        named = getattr(encoder, "__name__", None) in (getattr(config, "architectures", None) or ())
        if encoder is not None and (named or getattr(config, "is_encoder_decoder", False)):
            name = _ENCODERS
    found: type = getattr(transformers, name)
    return found


def _unfit(text: str, path: Path, fitting: list[str], hint: str = "") -> UsageError:
    listed = ", ".join(fitting)
    return UsageError(
        text,
        code="DK679",
        file=path,
        context=[f"tasks that fit this model: {listed}" if listed else "no task of deploykit fits this model"],
        hint=hint or (f"--task {fitting[0]}" if fitting else "write a factory and name it: model.py:factory"),
    )


def read_config(path: Path) -> Any:
    """The configuration object; no code of the folder is run.

    Raises ModelError: DK678 when the model's class is code in the folder, DK680 when transformers does not know it.
    """
    facts = json.loads((path / "config.json").read_text(encoding="utf-8"))
    kind = facts["model_type"]
    if kind not in transformers.CONFIG_MAPPING:
        if facts.get("auto_map"):
            code = sorted({str(name).partition("--")[2] or str(name) for name in facts["auto_map"].values()})
            raise ModelError(
                f"{path} needs Python code of its own ({', '.join(code[:4])}), and it was not run",
                code="DK678",
                file=path,
                hint="read that code; then write a factory that loads the model with trust_remote_code=True, and name "
                "it: deploykit export model.py:factory --input ...",
            )
        raise ModelError(
            f"transformers {transformers.__version__} knows no model type {kind!r}",
            code="DK680",
            file=path,
            hint="pip install --upgrade transformers, or write a factory and name it: model.py:factory",
        )
    try:
        return transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as problem:  # configurations check themselves with what they like
        raise ModelError(
            f"{path / 'config.json'} is not a configuration that transformers takes: {problem}",
            code="DK680",
            file=path,
            hint="compare it with the model's original config.json",
        ) from problem


def task_job(folder: str, task: str | None = None) -> dict[str, Any]:
    """The task of a folder's configuration, and those that fit it: {"task", "fitting"}; JSON, for a worker."""
    config = read_config(Path(folder))
    return {"task": choose_task(config, task, Path(folder))[0].name, "fitting": fitting_tasks(config)}
