"""Which way a source takes to a target: through ONNX, or directly from its own framework, and that way's stage."""

from __future__ import annotations

import dataclasses
import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.api.convert_stage import ConvertStage, recorded_options
from deploykit.artifact import Artifact, TensorSpec
from deploykit.converters.profiles import hull
from deploykit.errors import UnavailableError, UsageError, VendorError
from deploykit.exporters.sources import detect
from deploykit.isolation import run_alone, run_isolated
from deploykit.progress import OnProgress, Progress
from deploykit.report import Finding, Report, failure, note
from deploykit.route import AUTO, ONNX
from deploykit.stage import Product, Stage, Verification, run_stage
from deploykit.target import unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.converters.profiles import ProfileSets
    from deploykit.exporters.stage import ExportStage
    from deploykit.route import Route
    from deploykit.target import Target

OPTION = "route"
# What the user left out or got wrong: through ONNX it would be said again.
_USERS = {"DK520", "DK521", "DK545", "DK546"}


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """The way that a source takes first.

    via: the direct route's name, or `ONNX`. asked: whether the user named it, so that no other is taken instead.
    direct: the target's direct route for such a source. why: the reason why it is not tried.
    """

    via: str
    asked: bool = False
    direct: str = ""
    why: str = ""


def way_of(target: Target, source: str | Path, options: Mapping[str, Any], given: Mapping[str, Any]) -> Way:
    """The way that the options ask for, or the direct one where there is one that knows everything that was asked for.

    given: what only the ONNX route takes, by its name on the command line.
    Raises UsageError (DK527) for a route that the target does not have, (DK557) for one that this source cannot take.
    """
    wanted = str(options.get(OPTION) or AUTO)
    if target.converter is None and target.bundle is None:
        return Way(_only_way(target, source), asked=True)
    accepted = [AUTO, ONNX, *target.routes]
    if wanted not in accepted:
        raise UsageError(
            f"route {wanted!r} is none of {', '.join(accepted)}",
            code="DK527",
            target=target.name,
            hint=f"--option route={AUTO}",
        )
    if wanted == ONNX:
        return Way(ONNX, asked=True)
    if wanted == AUTO and (not target.routes or Path(source).suffix == ".onnx"):
        return Way(ONNX)
    found = detect(source)
    via = found.kind.via or ""
    if wanted == AUTO and (via not in target.routes or not target.routes[via].preferred):
        return Way(ONNX)
    why = _unfit(target, wanted if wanted != AUTO else via, found.kind.name, found.kind.title, options, given)
    if wanted == AUTO:
        return Way(ONNX, direct=via, why=why) if why else Way(via, direct=via)
    if why:
        raise UsageError(
            f"route={wanted} is not possible: {why}",
            code="DK557",
            target=target.name,
            hint=f"--option route={ONNX}, or leave it away",
        )
    return Way(wanted, asked=True)


def _only_way(target: Target, source: str | Path) -> str:
    """The direct route of a target that nothing makes from ONNX. Raises UnavailableError (DK214) for another source."""
    found = detect(source)
    via = next((name for name, route in target.routes.items() if found.kind.name in route.kinds), None)
    if via is None:
        raise UnavailableError(
            f"{target.title} is not made from {found.kind.title}",
            code="DK214",
            file=found.path,
            target=target.name,
            hint=target.elsewhere,
        )
    return via


def _unfit(
    target: Target, name: str, kind: str, title: str, options: Mapping[str, Any], given: Mapping[str, Any]
) -> str:
    """Why the direct route is not for this source, or does not know what was asked for; "" where it is and does."""
    route = target.routes[name]
    if kind not in route.kinds:
        return f"{title} has no program that {route.title.partition(',')[0]} takes"
    known = (OPTION, *route.options)
    unknown = [option for option in options if not any(fnmatch.fnmatchcase(option, name) for name in known)]
    if unknown:
        return f"--option {unknown[0]} is known to the ONNX route only"
    used = [option for option, value in given.items() if value and option.removeprefix("--") not in route.takes]
    return f"{used[0]} is known to the ONNX route only" if used else ""


