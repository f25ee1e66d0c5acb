"""Two artifacts on the same samples, or one on labelled ones: parity and accuracy, streaming.

`compare` and `evaluate` take what is open already and run in the caller's process; the `_job` functions open artifacts
and are called in a worker.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from deploykit.data.carry import CarriedState
from deploykit.data.dtypes import as_numbers, cast
from deploykit.data.request import with_contract
from deploykit.data.sizes import common_inputs, covering, with_bounds
from deploykit.errors import DataError, DeploykitError, GateError, UnavailableError
from deploykit.evaluation import Metric, Significance, drop, make_metric, paired_test
from deploykit.graph.stochastic import stochastic_nodes
from deploykit.parity import TOLERANCES, OutputComparison, Tolerance, row_for
from deploykit.progress import OnProgress, Progress, silent
from deploykit.report import Finding, failure, warning
from deploykit.runtime import Runtime, RuntimeOptions, open_runtime
from deploykit.target import format_of, refuse_foreign, target_of_format, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deploykit.artifact import Artifact, TensorSpec
    from deploykit.data.samples import Sample
    from deploykit.runtime import Feeds, Kernel, Outputs

    Predictor: TypeAlias = Runtime | Callable[[Feeds], Outputs]

_REFUSED = {"reference": (DataError, "DK408"), "candidate": (GateError, "DK409")}


class Side:
    """One of the models under comparison: fed with its own carried state, in its own dtypes."""

    def __init__(self, predictor: Predictor, carry: Mapping[str, str] | None = None, role: str = "model") -> None:
        """predictor: an open Runtime, or a function from feeds to outputs by name. carry: {input: output}."""
        runtime = predictor if isinstance(predictor, Runtime) else None
        self.role = role
        self.execution = runtime.execution if runtime else "real"
        self.engine = runtime.engine if runtime else getattr(predictor, "engine", getattr(predictor, "__name__", ""))
        self.specs = {spec.name: spec for spec in runtime.inputs} if runtime else None
        self._predict: Callable[[Feeds], Outputs] = runtime.predict if runtime else predictor  # type: ignore[assignment]
        self._state = CarriedState(carry or {})

    def feeds(self, sample: Sample) -> dict[str, Any]:
        """The sample as this model takes it: carried inputs filled, inputs it has not left out, dtypes its own.

        Raises DataError (DK407) for an input that the sample lacks.
        """
        feeds = self._state.fill(sample.feeds)
        if self.specs is None:
            return feeds
        missing = [name for name in self.specs if name not in feeds]
        if missing:
            raise DataError(
                f"the {self.role} takes the input {missing[0]!r}, which {sample.name} does not give",
                code="DK407",
                tensor=missing[0],
                context=[f"it gives {', '.join(repr(name) for name in feeds)}"],
                hint="both models must have the same input names: `deploykit inspect` shows them",
            )
        return {name: cast(as_numbers(feeds[name], spec), spec, sample.name)[0] for name, spec in self.specs.items()}

    def __call__(self, sample: Sample) -> Outputs:
        """The outputs for the sample; its state is kept for the next call."""
        outputs = self.predict(self.feeds(sample), sample.name)
        self.keep(outputs)
        return outputs

    def predict(self, feeds: Feeds, name: str) -> Outputs:
        """One call of the engine; its error gets a note with the sample's name and shapes, or is DK408 or DK409."""
        try:
            return self._predict(feeds)
        except Exception as problem:
            given = ", ".join(f"{key} {array.dtype} {list(array.shape)}" for key, array in feeds.items())
            if self.role in _REFUSED and self.specs is not None and not isinstance(problem, DeploykitError):
                error, code = _REFUSED[self.role]
                text = f"the {self.role} does not run on {name} ({given}): {str(problem)[:600]}"
                raise error(text, code=code, hint="--data with inputs in use, or --dim to bound sizes") from problem
            problem.add_note(f"the {self.role} ({self.engine}) was given {name}: {given}")
            raise

    def keep(self, outputs: Outputs) -> None:
        """Keeps what the next call's carried inputs need."""
        self._state.update(outputs)


