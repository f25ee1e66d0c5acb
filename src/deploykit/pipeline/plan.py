"""The plan: a configuration as a list of steps, each one call of a public function with named predecessors."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.data.digests import digest_of, is_callable
from deploykit.data.request import bounds_of
from deploykit.isolation import run_isolated
from deploykit.pipeline.config import Config, anchored, in_file, named_file
from deploykit.pipeline.sections import profile_texts
from deploykit.precision import PRECISIONS
from deploykit.target import parse_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.pipeline.sections import EvaluateSection, QuantizeSection
    from deploykit.target import Target

DIGEST_JOB = "deploykit.data.digests:digest_job"
STAGES = ("export", "simplify", "check", "quantize", "convert", "evaluate", "bench")
_TENSORFLOW = ("tensorflow-cpu", "tensorflow", "keras", "tf2onnx", "h5py")
# What a stage's result depends on besides its inputs; a target's own packages are added where one is involved.
# pillow decodes and resizes the images that data may be.
_TOOLS: dict[str, tuple[str, ...]] = {
    "export": ("torch", "transformers", "onnxscript", "safetensors", *_TENSORFLOW, "onnx", "onnx-ir", "onnxruntime"),
    "simplify": ("onnxsim", "onnxslim", "onnx", "onnx-ir", "onnxruntime"),
    "check": ("onnx", "onnxruntime"),
    "quantize": ("onnx", "onnx-ir", "onnxruntime", "pillow"),
    "convert": ("onnx", "onnxruntime", "pillow"),
    "evaluate": ("onnxruntime", "pillow"),
    "bench": ("onnxruntime", "pillow"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One call.

    key: unique and readable ("convert openvino int8"). function: `module:name` of what is called.
    subjects: keys of the steps whose artifacts are the positional arguments; `source` instead of them for the first.
    references: further steps whose artifacts are keyword arguments. options: the other keyword arguments.
    identity: what stands for the options in the cache key, with content digests in place of paths.
    output: file name of the artifact in the store; None for a step that only measures.
    publish: where the artifact goes below the output folder.
    after: steps that give no input, and whose error about this step's target skips it.
    """

    key: str
    stage: str
    function: str
    subjects: tuple[str, ...] = ()
    source: str | None = None
    references: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    distributions: tuple[str, ...] = ()
    output: str | None = None
    publish: Path | None = None
    target: str | None = None
    precision: str | None = None
    after: tuple[str, ...] = ()


def make_plan(config: Config, folder: Path) -> list[Step]:
    """The steps in an order in which every predecessor comes first.

    folder: what the paths of the configuration are relative to.
    """
    return _Planner(config, folder).steps()


