"""The stage that writes a build bundle: a model checked and prepared here, for a tool that runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.api.convert_stage import ConvertStage, node_finding, recorded_options
from deploykit.artifact import TensorSpec
from deploykit.converters.profiles import resolve_sets
from deploykit.errors import ExitCode, UsageError
from deploykit.exporters.sources import detect
from deploykit.isolation import run_isolated
from deploykit.opsupport.checker import check_model
from deploykit.opsupport.verdict import Status
from deploykit.parity import TOLERANCES, row_for
from deploykit.progress import OnProgress, Progress
from deploykit.report import Finding, Report, note
from deploykit.stage import Product, Stage, Verification

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.artifact import Artifact
    from deploykit.opsupport.summary import TargetSummary
    from deploykit.target import Target


class BundleStage(ConvertStage):
    """Writes a folder with which another machine builds the artifact. why: the reason why it is not built here."""

    why = ""
    _check: TargetSummary | None = None
    _told = ""

    def requires(self, inputs: Mapping[str, Artifact]) -> list[Finding]:
        """Precision, profiles, documented limits and every node that an operator table refuses, all at once."""
        model = inputs["model"]
        label = f"{self.target.name}@{self.version}" if self.version else self.target.name
        given = {self.target.name: {**self.target_options, **self._libraries}}
        dims = {name: bounds for name, bounds in self.dims.items() if _is_dim(name, model)}
        self._check = check_model(model.path, [label], dims=dims, options=given)[0]
        found = [*self.unfit(model), *self._widened(), *self._check.findings]
        for node in self._check.of(Status.UNSUPPORTED):
            facts = {"node": node.node, "op": node.op, "domain": node.domain, **node.verdict.as_dict()}
            found.append(node_finding(facts, self.target))
        if "profiles" in self.target.takes:
            _, said = resolve_sets(model.inputs, self.dims, self.profiles, target=self.target.name)
            found += [finding for finding in said if finding not in found]
        return found

    @property
    def _libraries(self) -> dict[str, str]:
        library = self.custom_ops.get(self.target.name)
        return {"custom_ops": library} if library else {}

    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Brings the model into the form that the toolchain takes, and has its folder written."""
        model = inputs["model"]
        with io.scratch_folder() as scratch:
            prepared, changed = self._prepared(model, Path(scratch), on_progress)
            on_progress(Progress(f"writing a bundle for {self.target.title}", model.path.name))
            made = self._write(prepared, output, model)
        findings = [*changed, *(Finding.from_dict(facts) for facts in made["findings"])]
        self._told = made["summary"]
        return Product(
            format=f"{self.target.name}-bundle",
            inputs=tuple(TensorSpec.from_dict(facts) for facts in made["inputs"]),
            outputs=tuple(TensorSpec.from_dict(facts) for facts in made["outputs"]),
            target=self.target.name,
            precision=self.precision or model.precision,
            opset=made["opset"],
            tool_versions=made["versions"],
            findings=findings,
            metrics=made["metrics"],
        )

    def _write(self, prepared: Path, output: Path, model: Artifact) -> dict[str, Any]:
        if self.target.bundle is None:
            raise AssertionError(f"{self.target.name} has no bundle")
        precision = self.precision or model.precision
        row = row_for(model.precision, precision)
        limits = TOLERANCES[row]
        arguments = {
            "model": str(prepared),
            "output": str(output),
            "target": self.target.name,
            "version": self.version,
            "options": {**self.target_options, **self._libraries},
            "dims": self.target.bounded(self.dims),
            "profiles": self.profiles,
            "precision": precision,
            "data": self._data,
            "check": self._verdicts(),
            "tolerance": {
                "row": row,
                "rtol": limits.rtol,
                "atol_factor": limits.atol_factor,
                "min_sqnr_db": limits.min_sqnr_db,
            },
            "calib": self.given.get("calib"),
        }
        facts: dict[str, Any] = run_isolated("bundles", self.target.bundle, arguments)
        return facts

    def _verdicts(self) -> dict[str, Any]:
        """The static report: who was asked, how many nodes have which verdict, and those that are not plainly taken."""
        summary = self._check
        if summary is None:
            return {}
        open_ones = [
            {"node": node.node, "op": node.op, "verdict": node.verdict.status.value, "reason": node.verdict.reason}
            for node in summary.nodes
            if node.verdict.status in (Status.CONDITIONAL, Status.UNSUPPORTED)
        ]
        counts = {status.value: len(summary.of(status)) for status in Status}
        return {"source": summary.source, "verdict": summary.verdict, "counts": counts, "nodes": open_ones}

    def _prepared(self, model: Artifact, folder: Path, on_progress: OnProgress) -> tuple[Path, list[Finding]]:
        """The model at an opset and with the sizes that the toolchain takes, each step compared with the one before."""
        from deploykit.api.export import export
        from deploykit.api.simplify import simplify

        path, found = model.path, []
        limits, opset = self.target.prepares.get("opset"), model.opset or 0
        if limits and not limits[0] <= opset <= limits[1]:
            wanted = min(max(opset, limits[0]), limits[1])
            report = export(path, output=folder / "opset.onnx", opset=wanted, on_progress=on_progress)
            _expect_made(report, self.target, f"the model could not be brought from opset {opset} to {wanted}")
            path = folder / "opset.onnx"
            found.append(note("DK590", f"opset {opset} became {wanted}, with equal outputs", target=self.target.name))
        sizes = {name: low for name, (low, high, *_) in self.dims.items() if low == high and _is_dim(name, model)}
        if self.target.prepares.get("static") and sizes:
            report = simplify(path, output=folder / "static.onnx", dims=sizes, engine="native", on_progress=on_progress)
            _expect_made(report, self.target, "the sizes could not be put into the model")
            path = folder / "static.onnx"
        return path, found

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """Nothing was built: what was written instead, and why."""
        told = note(
            "DK590",
            f"{made.path.name} is a build bundle and no {self.target.title} artifact: {self.why}; {self._told}",
            target=self.target.name,
            hint=f"copy the folder {made.path.name} there, and follow its README.md",
        )
        return Verification([told], {"parity": None}, "none")


