"""The stage that builds one target's artifact from ONNX, checked before and compared after."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.api.extensions import digests
from deploykit.api.fixed_place import at_a_fixed_place, made_at_a_fixed_place
from deploykit.artifact import Artifact, TensorSpec
from deploykit.converters.profiles import as_sets, hull
from deploykit.data.request import data_request
from deploykit.data.stated import stated_contract
from deploykit.errors import DeploykitError, GateError, UnavailableError
from deploykit.isolation import run_alone, run_isolated
from deploykit.progress import OnProgress, Progress
from deploykit.report import Finding, failure, note, warning
from deploykit.route import ONNX
from deploykit.stage import Product, Stage, Verification
from deploykit.taps import can_tap
from deploykit.target import Target, check_options, comparison_worker, resolve, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deploykit.converters.profiles import ProfileSets
    from deploykit.place import Place


class ConvertStage(Stage):
    """Builds one target's artifact from an ONNX artifact and compares it with its parent and its float source.

    dims: bounds by symbol, [min, max or None, *sizes]. profiles: [min, opt, max shape] by input, or a list of such;
    targets that take one get the range of them all.
    precision: what the ONNX holds; None takes what the artifact says. data_request: a `DataRequest` for the comparison.
    reference: the float source, for the second gate; None leaves that gate out.
    custom_ops: each engine's extension library, by target name.
    calib, calib_sha256: a `DataRequest` for what the converter measures, and the digest of its data. contract: the
    preprocessing contract in JSON form. Both reach the converters of targets that say so (`Target.takes`).
    The inputs of `run_stage` are {"model": ONNX artifact}.
    """

    name = "convert"

    def __init__(
        self,
        target: Target,
        version: str | None = None,
        options: Mapping[str, Any] | None = None,
        dims: Mapping[str, Sequence[int | None]] | None = None,
        profiles: ProfileSets | None = None,
        precision: str | None = None,
        data_request: Mapping[str, Any] | None = None,
        reference: Artifact | None = None,
        custom_ops: Mapping[str, str] | None = None,
        calib: Mapping[str, Any] | None = None,
        calib_sha256: str | None = None,
        contract: Mapping[str, Any] | None = None,
    ) -> None:
        """Checks the options' names; UsageError (DK803)."""
        check_options(target, options or {})
        self.target = target
        self.version = version
        self.target_options = dict(options or {})
        self.dims = {name: list(bounds) for name, bounds in (dims or {}).items()}
        sets = as_sets(profiles or {})
        several = len(sets) > 1 and "profiles" in target.takes
        self.profiles: ProfileSets = sets if several else hull(sets)
        self._merged = len(sets) if len(sets) > 1 and not several else 0
        self.precision = precision
        self.data_request = dict(data_request) if data_request is not None else None
        self.reference = reference
        self.custom_ops = dict(custom_ops or {})
        self.given = {
            name: value
            for name, value in (("calib", calib), ("contract", contract))
            if name in target.takes and value is not None
        }
        self.calib_sha256 = calib_sha256
        # It travels with the artifact: whoever serves it makes tensors of images by it.
        self._contract = dict(contract) if contract else None

    @property
    def options(self) -> dict[str, Any]:
        """What decides the artifact's bytes; the comparison's data only decides whether it is published."""
        return {
            "to": self.target.name,
            "version": self.version,
            "options": recorded_options(self.target, self.target_options),
            "dims": self.dims,
            "profiles": self.profiles,
            "precision": self.precision,
            **({"route": ONNX} if self.target.routes else {}),
            "reference_sha256": self.reference.sha256 if self.reference else None,
            **({"custom_ops": digests(self.custom_ops)} if self.custom_ops else {}),
            **({"calib_sha256": self.calib_sha256} if "calib" in self.given else {}),
            **({"contract": self._contract} if self._contract else {}),
        }

    @property
    def _settings(self) -> dict[str, Any]:
        """The options a job gets: the target's own, and the version, which is no `--option`."""
        besides = {"version": self.version, "custom_ops": self.custom_ops.get(self.target.name)}
        return {**self.target_options, **{name: value for name, value in besides.items() if value}}

    def _call(self, function: str, **arguments: Any) -> Any:
        return run_isolated(self.target.worker, function, arguments, block=self.target.blocked)

    def _call_beside(self, function: str, **arguments: Any) -> Any:
        """Calls a job where the artifact runs beside a reference."""
        return run_isolated(comparison_worker(self.target), function, arguments, block=self.target.blocked)

    def requires(self, inputs: Mapping[str, Artifact]) -> list[Finding]:
        """Precision and every node that the target refuses, all at once, before anything is built."""
        model = inputs["model"]
        found = self.unfit(model)
        found += self._widened()
        if self.target.support is None:
            return found
        support = self._call(
            self.target.support,
            model=str(model.path),
            options=self._settings,
            dims=self.target.bounded(self.dims),
            profiles=self.profiles,
        )
        refused = [row for row in support["nodes"] if row["verdict"] == "unsupported"]
        # A node that nobody judged is tried, unless something else stops the conversion anyway.
        tried = [row for row in support["nodes"] if row["verdict"] == "unknown" and not refused]
        found += [node_finding(row, self.target) for row in [*refused, *tried]]
        found += [Finding.from_dict(facts) for facts in support["findings"]]
        return found

    def unfit(self, model: Artifact) -> list[Finding]:
        """An error for a precision that the target does not take."""
        precision = self.precision or model.precision
        if precision in self.target.precisions:
            return []
        return [
            failure(
                "DK530",
                f"{model.path.name} is {precision}; {self.target.title} takes {', '.join(self.target.precisions)}",
                target=self.target.name,
                hint=f"deploykit quantize MODEL -o OUT --precision ... --target {self.target.name}",
            )
        ]

    def _widened(self) -> list[Finding]:
        """A note for each set of sizes, and for several profiles, that the target takes as a range."""
        bounded = self.target.bounded(self.dims)
        merged = f"{self.target.title} takes one range of shapes; the {self._merged} profiles are merged into it"
        return [
            *([note("DK545", merged, target=self.target.name)] if self._merged else []),
            *self._widened_sizes(bounded),
        ]

    def _widened_sizes(self, bounded: Mapping[str, Sequence[int | None]]) -> list[Finding]:
        return [
            note(
                "DK545",
                f"dimension {name!r} has the sizes {', '.join(map(str, bounds[2:]))}; {self.target.title} takes "
                f"{bounds[0]}..{bounds[1]}, and is compared at these sizes only",
                target=self.target.name,
            )
            for name, bounds in self.dims.items()
            if bounds[2:] and not bounded[name][2:]
        ]

    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Runs the target's converter in its worker."""
        model = inputs["model"]
        precision = self.precision or model.precision
        on_progress(Progress(f"converting to {self.target.title}", model.path.name))
        if self.target.converter is None:
            raise AssertionError(f"{self.target.name} has no converter")
        call = run_alone if self.target.alone else run_isolated
        with at_a_fixed_place(model) if self.target.alone else contextlib.nullcontext(model.path) as path:
            if "prove_reproducible" in self.target.options:
                twice = str(self.target_options.get("prove_reproducible")).lower() in ("true", "1", "yes", "on")
                make = functools.partial(self._converted, call, path, precision=precision)
                made = made_at_a_fixed_place(make, output, self.target, twice=twice)
            else:
                made = self._converted(call, path, output, precision)
        precision = made.get("precision", precision)  # an option may ask for another one
        self._contract = made.get("contract", self._contract) or stated_contract(model.path)
        findings = [Finding.from_dict(facts) for facts in made["findings"]]
        companions: list[str] = made.get("companions", [])
        if self.target.beside is not None and not any(finding.severity == "error" for finding in findings):
            beside = self._beside(self.target.beside, model, output, precision)
            companions = [*companions, *beside["companions"]]
            findings += [Finding.from_dict(facts) for facts in beside["findings"]]
        return Product(
            format=made.get("format", self.target.format),
            inputs=tuple(TensorSpec.from_dict(facts) for facts in made["inputs"]),
            outputs=tuple(TensorSpec.from_dict(facts) for facts in made["outputs"]),
            target=self.target.name,
            precision=precision,
            opset=model.opset,
            tool_versions=made["versions"],
            files=tuple(made["files"]),
            interface=made.get("interface") or {},
            built_for=made.get("built_for") or {},
            companions=tuple(companions),
            findings=findings,
            metrics={**made["metrics"], **({"route": ONNX} if self.target.routes else {})},
        )

    def _converted(self, call: Callable[..., Any], model: Path, output: Path, precision: str) -> dict[str, Any]:
        arguments = {
            "model": str(model),
            "output": str(output),
            "options": self._settings,
            "dims": self.target.bounded(self.dims),
            "profiles": self.profiles,
            "precision": precision,
            **self.given,
        }
        facts: dict[str, Any] = call(self.target.worker, self.target.converter, arguments, block=self.target.blocked)
        return facts

    def _beside(self, function: str, model: Artifact, output: Path, precision: str) -> dict[str, Any]:
        """What goes with the artifact: written in the worker that has the reference, too."""
        from deploykit.parity import row_for

        arguments = {
            "model": str(model.path),
            "package": str(output),
            "data": self._data,
            "row": row_for(model.precision, precision),
            "settings": self._settings,
            "options": {"custom_ops": self.custom_ops} if self.custom_ops else {},
        }
        worker = comparison_worker(self.target)
        try:
            found: dict[str, Any] = run_isolated(worker, function, arguments, block=self.target.blocked)
        except GateError as problem:  # the reference does not run, which the comparison will say, too
            said = note("DK554", f"no check lies beside {output.name}: {problem.message}", target=self.target.name)
            return {"companions": [], "findings": [said.as_dict()]}
        return found

    @property
    def _data(self) -> dict[str, Any]:
        """What both sides of a comparison are run on."""
        return self.data_request or data_request(None, "parity", samples=16, dims=self.dims)

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """Two gates where the artifact runs here: against its ONNX parent, and against the float source."""
        reason = unavailable(self.target, simulated=True)
        if self.target.runtime is None or reason is not None:
            return self._not_executed(inputs, made, reason or f"{self.target.title} artifacts do not run here")
        gates = {"parent": inputs["model"]}
        if self.reference is not None and self.reference.sha256 != inputs["model"].sha256:
            gates["source"] = self.reference
        evidence = Verification(execution="real", metrics={"parity": {}})
        for gate, reference in gates.items():
            on_progress(Progress("comparing", f"{made.path.name} with {reference.path.name}"))
            try:
                self.compare_with(gate, reference, made, evidence)
            except UnavailableError as problem:  # known only once it was opened: an operator that is not simulated
                return self._not_executed(inputs, made, problem.message)
            except GateError as problem:
                if not self.custom_ops or "onnxruntime" in self.custom_ops:
                    raise
                why = "the reference lacks the custom operators, which --custom-ops onnxruntime=FILE brings"
                return self._not_executed(inputs, made, f"{why}: {problem.message}")
        if self.target.defaults is not None and not any(f.severity == "error" for f in evidence.findings):
            self._add_defaults(self.target.defaults, made, evidence)
        if self.target.places is not None and not any(f.severity == "error" for f in evidence.findings):
            self._compare_elsewhere(resolve(self.target.places), inputs["model"], made, evidence)
        return evidence

    def _compare_elsewhere(
        self,
        places: Callable[[Mapping[str, Any]], tuple[Sequence[Place], Sequence[Finding]]],
        model: Artifact,
        made: Artifact,
        evidence: Verification,
    ) -> None:
        """Compares the artifact in further places where it is to run."""
        found, said = places(self._settings)
        evidence.findings += said
        for place in found:
            try:
                self.compare_with(place.name, model, made, evidence, place)
            except DeploykitError as problem:
                # A node that is refused is refused everywhere; the rest may be this machine's.
                if not place.refused or isinstance(problem, GateError):
                    raise
                told = f"{place.refused}: {problem.message}"
                evidence.findings.append(warning("DK570", told, target=self.target.name, hint=problem.hint))

    def _add_defaults(self, function: str, made: Artifact, evidence: Verification) -> None:
        """What the engine's own defaults change in the numbers that were compared."""
        options = {"custom_ops": self.custom_ops} if self.custom_ops else {}
        found = self._call_beside(function, artifact=str(made.path), data=self._data, options=options)
        evidence.metrics |= found["metrics"]
        evidence.findings += map(Finding.from_dict, found["findings"])

    def _not_executed(self, inputs: Mapping[str, Artifact], made: Artifact, reason: str) -> Verification:
        said = note(
            "DK502",
            f"{made.path.name} was built and not executed, so its numbers are not verified: {reason}",
            target=self.target.name,
            hint=f"where it runs: deploykit validate {inputs['model'].path.name} {made.path.name}",
        )
        return Verification([said], {"parity": None}, "none")

    def compare_with(
        self, gate: str, reference: Artifact, made: Artifact, evidence: Verification, place: Place | None = None
    ) -> None:
        """Adds one comparison to the evidence. gate: "parent" or "source", what the reference is to the artifact.

        place: where else the artifact runs; the gate is called by its name, and the reference is the parent.
        """
        from deploykit.api.rounding import settle
        from deploykit.parity import row_for

        data = self._data
        options: dict[str, Any] = {"custom_ops": self.custom_ops} if self.custom_ops else {}
        if "provider" in self.target.options and self.target_options.get("provider"):
            options["provider"] = self.target_options["provider"]
        if place is not None:
            data = {**data, "samples": min(data["samples"] or place.samples, place.samples)}
            options["provider"] = place.provider
        result = self._call_beside(
            "deploykit.comparison:compare_job",
            reference=str(reference.path),
            candidate=str(made.path),
            data=data,
            precision=row_for("fp32" if gate == "source" else reference.precision, made.precision),
            options=options,
            every_size=True,
        )
        result = settle(self._call_beside, reference, made.path, result, data, options, every_size=True)
        what = "its float source" if gate == "source" else "its ONNX parent"
        if place is not None:
            what += f" in {result['engines']['candidate']}"
        inside = reference.format == "onnx" and can_tap(made.format)
        evidence.metrics["parity"][gate] = {
            key: result[key] for key in ("outputs", "samples", "execution", "engines", "segments") if key in result
        }
        # NaN, other shapes, other values of exact kinds: numbers would say nothing.
        told = {f["tensor"]: f["message"] for f in result["findings"] if f["code"] in ("DK402", "DK403", "DK406")}
        evidence.findings += [
            failure(
                "DK532",
                f"output {row['name']!r} of {made.path.name} differs from {what} ({reference.path.name}): "
                + (told.get(row["name"]) or _numbers(row)),
                target=self.target.name,
                tensor=row["name"],
                hint=f"deploykit validate {reference.path.name} {made.path.name}"
                + (" --locate names the node" if inside else " shows every output"),
            )
            for row in result["outputs"]
            if not row["passed"]
        ]
        known = {finding.message for finding in evidence.findings}
        for facts in result["findings"]:
            finding = Finding.from_dict(facts)
            # The failing outputs stand above, with the name of the gate.
            if finding.message not in known and not (finding.severity == "error" and evidence.findings):
                evidence.findings.append(finding)
        if result["execution"] != "real":
            evidence.execution = result["execution"]


def recorded_options(target: Target, options: Mapping[str, Any]) -> dict[str, Any]:
    """The target's options as a manifest has them: files by their content, wherever they lie."""
    found = dict(options)
    for name in target.files:
        if isinstance(options.get(name), (str, Path)) and Path(options[name]).is_file():
            found[name] = {"sha256": io.file_sha256(Path(options[name]))}
    return found


def node_finding(row: Mapping[str, Any], target: Target) -> Finding:
    """A node that the target does not take, which stops the conversion, or that nobody has judged, which does not."""
    operator = f"{row['domain']}.{row['op']}" if row["domain"] else row["op"]
    place = {"target": target.name, "node": row["node"], "op": row["op"], "hint": row["remedy"]}
    text = f"node {row['node']!r} ({operator}): {row['reason']} [{row['source']}]"
    if row["verdict"] == "unsupported":
        return failure("DK201", f"{target.title} refuses {text}", **place)
    return warning("DK210", f"nobody says whether {target.title} takes {text}", **place)


def _numbers(row: Mapping[str, Any]) -> str:
    return f"max abs {_number(row['max_abs'])}, max rel {_number(row['max_rel'])}, SQNR {_number(row['sqnr_db'])} dB"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3g}"
