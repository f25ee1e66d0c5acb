"""deploykit.yaml: its shape, and loading it with line and column in every complaint."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import pydantic
from pydantic import BaseModel, Field, field_validator

from deploykit import io
from deploykit import precision as precisions
from deploykit.data.contract import InputContract
from deploykit.data.dataset import READABLE
from deploykit.errors import ConfigError, DeploykitError, UsageError
from deploykit.pipeline.located_yaml import LocatedYaml
from deploykit.pipeline.sections import (
    BenchSection,
    BudgetSection,
    Dims,
    EvaluateSection,
    ExportSection,
    InputSection,
    QuantizeSection,
    Section,
    SimplifySection,
    TargetSection,
    ValidateSection,
)
from deploykit.route import AUTO, ONNX
from deploykit.target import check_options, parse_target, require_converter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from deploykit.target import Target


class Config(Section):
    """A whole deploykit.yaml."""

    source: str
    """Anything that SOURCE may be on the command line; paths are relative to this file."""
    weights: str | None = None
    args: dict[str, Any] = {}
    """Constructor arguments of a PyTorch factory."""
    inputs: dict[str, InputSection] = {}
    dims: Dims = {}
    """Bounds of symbolic dimensions, for inputs that are not listed above."""
    export: ExportSection = ExportSection()
    simplify: SimplifySection | Literal[False] = SimplifySection()
    """False leaves the exported graph as it is."""
    quantize: list[QuantizeSection] = []
    targets: Annotated[dict[str, TargetSection], Field(min_length=1)]
    evaluate: EvaluateSection | None = None
    validation: Annotated[ValidateSection, Field(alias="validate")] = ValidateSection()
    bench: BenchSection | Literal[False] = BenchSection()
    """False leaves the benchmark out."""
    budgets: BudgetSection = BudgetSection()
    custom_ops: dict[str, str] = {}
    """Extension libraries by target name; their code is run."""
    output: str = "deploykit-out"
    seed: int = 0

    @field_validator("targets", mode="before")
    @classmethod
    def _empty_targets(cls, targets: Any) -> Any:
        # `openvino:` with nothing behind it is the natural way to say "with the defaults".
        if isinstance(targets, dict):
            return {name: {} if value is None else value for name, value in targets.items()}
        return targets

    def contract(self) -> InputContract | None:
        """The preprocessing and state contract of the inputs; None when there is none."""
        rules = {
            name: {"preprocess": section.preprocess, "carry": section.carry}
            for name, section in self.inputs.items()
            if section.preprocess is not None or section.carry is not None
        }
        return InputContract.model_validate(rules) if rules else None

    def input_specs(self) -> list[str]:
        """The inputs whose dtype and shape are stated, as `--input` strings."""
        return [
            f"{name}:{section.dtype or 'float32'}[{','.join(str(d) for d in section.shape)}]"
            for name, section in self.inputs.items()
            if section.shape is not None
        ]

    def dim_specs(self) -> list[str]:
        """The bounded dimensions of all inputs, as `--dim` strings, each once."""
        sections = [self.dims, *(section.dims for section in self.inputs.values())]
        return sorted({f"{name}={bounds}" for dims in sections for name, bounds in dims.items()})

    def precisions_for(self, target_name: str) -> list[str]:
        """What to make for a target, fp32 first."""
        target, _ = parse_target(target_name)
        if (stated := self.targets[target_name].precisions) is not None:
            return list(dict.fromkeys(stated))
        made = ["fp32", *(entry.precision for entry in self.quantize)]
        return [precision for precision in dict.fromkeys(made) if precision in target.precisions]


def load_config(path: Path) -> Config:
    """The configuration in a file, its names and files checked.

    Raises ConfigError with `file:line:column`: DK810 wrong type or value, DK811 not YAML, DK812 unknown key (with the
    nearest), DK813 a file named in it is missing, DK814 unknown target, option or precision.
    """
    io.existing_file(path, "configuration")
    located = LocatedYaml(path)
    if not isinstance(located.value, dict):
        raise ConfigError(
            f"{located.place(())}: the file should hold keys (source:, targets:, ...), and holds none",
            file=path,
            hint="deploykit init MODEL writes a starter",
        )
    try:
        config = Config.model_validate(located.value)
    except pydantic.ValidationError as problem:
        raise _complaint(problem, located) from problem
    _check_names(config, located)
    _check_files(config, located)
    return config


def _complaint(problem: pydantic.ValidationError, located: LocatedYaml) -> ConfigError:
    """The first fault as the message, the others as context."""
    lines, hint, code = [], "", "DK810"
    for fault in problem.errors(include_url=False):
        location = tuple(part for part in fault["loc"] if not _is_branch(part, located, fault["loc"]))
        place = located.place(location)
        name = ".".join(str(part) for part in location)
        if fault["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(location[-1]), _keys_at(location[:-1]), n=1)
            lines.append(f"{place}: unknown key {name!r}")
            hint, code = hint or (f"did you mean {near[0]!r}?" if near else _known(location[:-1])), "DK812"
        elif fault["type"] == "missing":
            lines.append(f"{place}: the key {name!r} is missing")
            hint = hint or "deploykit init MODEL writes a starter file"
        else:
            reason = fault["msg"].removeprefix("Value error, ")
            lines.append(f"{place}: {name}: {reason[0].lower()}{reason[1:]}, got {fault['input']!r:.80}")
    return ConfigError(lines[0], code=code, file=located.path, context=lines[1:10], hint=hint)


def _is_branch(part: str | int, located: LocatedYaml, whole: tuple[str | int, ...]) -> bool:
    """Whether pydantic added the part (the branch of a union), so that it is no key of the file."""
    return isinstance(part, str) and (part.startswith("literal[") or part.endswith("Section")) and part in whole


def _keys_at(location: tuple[str | int, ...]) -> list[str]:
    """The keys that the mapping at `location` may have."""
    model: Any = Config
    for part in location:
        if isinstance(part, int) or not hasattr(model, "model_fields"):
            continue
        field = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        model = next(_sections(field.annotation), None) if field else model
        if model is None:
            return []
    return [field.alias or name for name, field in model.model_fields.items()] if hasattr(model, "model_fields") else []


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)


def _known(location: tuple[str | int, ...]) -> str:
    keys = _keys_at(location)
    return f"known keys: {', '.join(keys)}" if keys else ""


def _check_names(config: Config, located: LocatedYaml) -> None:
    """Targets, their options and precisions exist, and every precision asked for is made."""
    made = {"fp32", *(entry.precision for entry in config.quantize)}
    for name, section in config.targets.items():
        place = located.place(("targets", name))
        try:
            target, version = parse_target(name)
            require_converter(target, version, from_onnx=True)
            check_options(target, section.options)
            _check_route(target, section.options)
        except DeploykitError as problem:
            raise ConfigError(
                f"{place}: {problem.message}",
                code="DK814",
                file=located.path,
                context=problem.context,
                hint=problem.hint,
            ) from problem
        for index, precision in enumerate(section.precisions or ()):
            where = located.place(("targets", name, "precisions", index))
            if precision not in target.precisions:
                raise ConfigError(
                    f"{where}: target {name!r} does not take {precision!r}",
                    code="DK814",
                    file=located.path,
                    hint=f"it takes {', '.join(target.precisions)}",
                )
            if precision not in made:
                raise ConfigError(
                    f"{where}: {precision!r} is asked for, and nothing under `quantize` makes it",
                    code="DK814",
                    file=located.path,
                    hint=f"add `- {{precision: {precision}}}` under `quantize`",
                )
    for index, entry in enumerate(config.quantize):
        if precisions.requires_calibration(entry.precision) and entry.calib is None:
            raise ConfigError(
                f"{located.place(('quantize', index))}: {entry.precision} needs calibration data",
                code="DK810",
                file=located.path,
                hint="add `calib: DATA` (files, a folder, module.py:function; `random` only knowingly)",
            )
        if entry.max_drop is not None and config.evaluate is None:
            raise ConfigError(
                f"{located.place(('quantize', index, 'max_drop'))}: there is nothing to score accuracy on",
                code="DK810",
                file=located.path,
                hint="add `evaluate: {data: DATA, metric: top1}`",
            )


def _check_route(target: Target, options: Mapping[str, Any]) -> None:
    """Refuses a direct route (UsageError DK557): what is checked, quantized and scored is the exported ONNX."""
    route = options.get("route")
    if target.routes and route is not None and route not in (AUTO, ONNX):
        raise UsageError(
            f"route: {route} leaves ONNX out, and `run` makes every artifact from the exported ONNX",
            code="DK557",
            target=target.name,
            hint=f"deploykit convert SOURCE --to {target.name} --option route={route} -o OUT",
        )


def _check_files(config: Config, located: LocatedYaml) -> None:
    """Every file that the configuration names is there, relative to its folder."""
    folder = located.path.parent
    metric = config.evaluate.metric if config.evaluate and in_file(config.evaluate.metric) else None
    named: list[tuple[tuple[str | int, ...], str | None]] = [
        (("source",), config.source),
        (("weights",), config.weights),
        (("export", "sample"), config.export.sample),
        (("export", "custom_ops"), config.export.custom_ops),
        (("validate", "data"), config.validation.data),
        (("evaluate", "data"), config.evaluate.data if config.evaluate else None),
        (("evaluate", "metric"), metric),
        (("bench", "data"), config.bench.data if config.bench else None),
        *((("quantize", index, "calib"), entry.calib) for index, entry in enumerate(config.quantize)),
        *((("custom_ops", name), file) for name, file in config.custom_ops.items()),
    ]
    for location, text in named:
        path = named_file(text, folder)
        if path is not None and not path.exists():
            raise ConfigError(
                f"{located.place(location)}: no such file: {text}",
                code="DK813",
                file=located.path,
                context=[f"looked for {path}"],
                hint="paths are relative to the folder of the configuration",
            )
        if path is not None and path.is_file() and location[-1] in ("data", "calib") and _unread(path):
            raise ConfigError(
                f"{located.place(location)}: {text} is not a kind of data that is read",
                code="DK813",
                file=located.path,
                hint=f"a folder, module.py:function, random, or a file ending in {', '.join(READABLE)}",
            )


def _unread(path: Path) -> bool:
    return path.suffix.lower() not in (*READABLE, ".py")


def named_file(text: str | None, folder: Path) -> Path | None:
    """The file or folder that SOURCE or DATA names, made absolute; None for `package.module:name` and `random`."""
    if text is None or text == "random" or text.startswith("random:"):
        return None
    path, colon, _ = text.rpartition(":")
    if colon and path.endswith(".py"):
        return folder / path
    if colon and not (folder / text).exists() and "/" not in text and "\\" not in text:
        return None
    return folder / text


def in_file(metric: str) -> bool:
    """Whether a metric is a user's function in a file, `path/file.py:function`."""
    return ".py:" in metric


def anchored(text: str | None, folder: Path) -> str | None:
    """SOURCE or DATA with its path made absolute, so that it means the same from any working folder."""
    path = named_file(text, folder)
    if text is None or path is None:
        return text
    head, colon, name = text.rpartition(":")
    return f"{path.absolute()}:{name}" if colon and head.endswith(".py") else str(path.absolute())


def json_schema() -> dict[str, Any]:
    """The JSON Schema of deploykit.yaml, for editors (docs/deploykit.schema.json)."""
    schema = Config.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "deploykit.schema.json", **schema}
