"""`bench --baseline`: whether an artifact became slower than an earlier report says, and how sure that is.

An interval over the blocks of one run (see `intervals`) knows nothing of what lasts for a whole run: another tenant, a
lower clock, an unlucky layout of memory. Three things stand against that.

Where other artifacts of the report are measured again with the same bytes and engine, they are references: each block
is divided by those of its round, then and now. Where other programs had the processor, then or now, latencies are
theirs as much as the artifact's, and its processor time is compared instead, which nobody takes away: with eight times
more work than processors the latency is five times as long, and the processor time the same within 5 %
(benchmarks/baseline.py).
And a slow-down is believed only when every one of at least two runs, in processes of their own, shows it: what slows a
machine passes, what slows a model stays.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.benchmark.intervals import CONFIDENCE, Ratio, ratio_of
from deploykit.benchmark.subject import SPREAD_LIMIT, WAITED_LIMIT
from deploykit.errors import InvalidFileError, UsageError
from deploykit.report import SCHEMA, Finding, failure, note, warning
from deploykit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deploykit.benchmark.intervals import Array

    Row = Mapping[str, Any]

MAX_SLOWDOWN = 1.1
# A slow-down is believed after two runs that agree; an undecided comparison ends after so many.
RUNS = 4
_BELIEVED = 2
# What makes another latency by itself: with another value of any of these there is nothing to compare.
_SETTINGS = ("threads", "batch", "device", "provider", "clients", "data_digest")
_MACHINE = ("cpu", "cpus", "architecture", "system")
_OFTEN_FREE = {"clients", "device", "provider"}  # reports without them have the default


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier report: its file, its measured rows and its metrics."""

    file: Path
    rows: list[dict[str, Any]]
    metrics: dict[str, Any]
    version: str


def read_baseline(path: Path) -> Baseline:
    """The JSON report of an earlier `deploykit bench`. Raises InvalidFileError (DK416) for anything else."""
    hint = "deploykit bench ARTIFACT... --report baseline.json makes one"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InvalidFileError(f"{path} cannot be read: {problem.strerror}", file=path, hint=hint) from problem
    except (ValueError, RecursionError) as problem:
        raise InvalidFileError(f"{path} is no JSON report", code="DK416", file=path, hint=hint) from problem
    facts = document if isinstance(document, dict) else {}
    metrics = facts.get("metrics")
    if facts.get("schema") != SCHEMA or facts.get("command") != "bench" or not isinstance(metrics, dict):
        found = facts.get("command")
        text = f"{path} is no report of bench" + (f", but of {found}" if isinstance(found, str) else "")
        raise InvalidFileError(text, code="DK416", file=path, hint=hint)
    rows = metrics.get("rows")
    measured = [row for row in rows if isinstance(row, dict) and _usable(row)] if isinstance(rows, list) else []
    if not measured or not isinstance(metrics.get("machine"), dict):
        text = f"{path} has no measured row with its blocks and machine: nothing ran, or an older deploykit made it"
        raise InvalidFileError(text, code="DK416", file=path, hint=hint)
    return Baseline(path, measured, metrics, str(facts.get("deploykit")))


def _usable(row: Row) -> bool:
    blocks = row.get("blocks_ms")
    named = all(isinstance(row.get(key), str) for key in ("artifact", "target", "precision", "label"))
    return (
        named
        and isinstance(blocks, list)
        and bool(blocks)
        and all(isinstance(time, (int, float)) and time > 0 for time in blocks)
    )


def require_comparable(baseline: Baseline, metrics: Mapping[str, Any]) -> None:
    """Raises UsageError (DK413) with every setting of this measurement, and fact of this machine, that is another.

    metrics: those of this benchmark that are known; what is missing there is not compared.
    """
    before, now = baseline.metrics, metrics
    sides = [(key, before.get(key), now[key]) for key in _SETTINGS if key in now and _told(key, before)]
    here = now.get("machine") or {}
    sides += [(key, before["machine"].get(key), here[key]) for key in _MACHINE if key in here]
    others = [(key.replace("_", " "), then, value) for key, then, value in sides if then != value]
    if not others:
        return
    different = ", ".join(key for key, _, _ in others)
    raise UsageError(
        f"{baseline.file.name} is not comparable: it was measured with another {different}",
        code="DK413",
        file=baseline.file,
        context=[f"{key}: {then} there, {value} here" for key, then, value in others],
        hint="measure the baseline on this machine with the same options: deploykit bench ... --report baseline.json",
    )


