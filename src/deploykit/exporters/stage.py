"""The export stage: any source that is taken to an ONNX file, proven against its source before it is published."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.artifact import Artifact, TensorSpec
from deploykit.exporters.huggingface_folder import companions, copy_companions, read_folder
from deploykit.isolation import run_isolated
from deploykit.lazy import installed, missing
from deploykit.report import Finding, failure, note
from deploykit.stage import Product, Stage, Verification

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.data.specs import DimRange
    from deploykit.exporters.request import HuggingfaceRequest, SklearnRequest, TensorflowRequest, TorchRequest
    from deploykit.exporters.sources import Source
    from deploykit.progress import OnProgress

TORCH_WORKER = "torch"
ONNX_WORKER = "onnx"
TENSORFLOW_WORKER = "tensorflow"
SKLEARN_WORKER = "sklearn"
# By exporter: what it imports, as (package, extra), and for what.
_NEEDS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "torch": tuple((package, "torch", "exporting PyTorch models") for package in ("torch", "onnxscript")),
    "tensorflow": tuple(
        (package, "tensorflow", "exporting TensorFlow, Keras and LiteRT models")
        for package in ("tensorflow", "tf2onnx", "keras")
    ),
    "huggingface": tuple(
        (package, "huggingface", "exporting Hugging Face folders")
        for package in ("transformers", "torch", "onnxscript", "safetensors")
    ),
    "sklearn": tuple(
        (package, "sklearn", "exporting scikit-learn models") for package in ("sklearn", "skl2onnx", "skops")
    ),
}
# What to try when the file does not compute what its source computes.
_OTHER_WAYS = {
    "torch": "--exporter torchscript or --exporter dynamo takes the other way",
    "sklearn": "--input 'X:float64[batch,N]' computes in double precision, where the conversion can",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ExportOptions:
    """What decides an export besides the source itself."""

    inputs: tuple[TensorSpec, ...] = ()
    dims: Mapping[str, DimRange] = dataclasses.field(default_factory=dict)
    sample: Path | None = None
    weights: Path | None = None
    args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    opset: int | None = None
    exporter: str = "auto"
    signature: str | None = None
    task: str | None = None
    layout: Mapping[str, str] = dataclasses.field(default_factory=dict)
    translations: tuple[Path, ...] = ()
    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trust: bool = False
    seed: int = 0

    @property
    def bounds(self) -> dict[str, list[int | None]]:
        """The ranges in JSON form."""
        return {name: [bounds.minimum, bounds.maximum, *bounds.sizes] for name, bounds in self.dims.items()}


class ExportStage(Stage):
    """Source to ONNX in a worker; `ensures` compares the file with the source and fails on any difference."""

    name = "export"

    def __init__(self, source: Source, via: str, options: ExportOptions) -> None:
        self.source = source
        self.via = via
        self.settings = options

    @property
    def options(self) -> dict[str, Any]:
        """Source and weights by digest, everything else as given; no absolute path."""
        given = self.settings
        files = {"source": self.source.path, "weights": given.weights, "sample": given.sample}
        files |= {f"translations {at}": path for at, path in enumerate(given.translations)}
        files |= {f"extension library of {name}": Path(file) for name, file in given.libraries.items()}
        return {
            "source": self.source.label,
            "kind": self.source.kind.name,
            "inputs": [spec.as_dict() for spec in given.inputs],
            "dims": given.bounds,
            "args": {name: repr(value) for name, value in given.args.items()},
            "opset": given.opset,
            "exporter": given.exporter,
            **({"signature": given.signature} if given.signature else {}),
            **({"task": given.task} if given.task else {}),
            **({"trust": True} if given.trust else {}),
            **({"layout": dict(given.layout)} if given.layout else {}),
            "seed": given.seed,
            "sha256": {name: io.digest([file]) for name, file in files.items() if file is not None},
        }

    def requires(self, inputs: Mapping[str, Artifact]) -> list[Finding]:
        """MissingDependencyError when a framework is needed and absent; ModelError for a folder without its model."""
        for package, extra, purpose in _NEEDS.get(self.via, ()):
            if not installed(package):
                raise missing(package, extra, purpose)
        if self.via == "huggingface" and self.source.path is not None:
            read_folder(self.source.path)
        return []

    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Writes the ONNX file."""
        if self.via == "torch":
            facts = run_isolated(
                TORCH_WORKER,
                "deploykit.exporters.torch_export:export_job",
                {
                    "request": self.request(),
                    "output": str(output),
                    "opset": self.settings.opset,
                    "exporter": self.settings.exporter,
                },
            )
        elif self.via == "tensorflow":
            facts = run_isolated(
                TENSORFLOW_WORKER,
                "deploykit.exporters.tensorflow_export:export_job",
                {"request": self.tensorflow_request(), "output": str(output), "opset": self.settings.opset},
            )
        elif self.via == "huggingface":
            facts = run_isolated(
                TORCH_WORKER,
                "deploykit.exporters.huggingface_export:export_job",
                {"request": self.huggingface_request(), "output": str(output), "opset": self.settings.opset},
            )
        elif self.via == "sklearn":
            facts = run_isolated(
                SKLEARN_WORKER,
                "deploykit.exporters.sklearn_export:export_job",
                {"request": self.sklearn_request(), "output": str(output), "opset": self.settings.opset},
            )
        else:
            facts = run_isolated(
                ONNX_WORKER,
                "deploykit.exporters.onnx_source:export_job",
                {
                    "model": str(self.source.path),
                    "output": str(output),
                    "opset": self.settings.opset,
                    "inputs": [spec.as_dict() for spec in self.settings.inputs],
                    "dims": self.settings.bounds,
                },
            )
        return Product(
            "onnx",
            inputs=_specs(facts["inputs"]),
            outputs=_specs(facts["outputs"]),
            precision=facts["precision"],
            opset=facts["opset"],
            files=tuple(facts["files"]),
            companions=self._companions(output),
            tool_versions=facts["versions"],
            findings=[Finding.from_dict(finding) for finding in facts["findings"]],
            metrics=facts["metrics"],
        )

    def _companions(self, output: Path) -> tuple[str, ...]:
        """Copies what users of a Hugging Face model need besides it to `<stem>.assets`; the folder's name."""
        if self.via != "huggingface" or self.source.path is None or not companions(self.source.path):
            return ()
        folder = output.with_name(f"{output.stem}.assets")
        copy_companions(self.source.path, folder)
        return (folder.name,)

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """The file against the source at several sizes of every dynamic dimension, the ends of its range included."""
        if self.via == "torch":
            outcome = run_isolated(
                TORCH_WORKER,
                "deploykit.exporters.torch_proof:prove_job",
                {"request": self.request(), "model": str(made.path)},
                on_progress=on_progress,
            )
        elif self.via == "tensorflow":
            outcome = run_isolated(
                TENSORFLOW_WORKER,
                "deploykit.exporters.tensorflow_proof:prove_job",
                {"request": self.tensorflow_request(), "model": str(made.path)},
                on_progress=on_progress,
            )
        elif self.via == "huggingface":
            outcome = run_isolated(
                TORCH_WORKER,
                "deploykit.exporters.huggingface_proof:prove_job",
                {"request": self.huggingface_request(), "model": str(made.path)},
                on_progress=on_progress,
            )
        elif self.via == "sklearn":
            outcome = run_isolated(
                SKLEARN_WORKER,
                "deploykit.exporters.sklearn_proof:prove_job",
                {"request": self.sklearn_request(), "model": str(made.path)},
                on_progress=on_progress,
            )
        else:
            outcome = run_isolated(
                ONNX_WORKER,
                "deploykit.exporters.onnx_source:prove_job",
                {
                    "original": str(self.source.path),
                    "model": str(made.path),
                    "inputs": [spec.as_dict() for spec in self.settings.inputs],
                    "dims": self.settings.bounds,
                    "seed": self.settings.seed,
                },
                on_progress=on_progress,
            )
        findings = [Finding.from_dict(facts) for facts in outcome["findings"]]
        findings = self._verdict(outcome, findings)
        metrics = {"parity": {"outputs": outcome["outputs"], "samples": outcome["samples"]}}
        if "proven" in outcome:
            metrics["parity"]["proven"] = outcome["proven"]
        return Verification(findings, metrics, "real" if outcome["samples"] else None)

    def _verdict(self, outcome: dict[str, Any], found: list[Finding]) -> list[Finding]:
        """What was found, a wrong file said once: the dimension to blame (DK688), otherwise the outputs (DK625)."""
        wrong = [row["name"] for row in outcome["outputs"] if not row["passed"]]
        if wrong:
            # The comparison's own failures, which go into the one sentence, or are implied by the dimension.
            told = [f for f in found if f.severity == "error" and f.code.startswith("DK4")]
            found = [finding for finding in found if finding not in told]
            if any(finding.code == "DK688" for finding in found):
                return found
            symbols = ", ".join(self.settings.dims) or "every dynamic dimension"
            text = f"the exported file does not compute what {self.source.label} computes, over the range of {symbols}"
            said = "; ".join(dict.fromkeys(finding.message for finding in told)) or ", ".join(wrong)
            return [*found, failure("DK625", f"{text}: {said}", hint=_OTHER_WAYS.get(self.via, ""))]
        if not outcome["samples"]:
            return found
        worst = max((row["max_abs"] or 0.0 for row in outcome["outputs"]), default=0.0)
        text = f"equal to its source on {outcome['samples']} random inputs (largest difference {worst:.2g})"
        return [*found, note("DK626", text)]

    def request(self) -> TorchRequest:
        """The worker's request; paths absolute, since the worker's folder is its own business."""
        given, source = self.settings, self.source
        return {
            "kind": source.kind.name,
            "path": _absolute(source.path),
            "module": source.module,
            "factory": source.factory,
            "weights": _absolute(given.weights),
            "args": dict(given.args),
            "inputs": [spec.as_dict() for spec in given.inputs],
            "dims": given.bounds,
            "sample": _absolute(given.sample),
            "seed": given.seed,
            "translations": [str(path.resolve()) for path in given.translations],
            "libraries": dict(given.libraries),
        }

    def tensorflow_request(self) -> TensorflowRequest:
        """The TensorFlow worker's request."""
        given = self.settings
        return {
            "kind": self.source.kind.name,
            "path": str(_absolute(self.source.path)),
            "signature": given.signature,
            "inputs": [spec.as_dict() for spec in given.inputs],
            "dims": given.bounds,
            "sample": _absolute(given.sample),
            "seed": given.seed,
            "layout": dict(given.layout),
        }

    def huggingface_request(self) -> HuggingfaceRequest:
        """The request of a Hugging Face folder."""
        given = self.settings
        return {
            "path": str(_absolute(self.source.path)),
            "task": given.task,
            "inputs": [spec.as_dict() for spec in given.inputs],
            "dims": given.bounds,
            "sample": _absolute(given.sample),
            "seed": given.seed,
        }

    def sklearn_request(self) -> SklearnRequest:
        """The scikit-learn worker's request."""
        given = self.settings
        return {
            "kind": self.source.kind.name,
            "path": str(_absolute(self.source.path)),
            "trust": given.trust,
            "inputs": [spec.as_dict() for spec in given.inputs],
            "dims": given.bounds,
            "sample": _absolute(given.sample),
            "seed": given.seed,
        }


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _specs(facts: Sequence[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec.from_dict(spec) for spec in facts)