def compare(
    reference: Predictor,
    candidate: Predictor,
    samples: Iterable[Sample],
    *,
    tolerance: Tolerance,
    carry: Mapping[str, str] | None = None,
    metric: str | None = None,
    models: Sequence[Path] = (),
    total: int | None = None,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Runs both on every sample and compares output by output; memory of one sample.

    carry: {input: output} of stateful models; each side keeps its own state. metric: also scores both on the samples'
    labels. models: files that may spell texts, see `make_metric`. Returns JSON: outputs (rows of the contract),
    samples, accuracy or None, execution (the candidate's), engines, findings. Outputs that only one side has, and a
    set without samples, are failures.
    Raises DataError (DK407) when a side takes an input that the samples lack.
    """
    sides = (Side(reference, carry, "reference"), Side(candidate, carry, "candidate"))
    metrics = (make_metric(metric, models), make_metric(metric, models)) if metric else None
    rows: dict[str, OutputComparison] = {}
    names: tuple[list[str], list[str]] | None = None
    count = 0
    for sample in samples:
        on_progress(Progress("comparing", sample.name, count, total))
        outputs = [side(sample) for side in sides]
        names = names or (list(outputs[0]), list(outputs[1]))
        for name in (name for name in outputs[0] if name in outputs[1]):
            rows.setdefault(name, OutputComparison(name, tolerance)).add(outputs[0][name], outputs[1][name])
        for scored, found in zip(metrics or (), outputs, strict=False):
            scored.add(found, sample.label)
        count += 1
    findings = [*_interface(names), *(finding for row in rows.values() for finding in row.findings())]
    return {
        "outputs": [row.result() for row in rows.values()],
        "samples": count,
        "accuracy": _accuracy(metrics) if metrics else None,
        "execution": sides[1].execution,
        "engines": {side.role: side.engine for side in sides},
        "findings": [finding.as_dict() for finding in findings],
    }


def _interface(names: tuple[list[str], list[str]] | None) -> list[Finding]:
    """Failures for outputs that only one side has, and for a comparison without samples."""
    if names is None:
        return [failure("DK401", "nothing was compared: the data has no sample")]
    reference, candidate = names
    found = []
    for name in reference:
        if name not in candidate:
            text = f"the candidate has no output {name!r}; it has {', '.join(map(repr, candidate))}"
            found.append(failure("DK403", text, tensor=name))
    for name in (name for name in candidate if name not in reference):
        found += [failure("DK403", f"the candidate has an output {name!r}, the reference has not", tensor=name)]
    return found


def _accuracy(metrics: tuple[Metric, Metric]) -> dict[str, Any]:
    reference, candidate = (metric.value() for metric in metrics)
    return accuracy_of(metrics[1], reference, candidate, paired_test(*metrics))


def accuracy_of(
    metric: Metric, reference: float, candidate: float, paired: Significance | None = None
) -> dict[str, Any]:
    """The `accuracy` object: both values and how much is lost, in the metric's unit (percent for top1 and top5).

    paired: the paired test of both, where there is one; its p tells how often chance alone makes such a difference.
    """
    return {
        "metric": metric.name,
        "unit": metric.unit,
        "reference": reference,
        "candidate": candidate,
        "drop": drop(metric, reference, candidate),
        "samples": metric.scored,
        "p_value": None if paired is None else paired.p,
        "test": None if paired is None else paired.test,
    }


def evaluate(
    predictor: Predictor,
    samples: Iterable[Sample],
    *,
    metric: str,
    carry: Mapping[str, str] | None = None,
    models: Sequence[Path] = (),
    total: int | None = None,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """The metric of one model over labelled samples; models: files that may spell texts, see `make_metric`.

    Returns JSON: metric, unit, value, higher_is_better, samples (scored), unscored (without a label).
    Raises DataError (DK422) without any label, UsageError (DK420) for an unknown metric.
    """
    scored, side = make_metric(metric, models), Side(predictor, carry)
    for index, sample in enumerate(samples):
        on_progress(Progress("evaluating", sample.name, index, total))
        scored.add(side(sample), sample.label)
    return {
        "metric": metric,
        "unit": scored.unit,
        "value": scored.value(),
        "higher_is_better": scored.higher_is_better,
        "samples": scored.scored,
        "unscored": scored.unscored,
    }


def int8_share(kernels: Iterable[Kernel] | None) -> float | None:
    """Share of the multiply-accumulates that run in 8-bit integer kernels; None when the engine does not tell."""
    counted = list(kernels or ())
    total = sum(kernel.macs for kernel in counted)
    eight = sum(kernel.macs for kernel in counted if kernel.precision in ("int8", "uint8"))
    return eight / total if total else None


def compare_job(
    reference: str,
    candidate: str,
    data: dict[str, Any],
    precision: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    min_sqnr: float | None = None,
    options: dict[str, Any] | None = None,
    metric: str | None = None,
    every_size: bool = False,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """`compare` for two files, in a worker. An ONNX reference runs with graph optimisation off.

    data: a `DataRequest`. precision: a row of `parity.TOLERANCES`; None takes the row of both artifacts' precisions.
    rtol, atol, min_sqnr replace the row's limits. options: device, provider, threads.
    every_size: whether random data goes on until each combination of the sizes of sets was there.
    Adds "row" and "data" to the result. Stochastic graphs are not compared: no outputs, execution "none", DK404.
    Raises UnavailableError (DK502) when one of them cannot run on this machine.
    """
    paths = (Path(reference), Path(candidate))
    for path in paths:
        require_runnable(path, simulated=True)
    row = precision if precision in TOLERANCES else row_for(*(describe(path).precision for path in paths))
    random = [name for path in paths for name in stochastic_nodes(path)]
    if random:
        return _not_compared(random, row)
    wanted = runtime_options(options)
    exact = wanted.as_reference()
    first = open_runtime(paths[0], exact if _is_onnx(paths[0]) else wanted)
    second = open_runtime(paths[1], wanted)
    try:
        dataset = shared_samples(data, first, second, paths, every_size=every_size)
        result = compare(
            first,
            second,
            dataset,
            tolerance=TOLERANCES[row].override(rtol, atol, min_sqnr),
            carry=carry_of(data),
            metric=metric,
            models=paths,
            total=dataset.total,
            on_progress=on_progress,
        )
    finally:
        first.close()
        second.close()
    result["findings"][:0] = [f.as_dict() for f in (*first.findings, *second.findings, *dataset.findings)]
    return {**result, "row": row, "data": dataset.description}


def shared_samples(
    data: dict[str, Any], first: Runtime, second: Runtime, paths: Sequence[Path], *, every_size: bool = False
) -> Any:
    """The dataset of a request, in sizes that both artifacts take. every_size: as of `compare_job`."""
    inputs = common_inputs(first.inputs, second.inputs)
    request = with_contract(with_bounds(data, inputs, first.bounds, second.bounds), first.contract, second.contract)
    return _open(covering(request, inputs) if every_size else request, inputs, paths)


def evaluate_job(
    artifact: str,
    data: dict[str, Any],
    metric: str,
    options: dict[str, Any] | None = None,
    models: Sequence[str] = (),
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """`evaluate` for a file, in a worker; adds engine, execution, int8_macs_share, findings and "data".

    models: other files that may spell its texts. int8_macs_share comes from the engine's own profile of one call; None
    when it does not tell.
    Raises UnavailableError (DK502) when it cannot run on this machine.
    """
    path = Path(artifact)
    require_runnable(path, simulated=True)
    runtime = open_runtime(path, runtime_options(options))
    try:
        request = with_contract(with_bounds(data, runtime.inputs, runtime.bounds), runtime.contract)
        dataset = _open(request, runtime.inputs, (path,))
        carry, first = carry_of(data), next(iter(dataset), None)
        share = int8_share(runtime.kernels(Side(runtime, carry).feeds(first))) if first else None
        result = evaluate(
            runtime,
            dataset,
            metric=metric,
            carry=carry,
            models=(path, *map(Path, models)),
            total=dataset.total,
            on_progress=on_progress,
        )
    finally:
        runtime.close()
    return {
        **result,
        "engine": runtime.engine,
        "execution": runtime.execution,
        "int8_macs_share": share,
        "findings": [finding.as_dict() for finding in (*runtime.findings, *dataset.findings)],
        "data": dataset.description,
    }


def require_runnable(path: Path, *, simulated: bool = False) -> None:
    """Raises UnavailableError (DK502) with the reason when artifacts of this format do not run on this machine.

    simulated: computing their values without the engine is enough.
    """
    reason = why_not_runnable(path, simulated=simulated)
    if reason is not None:
        raise UnavailableError(
            f"{path.name} cannot run on this machine: {reason}",
            code="DK502",
            file=path,
            hint="run the command on a machine that has it; `deploykit targets` lists what runs here",
        )


def why_not_runnable(path: Path, *, simulated: bool = False) -> str | None:
    """Why the artifact does not run on this machine; None when it does, or when only opening it tells."""
    format = format_of(path)
    target = target_of_format(format) if format else None
    if target is None:
        return None  # open_runtime refuses it with the formats that are known
    refuse_foreign(target, path)
    reason = unavailable(target, simulated=simulated)
    return reason or (None if target.runtime else f"nothing here runs {target.title} artifacts")


def describe(path: Path) -> Artifact:
    """The artifact at `path`: an ONNX file by its graph, others by their manifest when it fits the files.

    Without such a manifest the precision of a native artifact is taken as fp32, the strictest row.
    """
    from deploykit import graph, io
    from deploykit.artifact import Artifact, read_manifest

    if _is_onnx(path):
        return graph.describe(path)
    found = read_manifest(path)
    if found is not None:
        members = [path.parent / name for name in found.files]
        if members and all(member.exists() for member in members) and io.digest(members) == found.sha256:
            return found
    format = format_of(path) or path.suffix.lstrip(".")
    target = target_of_format(format)
    return Artifact.of(path, format, target=target.name if target else None)


def _not_compared(random: Sequence[str], row: str) -> dict[str, Any]:
    named = ", ".join(random[:5]) + (f" and {len(random) - 5} more" if len(random) > 5 else "")
    finding = warning("DK404", f"the graph is stochastic and was not compared: {named}")
    return {
        "outputs": [],
        "samples": 0,
        "accuracy": None,
        "execution": "none",
        "engines": {"reference": None, "candidate": None},
        "findings": [finding.as_dict()],
        "row": row,
        "data": None,
    }


def runtime_options(options: Mapping[str, Any] | None) -> RuntimeOptions:
    """RuntimeOptions from their JSON form; keys that are None keep the default."""
    return RuntimeOptions(**{name: value for name, value in (options or {}).items() if value is not None})


def carry_of(data: Mapping[str, Any]) -> dict[str, str]:
    """{input: output} of the request's contract."""
    from deploykit.data.contract import InputContract

    contract = data.get("contract")
    return InputContract.model_validate(contract).carry if contract else {}


def _open(data: dict[str, Any], inputs: tuple[TensorSpec, ...], paths: Sequence[Path]) -> Any:
    from deploykit.data import open_request

    return open_request(data, inputs, model=next((path for path in paths if _is_onnx(path)), None))  # type: ignore[arg-type]


def _is_onnx(path: Path) -> bool:
    return format_of(path) == "onnx"
