"""The quantize stage: a float ONNX artifact in, one of lower precision out, with the evidence that it still works."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from deploykit.artifact import Artifact, TensorSpec
from deploykit.data.request import data_request
from deploykit.errors import GateError, ModelError, VendorError
from deploykit.isolation import run_isolated
from deploykit.precision import PRECISIONS
from deploykit.progress import OnProgress, Progress
from deploykit.quantize.settings import Settings
from deploykit.report import Finding, failure, note, warning
from deploykit.stage import Product, Stage, Verification

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.quantize.thresholds import Method
    from deploykit.target import QuantizationScheme

WORKER = "onnxruntime"
CRASHED = "DK511"


@dataclasses.dataclass(frozen=True, slots=True)
class AccuracyGate:
    """Task accuracy: labelled data (a DataRequest), the metric, and how much of it may be lost (None: no limit)."""

    data: Mapping[str, Any]
    metric: str
    max_drop: float | None = None


class QuantizeStage(Stage):
    """Quantizes {"model": float ONNX artifact} and compares the result with it.

    scheme: of the target, for int8. data_request: a DataRequest; with purpose "calibration" the ranges are measured on
    it, with another one only the comparison runs on it (None: random:0).
    data_sha256: digest of that data (`data.digest_of`). ranges: file to reuse calibrated ranges from, or to save to.
    The other options are those of `Settings`.
    """

    name = "quantize"

    def __init__(
        self,
        precision: str,
        scheme: QuantizationScheme | None = None,
        data_request: Mapping[str, Any] | None = None,
        *,
        data_sha256: str = "",
        target: str | None = None,
        method: Method = "auto",
        exclude: Sequence[str] = (),
        keep_io: bool = False,
        ranges: Path | None = None,
        gate: AccuracyGate | None = None,
        block_size: int = 32,
        smooth_quant: float | None = None,
        bias_correction: bool = False,
        sensitivity: bool = False,
        whole: bool = False,
    ) -> None:
        self.precision = precision
        self.scheme = scheme
        self.data_request = dict(data_request) if data_request is not None else None
        self.data_sha256 = data_sha256
        self.target = target
        self.method = method
        self.exclude = tuple(exclude)
        self.keep_io = keep_io
        self.ranges = ranges
        self.gate = gate
        self.block_size = block_size
        self.smooth_quant = smooth_quant
        self.bias_correction = bias_correction
        self.sensitivity = sensitivity
        self.whole = whole

    @property
    def options(self) -> dict[str, Any]:
        """What decides the bytes; paths are left out, the digest of the data stands for them."""
        request = self.data_request
        calibration = None
        if request is not None and request["purpose"] == "calibration":
            calibration = {
                "sha256": self.data_sha256,
                **{key: request[key] for key in ("samples", "seed", "label", "dims", "contract")},
            }
        return {
            "precision": self.precision,
            "target": self.target,
            "scheme": None if self.scheme is None else _as_json(self.scheme),
            "calibration": calibration,
            "method": self.method if len(PRECISIONS[self.precision].methods) > 1 else None,
            "block_size": self.block_size if self.precision == "int4-weights" else None,
            "smooth_quant": self.smooth_quant,
            "bias_correction": self.bias_correction,
            "exclude": list(self.exclude),
            "keep_io": self.keep_io,
            **({"whole": True} if self.whole else {}),
            "gate": None
            if self.gate is None
            else {"metric": self.gate.metric, "max_drop": self.gate.max_drop, "data": _without_paths(self.gate.data)},
        }

    def requires(self, inputs: Mapping[str, Artifact]) -> list[Finding]:
        """The first thing that a reader should know: calibration on random data proves nothing."""
        source = (self.data_request or {}).get("source")
        if (
            PRECISIONS[self.precision].calibration == "required"
            and isinstance(source, str)
            and source.partition(":")[0] == "random"
        ):
            text = (
                f"calibrated on random data ({source}): these are not the ranges of real inputs, accuracy is not proven"
            )
            return [warning("DK359", text, hint="--calib DATA with real samples")]
        return []

    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Calibrates and rewrites, in the worker."""
        model = inputs["model"]
        made = run_isolated(
            WORKER,
            "deploykit.quantize.jobs:quantize_job",
            {
                "model": str(model.path),
                "output": str(output),
                "precision": self.precision,
                "settings": self._settings(model).as_dict(),
            },
            on_progress=on_progress,
        )
        return Product(
            format="onnx",
            inputs=tuple(TensorSpec.from_dict(facts) for facts in made["inputs"]),
            outputs=tuple(TensorSpec.from_dict(facts) for facts in made["outputs"]),
            target=self.target,
            precision=made["precision"],
            opset=made["opset"],
            tool_versions=made["versions"],
            files=tuple(made["files"]),
            kept=made.get("kept"),
            findings=[Finding.from_dict(facts) for facts in made["findings"]],
            metrics=made["metrics"],
        )

    def _settings(self, model: Artifact) -> Settings:
        gate = self.gate
        return Settings(
            scheme=self.scheme,
            data=self.data_request,
            method=self.method,
            exclude=self.exclude,
            target=self.target,
            keep_io=self.keep_io,
            ranges=None if self.ranges is None else str(self.ranges),
            model_sha256=model.sha256,
            data_sha256=self.data_key,
            block_size=self.block_size,
            smooth_quant=self.smooth_quant,
            bias_correction=self.bias_correction,
            sensitivity=self.sensitivity,
            whole=self.whole,
            accuracy=None
            if gate is None
            else {"data": dict(gate.data), "metric": gate.metric, "max_drop": gate.max_drop},
        )

    @property
    def data_key(self) -> str:
        """Digest of the calibration data and of everything that chooses among its samples; "" without such data."""
        if self.data_request is None or self.data_request["purpose"] != "calibration":
            return ""
        import hashlib
        import json

        chosen = {key: value for key, value in self.data_request.items() if key not in {"source", "purpose"}}
        text = json.dumps({"data": self.data_sha256, **chosen}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """Two gates: outputs within the tolerance of the precision, and accuracy within the allowed drop."""
        source = inputs["model"]
        evidence = Verification(metrics={"size_ratio": round(made.size_bytes / max(source.size_bytes, 1), 4)})
        self._compare(source, made, evidence, on_progress)
        evidence.metrics["accuracy"] = None
        if self.gate is not None:
            self._score(self.gate, source, made, evidence, on_progress)
        return evidence

    def _compare(self, source: Artifact, made: Artifact, evidence: Verification, on_progress: OnProgress) -> None:
        on_progress(Progress("comparing with float", made.path.name))
        try:
            result = self._verify(source, made, on_progress)
        except VendorError as problem:
            if problem.code == CRASHED and made.precision == "fp16":
                # onnxruntime 1.32 dies loading a half-precision Transpose before a MatMul (its MatmulTransposeFusion
                # together with NchwcTransformer); with either off the same file runs.
                problem.hint = "onnxruntime crashes while optimising the result; --exclude Transpose may avoid that"
            raise
        except (GateError, ModelError) as problem:
            if problem.file == str(made.path):  # a staged file, which is gone when this is read
                problem.file = str(source.path)
                problem.hint = f"deploykit check '{source.path}' --target onnxruntime names every such node"
            raise
        evidence.execution = result["execution"]
        evidence.metrics |= {"outputs": result["outputs"], "samples": result["samples"], "first_divergence": None}
        evidence.metrics["parity"] = {key: result[key] for key in ("samples", "held_out", "engines", "execution")}
        evidence.findings += [Finding.from_dict(facts) for facts in result["findings"]]

    def _verify(self, source: Artifact, made: Artifact, on_progress: OnProgress) -> dict[str, Any]:
        result: dict[str, Any] = run_isolated(
            WORKER,
            "deploykit.quantize.verify:verify_job",
            {
                "reference": str(source.path),
                "candidate": str(made.path),
                "precision": made.precision,
                "data": self.data_request or data_request(None, "parity"),
            },
            on_progress=on_progress,
        )
        return result

    def _score(
        self, gate: AccuracyGate, source: Artifact, made: Artifact, evidence: Verification, on_progress: OnProgress
    ) -> None:
        on_progress(Progress("scoring", gate.metric))
        accuracy = run_isolated(
            WORKER,
            "deploykit.quantize.verify:accuracy_job",
            {
                "reference": str(source.path),
                "candidate": str(made.path),
                "data": dict(gate.data),
                "metric": gate.metric,
            },
            on_progress=on_progress,
        )
        if accuracy is None:  # a stochastic model, which the comparison has said already
            return
        evidence.metrics["accuracy"] = {**accuracy, "max_drop": gate.max_drop}
        text = f"{accuracy['metric']} {accuracy['reference']:.4g} -> {accuracy['candidate']:.4g}"
        if gate.max_drop is not None and not accuracy["drop"] <= gate.max_drop:
            evidence.findings.append(
                failure(
                    "DK375",
                    f"{text}: a drop of {accuracy['drop']:.4g}, and at most {gate.max_drop:g} is allowed",
                    hint="more calibration samples, --method percentile or mse, --exclude NODE, or --precision fp16",
                )
            )
            return
        text = f"{text} on {accuracy['samples']} labelled samples"
        if math.isfinite(accuracy["reference"]) and math.isfinite(accuracy["candidate"]):
            evidence.findings.append(note("DK376", text))
        else:
            evidence.findings.append(
                warning("DK376", f"{text}: nothing is known of the accuracy", hint="a metric gives finite numbers")
            )


def _as_json(scheme: QuantizationScheme) -> dict[str, Any]:
    return {**dataclasses.asdict(scheme), "operators": list(scheme.operators)}


def _without_paths(request: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key != "source"}