def _told(key: str, metrics: Mapping[str, Any]) -> bool:
    return key in metrics or key not in _OFTEN_FREE


def compare_runs(
    baseline: Baseline, rows: Sequence[Row], again: Callable[[], Sequence[Row]], max_slowdown: float
) -> tuple[dict[str, Any], list[Finding]]:
    """The `baseline` object of the report and its findings; while a row is undecided, all are measured `again`.

    Raises UsageError (DK413) when no row is in the baseline.
    """
    runs = [rows]
    judged = judge(baseline, runs, max_slowdown)
    require_matches(baseline, judged)
    while len(runs) < RUNS and any(row["verdict"] == "undecided" for row in judged):
        runs.append(again())
        judged = judge(baseline, runs, max_slowdown)
    compared = {
        "file": str(baseline.file),
        "max_slowdown": max_slowdown,
        "confidence": CONFIDENCE,
        "runs": len(runs),
        "rows": judged,
    }
    return compared, findings_of(baseline, judged, max_slowdown)


LATENCY, PROCESSOR = "latency", "processor time"


@dataclasses.dataclass(frozen=True, slots=True)
class _Pair:
    """A row of the baseline and the place of its counterpart among the rows now."""

    before: Row
    at: int
    unchanged: bool


def judge(baseline: Baseline, runs: Sequence[Sequence[Row]], max_slowdown: float) -> list[dict[str, Any]]:
    """One row of JSON for each row that is measured now: `verdict` and the numbers it stands on.

    runs: the rows of each repeated measurement, all in the same order.
    verdict: passed, faster, slower, undecided (more runs may tell), reference (same bytes and engine, and nothing to
    hold it against: its ratio is the machine's), new (not in the baseline), or unmeasured.
    """
    pairs = _pairs(baseline.rows, runs[0])
    changed = any(not pair.unchanged for pair in pairs.values())
    found = []
    for at, row in enumerate(runs[0]):
        pair = pairs.get(at)
        if pair is None:
            verdict = "new" if row["p50_ms"] is not None else "unmeasured"
            found.append({"label": row["label"], "verdict": verdict})
            continue
        others = [other for other in pairs.values() if other is not pair and other.unchanged]
        then = [pair.before, *(other.before for other in others)]
        here = [[rows[at], *(rows[other.at] for other in others)] for rows in runs]
        measure = _measure([*then, *(row for rows in here for row in rows)])
        now = [_series(rows[0], rows[1:], measure) for rows in here]
        before = _series(then[0], then[1:], measure)
        total, each = ratio_of(now, [before]), [ratio_of([blocks], [before]) for blocks in now]
        alone = pair.unchanged and not others and changed
        found.append(
            {
                "label": row["label"],
                "verdict": "reference" if alone else _decided(total, each, max_slowdown, relative=bool(others)),
                "measure": measure,
                **total.as_dict(),
                "runs": [one.as_dict() for one in each],
                "before_ms": float(np.median(pair.before[_KEYS[measure]])),
                "now_ms": [float(np.median(rows[at][_KEYS[measure]])) for rows in runs],
                "relative_to": [runs[0][other.at]["label"] for other in others],
                "unchanged": pair.unchanged,
                "engine": {"before": pair.before.get("runtime"), "now": row["runtime"]},
            }
        )
    return found


def _decided(total: Ratio, each: Sequence[Ratio], limit: float, *, relative: bool) -> str:
    """The verdict over all runs.

    Without a reference the noise only ever adds: one run at the old speed shows that the artifact still has it.
    """
    if all(one.value > limit for one in each):
        return "slower" if total.low > limit and len(each) >= _BELIEVED else "undecided"
    if total.high <= limit:
        return "faster" if total.high < 1 / limit else "passed"
    if relative:
        return "passed" if total.value <= limit and len(each) >= _BELIEVED else "undecided"
    return "passed" if min(one.value for one in each) <= limit and len(each) >= _BELIEVED else "undecided"


_KEYS = {LATENCY: "blocks_ms", PROCESSOR: "cpu_ms"}


def _measure(rows: Sequence[Row]) -> str:
    """What is compared: latency, or processor time where any of the rows was measured on a busy machine."""
    busy = any((row.get("waited_share") or 0) > WAITED_LIMIT or (row.get("spread") or 0) > SPREAD_LIMIT for row in rows)
    told = all(row.get("cpu_ms") and all(time > 0 for time in row["cpu_ms"]) for row in rows)
    return PROCESSOR if busy and told else LATENCY


