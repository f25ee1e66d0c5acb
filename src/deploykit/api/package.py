"""`deploykit package`: an artifact laid out as a server loads it, loaded and run before it is handed out."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deploykit import io
from deploykit.api.inspect import inspect
from deploykit.api.serve import require_engine
from deploykit.artifact import Artifact, write_manifest
from deploykit.data.request import data_request
from deploykit.errors import UsageError
from deploykit.isolation import run_isolated
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Finding, Report, failure, note
from deploykit.serving import repository
from deploykit.serving.datatypes import DATATYPES
from deploykit.serving.model_config import batch_symbol, config_text
from deploykit.stage import Product, Stage, Verification, run_stage
from deploykit.target import target_of_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_MAX_BATCH = 64


class PackageStage(Stage):
    """Lays one artifact out as a model's folder in a repository. The inputs of `run_stage` are {"model": artifact}.

    max_batch: rows in one request, for models with a batch dimension. data: a `DataRequest` for the trial.
    """

    name = "package"
    carries = False  # into the version folder, by itself: a folder beside would be another model

    def __init__(self, model_name: str, max_batch: int | None, data: Mapping[str, Any]) -> None:
        """model_name: the folder's and the model's name."""
        self.model_name = model_name
        self.max_batch = max_batch
        self.data = dict(data)

    @property
    def options(self) -> dict[str, Any]:
        """What decides the files; the trial's data only decides whether they are published."""
        return {"as": "repository", "name": self.model_name, "max_batch": self.max_batch}

    def requires(self, inputs: Mapping[str, Artifact]) -> list[Finding]:
        """Whether a model server has an engine for the format and words for every tensor."""
        model = inputs["model"]
        if model.format not in repository.MODEL_FILES:
            known = ", ".join(repository.MODEL_FILES)
            return [failure("DK720", f"no model server loads {model.format} files from a repository; it takes {known}")]
        return [
            failure("DK721", f"{kind} {spec.name!r} is {spec.describe()}, which {repository.CONFIG} cannot say")
            for kind, specs in (("input", model.inputs), ("output", model.outputs))
            for spec in specs
            if spec.shape is None or spec.dtype not in DATATYPES
        ]

    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Copies the artifact, with its manifest and external data, and writes its configuration."""
        model = inputs["model"]
        on_progress(Progress("packaging", model.path.name))
        folder = output / str(repository.VERSION)
        folder.mkdir(parents=True)
        main = repository.MODEL_FILES[model.format]
        names = {name: _renamed(name, model, main) for name in model.files or (model.path.name,)}
        for source, copy in names.items():
            (folder / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model.path.parent / source, folder / copy)
        beside = {name: Path(main).stem + name.removeprefix(model.path.stem) for name in model.companions}
        for source, copy in beside.items():
            io.copy_entry(model.path.parent / source, folder / copy)
        files = tuple(names.values())
        copied = Artifact.of(folder / main, model.format, files=files)
        write_manifest(
            dataclasses.replace(
                model,
                path=copied.path,
                files=files,
                companions=tuple(beside.values()),
                sha256=copied.sha256,
                size_bytes=copied.size_bytes,
            )
        )
        size, findings = self._max_batch_size(model)
        text = config_text(self.model_name, model.format, model.inputs, model.outputs, size)
        (output / repository.CONFIG).write_text(text, encoding="utf-8")
        return Product(
            format="repository",
            inputs=model.inputs,
            outputs=model.outputs,
            target=model.target,
            precision=model.precision,
            opset=model.opset,
            tool_versions=dict(model.tool_versions),
            findings=findings,
            metrics={"model": self.model_name, "version": str(repository.VERSION), "max_batch_size": size},
        )

    def _max_batch_size(self, model: Artifact) -> tuple[int, list[Finding]]:
        symbol = batch_symbol([*model.inputs, *model.outputs])
        if symbol is None:
            said = (
                [note("DK723", "--max-batch has no effect: the tensors do not all begin with the same symbol")]
                if self.max_batch is not None
                else []
            )
            return 0, said
        size = self.max_batch or DEFAULT_MAX_BATCH
        why = "--max-batch" if self.max_batch else "a default: --max-batch changes it"
        return size, [note("DK723", f"dimension {symbol!r} is the batch, of at most {size} rows ({why})")]

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """Loads the model from the new folder, in its worker, and runs it once."""
        model = inputs["model"]
        on_progress(Progress("loading and running the package", self.model_name))
        target = target_of_format(model.format)
        if target is None:
            raise AssertionError(f"{model.format} belongs to no target")
        facts = run_isolated(
            target.worker or target.name,
            "deploykit.serving.trial:trial_job",
            {"folder": str(made.path), "data": self.data},
            block=target.blocked,
        )
        findings = []
        if facts["problem"] is not None:
            findings.append(
                failure(
                    "DK722",
                    f"the packaged model does not run on {self.data['source']}: {facts['problem']}",
                    hint="give an input that it takes: --data FILE.npz",
                )
            )
        for kind, specs in (("inputs", model.inputs), ("outputs", model.outputs)):
            expected, found = [spec.name for spec in specs], [spec["name"] for spec in facts[kind]]
            if expected != found:
                findings.append(failure("DK722", f"{kind} of the loaded package are {found}, and should be {expected}"))
        trial = {key: facts[key] for key in ("engine", "execution", "made")}
        return Verification(findings, {"trial": trial}, facts["execution"])


def _renamed(name: str, model: Artifact, main: str) -> str:
    """A file's name in the version folder. External data of ONNX keeps its own: the model refers to it by that."""
    if name == model.path.name:
        return main
    stem = model.path.stem
    own = model.format != "onnx" and name.startswith(f"{stem}.")
    return Path(main).stem + name.removeprefix(stem) if own else name