class _Planner:
    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.model = model_name(config.source)
        # A size that is a number is one in the exported model already: later steps have no such dimension to bound.
        self.all_dims = config.dim_specs()
        bounds = bounds_of(self.all_dims)
        self.dims = [text for text in self.all_dims if not _is_fixed(bounds[text.partition("=")[0]])]
        contract = config.contract()
        self.contract = contract.as_dict() if contract else None
        self.float_step = "export"

    def steps(self) -> list[Step]:
        steps = [self._export()]
        if self.config.simplify:
            steps.append(self._simplify())
            self.float_step = "simplify"
        steps.append(self._check())
        quantized = self._quantize()
        steps += {step.key: step for step in quantized.values()}.values()
        converted = [
            self._convert(name, precision, quantized)
            for name in self.config.targets
            for precision in self.config.precisions_for(name)
        ]
        steps += converted
        if self.config.evaluate:
            steps.append(self._evaluate(None))
            steps += [self._evaluate(step) for step in converted]
        if self.config.bench:
            steps.append(self._bench(converted))
        return steps

    def _data(self, source: str | None) -> tuple[str | None, str]:
        """The DATA argument from any working folder, and the digest that stands for it in the key."""
        if source is not None and is_callable(source, self.folder):
            # A user's code may print, hang or end its process.
            arguments = {"source": source, "base": str(self.folder)}
            return anchored(source, self.folder), str(run_isolated("data", DIGEST_JOB, arguments))
        return anchored(source, self.folder), digest_of(source, self.folder)

    def _libraries(self, *names: str) -> tuple[dict[str, str], dict[str, str]]:
        """The extension libraries of those targets from any working folder, and the digests that stand for them."""
        wanted = {parse_target(name)[0].name for name in names}
        files = {name: self.folder / file for name, file in self.config.custom_ops.items() if name in wanted}
        paths = {name: str(file.absolute()) for name, file in files.items()}
        return paths, {name: io.digest([file]) for name, file in files.items()}

    def _export(self) -> Step:
        config = self.config
        source, weights = anchored(config.source, self.folder), anchored(config.weights, self.folder)
        sample = anchored(config.export.sample, self.folder)
        options = {
            "inputs": config.input_specs(),
            "dims": self.all_dims,
            "args": config.args or None,
            "opset": config.export.opset,
            "exporter": config.export.exporter,
            "signature": config.export.signature,
            "layout": config.export.layout,
            "task": config.export.task,
            "seed": config.seed,
        }
        table = anchored(config.export.custom_ops, self.folder)
        named = (config.source, config.weights, config.export.sample, config.export.custom_ops)
        files = [path for text in named if (path := named_file(text, self.folder))]
        return Step(
            key="export",
            stage="export",
            function="deploykit.api.export:export",
            source=source,
            options={**options, "weights": weights, "sample": sample, "custom_ops": table},
            identity={**options, "source": config.source, "files": [io.digest([file]) for file in files]},
            distributions=_TOOLS["export"],
            output=f"{self.model}.onnx",
        )

    def _simplify(self) -> Step:
        section = self.config.simplify
        options = section.model_dump() if section else {}
        return Step(
            key="simplify",
            stage="simplify",
            function="deploykit.api.simplify:simplify",
            subjects=("export",),
            options={**options, "seed": self.config.seed},
            identity={**options, "seed": self.config.seed},
            distributions=_TOOLS["simplify"],
            output=f"{self.model}.onnx",
        )

    def _check(self) -> Step:
        names = list(self.config.targets)
        given = {parse_target(name)[0].name: dict(section.options) for name, section in self.config.targets.items()}
        options = {"targets": names, "dims": self.dims, "options": {name: of for name, of in given.items() if of}}
        libraries, digests = self._libraries(*names)
        return Step(
            key="check",
            stage="check",
            function="deploykit.api.check:check",
            subjects=(self.float_step,),
            options={**options, "custom_ops": libraries},
            identity={**options, "custom_ops": digests},
            distributions=(*_TOOLS["check"], *(d for name in names for d in parse_target(name)[0].distributions)),
        )

    def _quantize(self) -> dict[tuple[str, str], Step]:
        """Steps by (precision, target name); targets of one scheme share a step."""
        steps: dict[tuple[str, str], Step] = {}
        shared: dict[tuple[Any, ...], Step] = {}
        for entry in self.config.quantize:
            for name in self.config.targets:
                if entry.precision not in self.config.precisions_for(name):
                    continue
                target, _ = parse_target(name)
                if self._made_by(target, entry.precision) is not None:
                    continue
                # Half precision and int8 weights are the same everywhere; static INT8 follows the scheme.
                follows = PRECISIONS[entry.precision].follows
                scheme = {"scheme": dataclasses.astuple(target.scheme), "target": (target.name,)}.get(follows, ())
                group = (entry.precision, scheme)
                if group not in shared:
                    # Without data of its own, what needs none is still compared on real inputs where they are stated.
                    calib, digest = self._data(entry.calib or self.config.validation.data)
                    options = entry.model_dump(exclude={"calib"}) | {"eval": None, "metric": None, "label": None}
                    scored = ""
                    if entry.max_drop is not None and (section := self.config.evaluate) is not None:
                        source, scored = self._data(section.data)
                        options |= {"eval": source, "metric": self._metric(section), "label": section.label}
                    options["samples"] = entry.samples or (None if entry.calib else self.config.validation.samples)
                    options |= {"target": target.name, "dims": self.dims, "contract": self.contract}
                    options |= {"seed": self.config.seed}
                    suffix = f" ({target.name})" if follows else ""
                    shared[group] = Step(
                        key=f"quantize {entry.precision}{suffix}",
                        stage="quantize",
                        function="deploykit.api.quantize:quantize",
                        subjects=(self.float_step,),
                        options={**options, "calib": calib},
                        identity={**options, "calib": digest, "eval": scored, "scheme": scheme},
                        distributions=_TOOLS["quantize"],
                        output=f"{self.model}.onnx",
                        precision=entry.precision,
                    )
                steps[entry.precision, name] = shared[group]
        # What a step that serves one target finds concerns that target.
        served = collections.Counter(step.key for step in steps.values())
        return {
            (precision, name): dataclasses.replace(step, target=name) if served[step.key] == 1 else step
            for (precision, name), step in steps.items()
        }

    def _made_by(self, target: Target, precision: str) -> QuantizeSection | None:
        """The section of a precision that the target's converter makes from the float model; None: `quantize` does.

        What converters know nothing of, names of nodes that stay float and a search, is left to `quantize`.
        """
        entry = next((entry for entry in self.config.quantize if entry.precision == precision), None)
        if entry is None or precision not in target.makes or entry.exclude or entry.max_drop is not None:
            return None
        return entry

    def _convert(self, name: str, precision: str, quantized: Mapping[tuple[str, str], Step]) -> Step:
        section, (target, version) = self.config.targets[name], parse_target(name)
        data, digest = self._data(self._parity_data(precision))
        options: dict[str, Any] = {
            "to": name,
            "profiles": [
                f"{tensor}={':'.join(shapes)}"
                for tensor, given in sorted(section.profiles.items())
                for shapes in profile_texts(given)
            ],
            "dims": self.dims,
            "samples": self.config.validation.samples,
            "contract": self.contract,
            "seed": self.config.seed,
        }
        # The comparison runs in ONNX Runtime.
        libraries, digests = self._libraries(name, "onnxruntime")
        step = quantized.get((precision, name))
        making, calib, calib_digest = {}, None, ""
        if (entry := self._made_by(target, precision)) is not None:
            making = dict(target.makes[precision])
            calib, calib_digest = self._data(entry.calib or self.config.validation.data)
        options["options"] = {**section.options, **self._files(target, section.options), **making}
        file = f"{self.model}{target.suffix_for(section.options)}"
        return Step(
            key=f"convert {name} {precision}",
            stage="convert",
            function="deploykit.api.convert:convert",
            subjects=(step.key if step else self.float_step,),
            references={"reference": "export"},
            options={**options, "data": data, "calib": calib, "custom_ops": libraries},
            identity={
                **options,
                "options": {**section.options, **self._contents(target, section.options), **making},
                "calib": calib_digest,
                "version": version,
                "data": digest,
                "custom_ops": digests,
            },
            distributions=(*_TOOLS["convert"], *target.distributions),
            output=file,
            publish=Path(name) / precision / file,
            target=name,
            precision=precision,
            after=("check",),
        )

    def _files(self, target: Target, options: Mapping[str, Any]) -> dict[str, str]:
        """The target's options that name files, from any working folder."""
        named = {name: options[name] for name in target.files if isinstance(options.get(name), str)}
        return {name: str((self.folder / text).absolute()) for name, text in named.items()}

    def _contents(self, target: Target, options: Mapping[str, Any]) -> dict[str, str]:
        """The digests that stand for them; a missing file is refused by the step."""
        found = {name: Path(file) for name, file in self._files(target, options).items()}
        return {name: io.digest([file]) for name, file in found.items() if file.is_file()}

    def _parity_data(self, precision: str | None) -> str | None:
        """What artifacts are compared on: stated data, else labelled data, else what calibrated them (None: any).

        Random inputs lie outside the calibrated ranges, where a good INT8 model saturates: the last resort.
        """
        config = self.config
        stated = config.validation.data or (config.evaluate.data if config.evaluate else None)
        return stated or next(
            (entry.calib for entry in config.quantize if entry.calib and precision in (None, entry.precision)), None
        )

    def _metric(self, section: EvaluateSection) -> str:
        """The metric from any working folder."""
        return anchored(section.metric, self.folder) or "" if in_file(section.metric) else section.metric

    def _evaluate(self, step: Step | None) -> Step:
        """Accuracy of one artifact, or of the float source where `step` is None."""
        section = self.config.evaluate
        assert section is not None
        data, digest = self._data(section.data)
        options = {
            "metric": self._metric(section),
            "label": section.label,
            "samples": section.samples,
            "contract": self.contract,
            "seed": self.config.seed,
        }
        subject = "export" if step is None else step.key
        libraries, digests = self._libraries((step.target if step else None) or "onnxruntime")
        return Step(
            key="evaluate source" if step is None else f"evaluate {step.target} {step.precision}",
            stage="evaluate",
            function="deploykit.pipeline.measure:evaluate",
            subjects=(subject,),
            options={**options, "data": data, "custom_ops": libraries},
            identity={
                **options,
                "metric": digest_of_metric(section.metric, self.folder),
                "data": digest,
                "custom_ops": digests,
            },
            distributions=(*_TOOLS["evaluate"], *(step.distributions if step else ())),
            target=step.target if step else None,
            precision=step.precision if step else None,
        )

    def _bench(self, converted: list[Step]) -> Step:
        section, budgets = self.config.bench, self.config.budgets
        assert section
        data, digest = self._data(section.data or self._parity_data(None))
        options = {
            "batch": section.batch,
            "threads": section.threads,
            "seconds": section.seconds,
            "max_p99_ms": budgets.p99_ms,
            "min_throughput": budgets.throughput_per_s,
            "max_size_mb": budgets.size_mb,
            "max_rss_mb": budgets.rss_mb,
            "contract": self.contract,
            "dims": self.dims,
            "seed": self.config.seed,
        }
        libraries, digests = self._libraries(*(step.target for step in converted if step.target))
        return Step(
            key="bench",
            stage="bench",
            function="deploykit.api.bench:bench",
            subjects=tuple(step.key for step in converted),
            options={**options, "data": data, "custom_ops": libraries},
            identity={**options, "data": digest, "custom_ops": digests},
            distributions=(*_TOOLS["bench"], *(d for step in converted for d in step.distributions)),
        )


def _is_fixed(bounds: Sequence[int | None]) -> bool:
    return bounds[0] == bounds[1]


def model_name(source: str) -> str:
    """The stem of the artifacts: the factory's name, the file's stem, or the folder's name."""
    head, colon, name = source.rpartition(":")
    if colon and ("/" not in name and "\\" not in name) and (head.endswith(".py") or "." in head):
        return name
    path = Path(source)
    return path.stem if path.suffix else path.name


def digest_of_metric(metric: str, folder: Path) -> str:
    """A metric's name, with the content of its file where it is one."""
    path = named_file(metric, folder) if in_file(metric) else None
    return f"{metric} {io.digest([path])}" if path and path.is_file() else metric