def _series(row: Row, references: Sequence[Row], measure: str) -> Array:
    """The blocks' numbers as logarithms, less those of the references in the same rounds."""
    own, *beside = (np.log(np.asarray(one[_KEYS[measure]], np.float64)) for one in (row, *references))
    if not beside:
        return own
    rounds = min(len(own), *(len(other) for other in beside))
    found: Array = own[:rounds] - np.mean([other[:rounds] for other in beside], axis=0)
    return found


def _pairs(before: Sequence[Row], now: Sequence[Row]) -> dict[int, _Pair]:
    """By place: the earlier row of the same file name, target and precision, else the only one of these two."""
    found, taken = {}, set()
    for key in (_full_key, _short_key):
        then = [key(row) for row in before]
        here = [key(row) for row in now]
        for at, row in enumerate(now):
            if at in found or row["p50_ms"] is None or then.count(here[at]) != 1 or here.count(here[at]) != 1:
                continue
            place = then.index(here[at])
            if place not in taken:
                taken.add(place)
                same = row["sha256"] == before[place].get("sha256") and row["runtime"] == before[place].get("runtime")
                found[at] = _Pair(before[place], at, bool(row["sha256"]) and same)
    return dict(sorted(found.items()))


def _full_key(row: Row) -> tuple[str, ...]:
    name = row["artifact"] if "://" in row["artifact"] else Path(row["artifact"]).name
    return (name, row["target"], row["precision"])


def _short_key(row: Row) -> tuple[str, ...]:
    return (row["target"], row["precision"])


def require_matches(baseline: Baseline, judged: Sequence[Mapping[str, Any]]) -> None:
    """Raises UsageError (DK413) when no row is in the baseline."""
    if all(row["verdict"] in ("new", "unmeasured") for row in judged):
        there = ", ".join(str(row["label"]) for row in baseline.rows)
        raise UsageError(
            f"{baseline.file.name} has none of the artifacts that are measured here",
            code="DK413",
            file=baseline.file,
            context=[f"it has {there}"],
            hint="rows are matched by file name, target and precision",
        )


def findings_of(baseline: Baseline, judged: Sequence[Mapping[str, Any]], max_slowdown: float) -> list[Finding]:
    """What the rows of `judge` mean: a failure (DK412) for each slow-down, warnings for what nobody can tell."""
    name, found = baseline.file.name, []
    if baseline.version != __version__:
        found.append(warning("DK415", f"{name} was measured by deploykit {baseline.version}, this is {__version__}"))
    for row in judged:
        found += _about(row, name, max_slowdown)
    return found


def _about(row: Mapping[str, Any], name: str, limit: float) -> list[Finding]:
    label, verdict = row["label"], row["verdict"]
    if verdict in ("new", "unmeasured"):
        why = "is not in it" if verdict == "new" else "was not measured here"
        return [warning("DK415", f"{label} is not compared with {name}: it {why}")]
    found = []
    engines = row["engine"]
    if engines["before"] != engines["now"]:
        text = f"{label}: {name} was measured with {engines['before']}, this is {engines['now']}"
        found.append(warning("DK415", text))
    shown = Ratio(row["ratio"], *row["interval"]).describe()
    now = ", ".join(f"{time:.4g}" for time in row["now_ms"])
    than = f" relative to {', '.join(row['relative_to'])}" if row["relative_to"] else ""
    busy = ", since other programs had the processor" if row["measure"] == PROCESSOR else ""
    numbers = (
        f"{shown} of the {row['measure']} in {name}{than}: {row['before_ms']:.4g} ms a call then, {now} ms now{busy}"
    )
    if verdict == "slower":
        why = " (its bytes and engine are the same: the machine became slower)" if row["unchanged"] else ""
        text = f"{label} is slower: {numbers}; at most {limit:g}x is allowed{why}"
        hint = "bench --per-op shows which kernels; --max-slowdown X allows more"
        return [*found, failure("DK412", text, hint=hint)]
    if verdict == "undecided":
        hint = "measure for longer (--seconds 10), with an unchanged artifact beside it, on a quieter machine"
        return [*found, warning("DK414", f"{label} may be slower than {limit:g}x: {numbers}", hint=hint)]
    if verdict == "reference" and not 1 / limit <= row["ratio"] <= limit:
        text = (
            f"{label} has the same bytes and engine as in {name} and takes {numbers}: the machine is another speed now"
        )
        return [*found, note("DK415", text)]
    return found