class RouteStage(Stage):
    """A source to a target's artifact by the vendor's own front-end, compared with the source in its framework.

    via: name of the route. export: the stage that would export the source, which knows how it is loaded.
    reference: an ONNX of the source, for a second comparison. proven: whether an artifact that cannot be executed here
    is refused. calib, calib_sha256: as of `ConvertStage`. The inputs of `run_stage` are `export.parents_of(source)`.
    """

    name = "convert"

    def __init__(
        self,
        target: Target,
        via: str,
        export: ExportStage,
        version: str | None,
        options: Mapping[str, Any],
        profiles: ProfileSets,
        data_request: Mapping[str, Any],
        reference: Artifact | None,
        *,
        proven: bool,
        calib: Mapping[str, Any] | None = None,
        calib_sha256: str | None = None,
    ) -> None:
        self.target = target
        self.via = via
        self.given = {"calib": dict(calib)} if calib is not None else {}
        self.calib_sha256 = calib_sha256
        self.export = export
        self.version = version
        self.settings = {name: value for name, value in options.items() if name != OPTION}
        self.profiles = hull(profiles)
        self.data = dict(data_request)
        self.reference = reference
        self.proven = proven
        self._integers: dict[str, int] = {}

    @property
    def route(self) -> Route:
        """The route as the target describes it."""
        return self.target.routes[self.via]

    @property
    def other_way(self) -> str:
        """The hint to go through ONNX, for targets that something makes from it."""
        return f"--option route={ONNX} goes through ONNX" if self.target.converter is not None else ""

    @property
    def options(self) -> dict[str, Any]:
        """What decides the artifact's bytes."""
        return {
            "to": self.target.name,
            "version": self.version,
            "route": self.via,
            "options": recorded_options(self.target, self.settings),
            "profiles": self.profiles,
            "source": self.export.options,
            "reference_sha256": self.reference.sha256 if self.reference else None,
            **({"calib_sha256": self.calib_sha256} if self.given else {}),
        }

    def requires(self, inputs: Mapping[str, Artifact]) -> list[Finding]:
        """MissingDependencyError when the framework is absent."""
        return self.export.requires(inputs)

    def _call(self, function: str, arguments: dict[str, Any], on_progress: OnProgress | None = None) -> Any:
        request = self.export.request() if self.via == "torch" else self.export.tensorflow_request()
        worker, job = f"{self.target.worker}-{self.via}", f"deploykit.exporters.{self.via}_direct:{function}"
        arguments = {"request": request, **arguments}
        if self.target.alone and function == "convert_job":
            return run_alone(worker, job, arguments)
        return run_isolated(worker, job, arguments, on_progress=on_progress)

    def run(self, inputs: Mapping[str, Artifact], output: Path, on_progress: OnProgress) -> Product:
        """Loads the source and converts it, beside its framework."""
        on_progress(Progress(f"converting to {self.target.title}", self.export.source.label))
        options = {**self.settings, **({"version": self.version} if self.version else {})}
        made = self._call(
            "convert_job",
            {
                "output": str(output.resolve()),
                "target": self.target.name,
                "options": options,
                "profiles": self.profiles,
                "data": self.data,
                **self.given,
            },
        )
        self._integers = made["metrics"].pop("integers")
        return Product(
            format=self.target.format,
            inputs=tuple(TensorSpec.from_dict(facts) for facts in made["inputs"]),
            outputs=tuple(TensorSpec.from_dict(facts) for facts in made["outputs"]),
            target=self.target.name,
            precision=made["precision"],
            tool_versions=made["versions"],
            files=tuple(made["files"]),
            companions=tuple(made.get("companions", ())),
            interface=made.get("interface") or {},
            findings=[Finding.from_dict(facts) for facts in made["findings"]],
            metrics={**made["metrics"], "route": self.via},
        )

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """Against the source in its framework, and against its ONNX where there is one."""
        reason = unavailable(self.target, simulated=True)
        if reason is None:
            try:
                return self._compared(made, on_progress)
            except UnavailableError as problem:  # known only once it was opened: an operator that is not simulated
                reason = problem.message
        text = f"{made.path.name} was built and not executed, so its numbers are not verified: {reason}"
        tell = failure if self.proven else note
        return Verification([tell("DK502", text, target=self.target.name)], {"parity": None}, "none")

    def _compared(self, made: Artifact, on_progress: OnProgress) -> Verification:
        label = self.export.source.label
        on_progress(Progress("comparing", f"{made.path.name} with {label}"))
        outcome = self._call(
            "prove_job",
            {
                "artifact": str(made.path.resolve()),
                "precision": made.precision,
                "data": self.data,
                "integers": self._integers,
            },
            on_progress,
        )
        kept = {key: outcome[key] for key in ("outputs", "samples", "execution", "engines", "proven")}
        found = Verification(
            self._verdict(outcome, label, made.precision), {"parity": {"source": kept}}, outcome["execution"]
        )
        if self.reference is not None:
            gate = ConvertStage(self.target, self.version, self.settings, data_request=self.data)
            gate.compare_with("parent", self.reference, made, found)
        return found

    def _verdict(self, outcome: dict[str, Any], label: str, precision: str) -> list[Finding]:
        """What was found; a wrong output said once, with what it says of itself."""
        findings = [Finding.from_dict(facts) for facts in outcome["findings"]]
        wrong = [row for row in outcome["outputs"] if not row["passed"]]
        if not wrong:
            if outcome["samples"]:
                worst = max((row["max_abs"] or 0.0 for row in outcome["outputs"]), default=0.0)
                near = "equal to" if "int" not in precision else f"as near as {precision} has to be to"
                text = (
                    f"made by {self.route.title} (route={self.via}), and {near} {label} on {outcome['samples']} "
                    f"inputs (largest difference {worst:.2g})"
                )
                findings.append(note("DK555", text, target=self.target.name))
            return findings
        told = [f for f in findings if f.severity == "error"]
        said = {f.tensor: f.message for f in told if f.tensor}
        rest = [f for f in findings if f not in told or f.code == "DK688"]
        return rest + [
            failure(
                "DK532",
                f"output {row['name']!r} differs from what {label} gives: "
                + (said.get(row["name"]) or f"max abs {row['max_abs']}, SQNR {row['sqnr_db']} dB"),
                target=self.target.name,
                tensor=row["name"],
                hint=self.other_way,
            )
            for row in wrong
        ]


def attempt(
    stage: RouteStage, parents: Mapping[str, Artifact], output: Path, *, force: bool, on_progress: OnProgress
) -> tuple[Report | None, str]:
    """The report of the direct route, or None and the reason why it was not taken.

    Faults of the source itself, and every failure of a route that the user named, are reported or raised as they are.
    """
    try:
        report = run_stage(stage, parents, output, force=force, on_progress=on_progress)
    except VendorError as problem:
        if not stage.proven:
            problem.hint = problem.hint or stage.other_way
            raise
        return None, problem.message
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if not errors or not stage.proven or report.error is not None or {f.code for f in errors} <= _USERS:
        return report, ""
    return None, "; ".join(finding.message for finding in errors)


def not_taken(target: Target, via: str, reason: str) -> Finding:
    """The note that says why the way goes through ONNX."""
    return note(
        "DK556",
        f"goes through ONNX (route={ONNX}); {target.routes[via].title}, was not taken: {reason}",
        target=target.name,
    )
