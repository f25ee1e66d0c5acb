"""Configurations from command-line options, and back to YAML with what was chosen automatically written down."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import yaml

from deploykit.api.extensions import extension_libraries
from deploykit.data import specs
from deploykit.errors import UsageError
from deploykit.pipeline.config import Config, in_file, named_file
from deploykit.precision import PRECISIONS, requires_calibration
from deploykit.target import get_target, parse_target, require_converter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deploykit.api.extensions import CustomOps
    from deploykit.pipeline.outcome import Outcome
    from deploykit.pipeline.sections import QuantizeSection


# Where a configuration names a file, besides the calibration data: (section, key).
_NAMED_FILES = (
    ("", "source"),
    ("", "weights"),
    ("export", "sample"),
    ("validate", "data"),
    ("evaluate", "data"),
    ("bench", "data"),
)


def config_from_options(source: str, options: Mapping[str, Any]) -> Config:
    """The configuration that `run SOURCE --to ... --precision ...` means; paths are relative to the working folder.

    Raises UsageError: DK806 without a target, DK807 for a precision that no named target takes or int8 without data;
    UnavailableError (DK214) for a target that is checked only.
    """
    targets = _listed(options["to"])
    if not targets:
        raise UsageError(
            "`run` needs targets when its source is no configuration file",
            code="DK806",
            hint=f"deploykit run {source} --to onnxruntime,openvino, or: deploykit init {source}",
        )
    precisions = _listed(options["precision"]) or ["fp32"]
    for name in targets:
        _check_precisions(name, precisions)
    needy = [name for name in precisions if requires_calibration(name)]
    if needy and options["calib"] is None:
        raise UsageError(
            f"{needy[0]} needs calibration data", code="DK807", hint="--calib DATA, for example --calib calib.npz"
        )
    document: dict[str, Any] = {
        "source": source,
        "weights": None if options["weights"] is None else str(options["weights"]),
        "args": dict(options["args"] or {}),
        "export": {"sample": None if options["sample"] is None else str(options["sample"])},
        "inputs": {spec.name: _input(spec) for spec in map(specs.parse_input, options["inputs"])},
        "dims": {name: bounds for name, _, bounds in (text.partition("=") for text in options["dims"])},
        "quantize": [
            {"precision": precision, "calib": options["calib"] if PRECISIONS[precision].calibration else None}
            for precision in precisions
            if precision != "fp32"
        ],
        "targets": {name: {"precisions": precisions} for name in targets},
        "custom_ops": libraries_for(options["custom_ops"], targets),
        "output": "deploykit-out",
        "seed": options["seed"],
    }
    if options["eval"] is not None:
        document["evaluate"] = {"data": options["eval"], "metric": options["metric"] or "top1"}
    try:
        return Config.model_validate(document)
    except pydantic.ValidationError as problem:
        fault = problem.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise UsageError(f"{where}: {fault['msg'].removeprefix('Value error, ')}", code="DK800") from problem


def _listed(values: Sequence[str]) -> list[str]:
    """`a,b` and repeated options alike, each once."""
    return list(dict.fromkeys(part.strip() for value in values for part in value.split(",") if part.strip()))


def libraries_for(given: CustomOps, targets: Iterable[str]) -> dict[str, str]:
    """The extension libraries by target name; comparisons take ONNX Runtime's, whatever is asked for.

    Raises UsageError (DK232) and InvalidFileError as `extension_libraries` does.
    """
    wanted = [parse_target(name)[0] for name in targets]
    return extension_libraries(given, wanted, besides=[get_target("onnxruntime")])


def _input(spec: Any) -> dict[str, Any]:
    return {"dtype": spec.dtype, "shape": None if spec.shape is None else list(spec.shape)}


def _check_precisions(name: str, precisions: Sequence[str]) -> None:
    target, version = parse_target(name)
    require_converter(target, version, from_onnx=True)
    for precision in precisions:
        if precision not in target.precisions:
            raise UsageError(
                f"target {name!r} does not take precision {precision!r}",
                code="DK807",
                hint=f"it takes {', '.join(target.precisions)}",
            )


def narrowed(config: Config, to: Sequence[str], precision: Sequence[str]) -> Config:
    """The configuration with only the named targets and precisions; unchanged where none is named."""
    targets, precisions = _listed(to), _listed(precision)
    for name in targets:
        if name not in config.targets:
            raise UsageError(
                f"the configuration has no target {name!r}", code="DK806", hint=f"it has {', '.join(config.targets)}"
            )
    kept = {name: section for name, section in config.targets.items() if not targets or name in targets}
    if precisions:
        kept = {
            name: section.model_copy(update={"precisions": [p for p in config.precisions_for(name) if p in precisions]})
            for name, section in kept.items()
        }
        if not any(section.precisions for section in kept.values()):
            raise UsageError(f"nothing in the configuration has precision {', '.join(precisions)}", code="DK807")
    return config.model_copy(update={"targets": kept})


def decided(config: Config, outcomes: Sequence[Outcome]) -> Config:
    """The configuration with the exporter, opset, engine and float nodes that were chosen in the place of `auto`.

    The calibration method stays: `auto` chooses for each tensor, and the same data give the same choice.
    """
    update: dict[str, Any] = {}
    quantize = list(config.quantize)
    for outcome in outcomes:
        metrics, artifact = outcome.metrics, outcome.report.artifact if outcome.report else None
        if outcome.step.stage == "export":
            chosen = {name: metrics.get(name) for name in ("exporter", "task")}
            chosen["opset"] = artifact.opset if artifact else None
            update["export"] = config.export.model_copy(update={k: v for k, v in chosen.items() if v})
        elif outcome.step.stage == "simplify" and config.simplify and metrics.get("engine"):
            engine = metrics["engine"]
            update["simplify"] = config.simplify.model_copy(update={"engine": engine}) if engine != "none" else False
        elif outcome.step.stage == "quantize":
            for index, entry in enumerate(quantize):
                if entry.precision == outcome.step.precision:
                    quantize[index] = _found(entry, metrics)
    # What a search for `mixed` found is INT8 with these nodes in float.
    renamed: dict[str, str] = {old.precision: new.precision for old, new in zip(config.quantize, quantize, strict=True)}
    targets = {
        name: section.model_copy(update={"precisions": [renamed.get(p, p) for p in config.precisions_for(name)]})
        for name, section in config.targets.items()
    }
    return config.model_copy(update={**update, "quantize": quantize, "targets": targets})


def _found(entry: QuantizeSection, metrics: Mapping[str, Any]) -> QuantizeSection:
    """The entry with what a search found, so that a replay searches no more."""
    recipe = (metrics.get("search") or {}).get("recipe")
    if recipe is None:
        return entry
    found = {key: recipe[key] for key in ("method", "smooth_quant", "bias_correction") if recipe.get(key) is not None}
    left = sorted({*entry.exclude, *recipe["exclude"]})
    precision = "int8" if entry.precision == "mixed" else entry.precision
    return entry.model_copy(update={**found, "precision": precision, "exclude": left, "max_drop": None})


def to_yaml(config: Config, path: Path, folder: Path) -> str:
    """The configuration as YAML for a file at `path`; its own paths were relative to `folder`."""
    document = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for section, key in _NAMED_FILES:
        place = document if not section else document.get(section) or {}
        if isinstance(place, dict) and key in place:
            place[key] = _moved(place[key], path, folder)
    if config.evaluate is not None and in_file(config.evaluate.metric):
        document["evaluate"]["metric"] = _moved(config.evaluate.metric, path, folder)
    if "custom_ops" in document:
        document["custom_ops"] = {name: _moved(file, path, folder) for name, file in document["custom_ops"].items()}
    for name, section in document.get("targets", {}).items():
        for option in parse_target(name)[0].files:
            if isinstance((section or {}).get("options", {}).get(option), str):
                section["options"][option] = _moved(section["options"][option], path, folder)
    for entry in document.get("quantize", []):
        if "calib" in entry:
            entry["calib"] = _moved(entry["calib"], path, folder)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _moved(text: str | None, path: Path, folder: Path) -> str | None:
    file = named_file(text, folder)
    if text is None or file is None:
        return text
    relative = os.path.relpath(file, path.parent.absolute() if path.parent != Path() else Path.cwd())
    head, colon, name = text.rpartition(":")
    return f"{Path(relative).as_posix()}:{name}" if colon and head.endswith(".py") else Path(relative).as_posix()