def package(
    artifact: str | Path,
    *,
    as_: Literal["repository"],
    output: str | Path,
    name: str | None = None,
    max_batch: int | None = None,
    data: str | None = None,
    force: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Lays an artifact out for a model server: `OUTPUT/NAME/1/model.onnx` and `OUTPUT/NAME/config.pbtxt`.

    as_: "repository", the layout of Triton, KServe and `deploykit serve`. output: a new folder, or a repository that
    gets one more model. name: of the model; the file's stem otherwise. max_batch: rows in one request, where the first
    dimension of every tensor is the same symbol. data: DATA whose first sample the package is run on; random:0.
    Returns a report whose artifact is the model's folder, with metrics {"model", "version", "max_batch_size",
    "trial": {"engine", "execution", "made": {output: shape}}}.
    Raises OutputError (DK120, DK708), UsageError, UnavailableError when the artifact cannot run here and so cannot be
    tried, and what `inspect` raises.
    """
    source, folder = Path(artifact), Path(output)
    if as_ != "repository":
        raise UsageError(f"there is no layout {as_!r}", code="DK807", hint="as_='repository'")
    model_name = source.stem if name is None else name
    repository.check_name(model_name)
    final = repository.destination(folder, model_name, repository.VERSION, force=force)
    require_engine(source)
    looked = inspect(source)
    model = looked.artifact
    if model is None:
        raise AssertionError("inspect gives the artifact")
    request = data_request(data or f"random:{seed}", "parity", samples=1, seed=seed)
    with _existing(folder):
        report = run_stage(
            PackageStage(model_name, max_batch, request),
            {"model": model},
            final,
            force=force,
            on_progress=on_progress,
        )
    report.findings[:0] = looked.findings
    return report


@contextlib.contextmanager
def _existing(folder: Path) -> Iterator[None]:
    """The folder exists inside the block; one that was made for it goes away when nothing came into it."""
    new = not folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        yield
    finally:
        if new and not any(folder.iterdir()):
            folder.rmdir()