class SourceBundleStage(Stage):
    """A bundle for a toolchain that reads the source itself, as TF-TRT does; inputs of `run_stage`: {"source": it}."""

    name = "convert"
    carries = False

    def __init__(self, target: Target, options: Mapping[str, Any], calib: Mapping[str, Any] | None, onnx: Path) -> None:
        """onnx: the source exported, which knows its inputs."""
        self.target = target
        self.given = dict(options)
        self.calib = calib
        self.onnx = onnx
        self._told = ""

    @property
    def options(self) -> dict[str, Any]:
        """What decides the bundle's bytes."""
        return {"to": self.target.name, "options": recorded_options(self.target, self.given)}

    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Writes the folder."""
        source = inputs["source"]
        arguments = {
            "model": str(self.onnx),
            "output": str(output),
            "target": self.target.name,
            "options": self.given,
            "precision": "fp32",
            "data": {},
            "check": {},
            "tolerance": {},
            "calib": self.calib,
            "source": str(source.path.resolve()),
        }
        made = run_isolated("bundles", str(self.target.bundle), arguments)
        self._told = made["summary"]
        return Product(
            format=f"{self.target.name}-bundle",
            inputs=tuple(TensorSpec.from_dict(facts) for facts in made["inputs"]),
            outputs=tuple(TensorSpec.from_dict(facts) for facts in made["outputs"]),
            target=self.target.name,
            tool_versions=made["versions"],
            metrics=made["metrics"],
        )

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """What was written, and the way that replaces it."""
        text = f"{made.path.name} is a build bundle and no converted model; {self._told}"
        return Verification([note("DK590", text, target=self.target.name)], {"parity": None}, "none")


def bundle_stage(stage: ConvertStage, options: Mapping[str, Any], onnx: Path) -> Stage:
    """The stage itself, or the one for a toolchain that reads the source. onnx: the source exported."""
    if stage.target.bundle is None or stage.target.prepares.get("model", "onnx") == "onnx":
        return stage
    return SourceBundleStage(stage.target, options, stage.given.get("calib"), onnx)


def expect_source(target: Target, source: str | Path) -> None:
    """Raises UsageError (DK596) where a toolchain reads another kind of source than the one that was given."""
    wanted = target.prepares.get("model", "onnx")
    if wanted == "onnx" or detect(source).kind.name == wanted:
        return
    raise UsageError(
        f"{target.title} reads a TensorFlow SavedModel folder, and {Path(source).name} is none",
        code="DK596",
        target=target.name,
        hint=f"for an ONNX model: deploykit convert {Path(source).name} --to tensorrt -o OUT.engine",
    )


def settled(report: Report) -> Report:
    """A report of a bundle: passed, with the exit code that says that the artifact is built elsewhere."""
    if report.artifact is not None and not report.failed and report.error is None:
        report.forced_exit = ExitCode.UNAVAILABLE
    return report


def _expect_made(report: Report, target: Target, what: str) -> None:
    if report.error is not None:
        raise report.error
    if report.artifact is None:
        told = "; ".join(finding.message for finding in report.findings if finding.severity == "error")
        raise UsageError(f"{what}: {told}", code="DK595", target=target.name)


def _is_dim(name: str, model: Artifact) -> bool:
    return any(name == size for spec in model.inputs for size in spec.shape or ())
