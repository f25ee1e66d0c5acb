"""The tables of each command, taken from its metrics; a plain listing for a command without a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from deploykit.render.failure import printable
from deploykit.render.numbers import NONE, fixed, megabytes, number, percent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from deploykit.report import Report

# Their table says it all.
WITHOUT_ARTIFACTS = {"run", "bench", "validate", "check", "inspect"}
WITHOUT_END = {"targets", "doctor", "explain", "inspect"}
_MAX_DEPTH = 2


def layout(report: Report) -> list[RenderableType]:
    """The command's parts; empty when its metrics are."""
    if not report.metrics:
        return []
    return _LAYOUTS.get(report.command, _generic)(report)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table without a frame; `right` names the columns of numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold", show_edge=False)
    for column in columns:
        numeric = column in right
        made.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    return made


def _cell(value: Any) -> Text:
    return Text(printable(str(value)))


def _yes(value: bool) -> Text:
    return Text("yes", "green") if value else Text("no", "dim")


def _verdict(passed: bool) -> Text:
    return Text("passed", "green") if passed else Text("FAILED", "bold red")


def _parity_table(outputs: Sequence[dict[str, Any]]) -> Table:
    made = table(
        "output", "max abs", "max rel", "SQNR dB", "cosine", "", right=("max abs", "max rel", "SQNR dB", "cosine")
    )
    for row in outputs:
        sqnr = "exact" if row["exact"] else fixed(row["sqnr_db"], 1)
        made.add_row(
            _cell(row["name"]),
            number(row["max_abs"]),
            number(row["max_rel"]),
            sqnr,
            fixed(row["cosine"], 6),
            _verdict(row["passed"]),
        )
    return made


def _accuracy_line(accuracy: Any) -> list[RenderableType]:
    if not isinstance(accuracy, dict):
        return []
    facts = [f"{key} {number(value, 4)}" for key, value in accuracy.items() if value is not None]
    return [Text(printable("accuracy: " + ", ".join(facts)))]


def _validate(report: Report) -> list[RenderableType]:
    metrics = report.metrics
    about = [f"{metrics.get('samples', 0)} samples"]
    if metrics.get("execution"):
        about.append(f"execution: {metrics['execution']}")
    engines = metrics.get("engines") or {}
    about += [f"{side}: {engine}" for side, engine in engines.items()]
    parts: list[RenderableType] = [_parity_table(metrics.get("outputs", [])), Text(printable(", ".join(about)))]
    return [*parts, *_accuracy_line(metrics.get("accuracy"))]


_BENCH = ("p50 ms", "p95 ms", "p99 ms", "per s", "peak MB", "load s", "size MB", "accuracy")


def _bench(report: Report) -> list[RenderableType]:
    made = table("artifact", "runtime", *_BENCH, right=_BENCH)
    for row in report.metrics.get("rows", []):
        rss = row.get("rss_mb") or {}
        runtime = f"{row.get('runtime') or NONE}" + (" (simulated)" if row.get("execution") == "simulated" else "")
        made.add_row(
            _cell(row.get("artifact") or NONE),
            _cell(runtime),
            *(fixed(row.get(key), 2) for key in ("p50_ms", "p95_ms", "p99_ms")),
            number(row.get("throughput_per_s"), 4),
            fixed(rss.get("peak"), 0),
            fixed(row.get("load_s"), 2),
            megabytes(row.get("size_bytes")),
            _accuracy(row.get("accuracy")),
        )
    verdict = report.metrics.get("verdict")
    return [made, *([Text(printable(f"verdict: {verdict}"), "bold")] if verdict else [])]


def _accuracy(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("value")
    return fixed(value, 2)


def _check(report: Report) -> list[RenderableType]:
    counts = ("nodes", "supported", "conditional", "unsupported", "unknown", "MACs", "partitions")
    made = table("target", "version", *counts, "verdict", "source", right=counts)
    for row in report.metrics.get("targets", []):
        made.add_row(
            _cell(row["name"]),
            _cell(row.get("version") or NONE),
            *(number(row.get(key)) for key in ("nodes", "supported", "conditional", "unsupported", "unknown")),
            percent(row.get("macs_share")),
            number(row.get("partitions")),
            _cell(row.get("verdict") or NONE),
            _cell(row.get("source") or NONE),
        )
    return [made]


def _targets(report: Report) -> list[RenderableType]:
    made = table("target", "check", "convert", "run", "what is missing")
    for row in report.metrics["targets"]:
        missing = row["missing"]
        said = "; ".join(missing) if isinstance(missing, (list, tuple)) else missing or ""
        made.add_row(_cell(row["name"]), _yes(row["check"]), _yes(row["convert"]), _yes(row["run"]), _cell(said))
    return [made]


def _doctor(report: Report) -> list[RenderableType]:
    metrics = report.metrics
    facts = table("machine", "")
    for key, value in metrics["machine"].items():
        facts.add_row(key, _cell(", ".join(value) if isinstance(value, list) else NONE if value is None else value))
    extras = table("extra", "", "packages", "install")
    for row in metrics["extras"]:
        packages = ", ".join(f"{name} {version or 'missing'}" for name, version in row["packages"].items())
        state = "installed" if row["installed"] else "not for this system" if row["install"] is None else "missing"
        style = "green" if row["installed"] else "dim"
        extras.add_row(row["name"], Text(state, style), _cell(packages), _cell(row["install"] or ""))
    return [facts, Text(""), extras]


def _explain(report: Report) -> list[RenderableType]:
    codes = report.metrics["codes"]
    if len(codes) == 1:
        entry = codes[0]
        title = Text.assemble((entry["code"], "bold"), ": ", entry["title"])
        return [title, Text(""), Text(entry["why"]), Text(""), Text.assemble(("What to do: ", "green"), entry["fix"])]
    made = table("code", "title")
    for entry in codes:
        made.add_row(entry["code"], _cell(entry["title"]))
    return [made]


_RUN = ("accuracy", "drop", "int8 MACs", "SQNR dB", "size MB", "p50 ms", "per s")


def _run(report: Report) -> list[RenderableType]:
    metrics = report.metrics
    if "rows" not in metrics:
        steps = table("step", "status", "reason")
        for step in metrics.get("steps", []):
            steps.add_row(_cell(step["step"]), _cell(step["status"]), _cell(step["reason"]))
        return [steps]
    made = table("target", "precision", "", "executed", *_RUN, right=_RUN)
    for row in metrics["rows"]:
        state = row.get("status") or NONE
        made.add_row(
            _cell(row["target"]),
            _cell(row["precision"]),
            Text(state, "green") if state == "passed" else Text(state.upper(), "bold red"),
            _cell({"none": "built only"}.get(row.get("execution", "none"), row.get("execution"))),
            fixed(row.get("accuracy"), 2),
            fixed(row.get("accuracy_drop"), 2),
            percent(row.get("int8_macs_share")),
            worst_sqnr(row.get("parity")),
            megabytes(row.get("size_bytes")),
            fixed(row.get("p50_ms"), 2),
            number(row.get("throughput_per_s"), 4),
        )
    lines: list[RenderableType] = [made]
    source = metrics.get("source") or {}
    if source.get("accuracy") is not None:
        lines.append(Text(printable(f"source: {source.get('metric')} {fixed(source['accuracy'], 2)}")))
    lines += [Text(printable(f"{name}: {metrics[name]}")) for name in ("best", "verdict") if metrics.get(name)]
    return lines


def worst_sqnr(parity: Any) -> str:
    """The lowest SQNR over all gates and outputs; "exact" when every output is equal bit for bit; - without parity."""
    gates = parity.values() if isinstance(parity, dict) else ()
    outputs = [row for gate in gates if isinstance(gate, dict) for row in gate.get("outputs", [])]
    if not outputs:
        return NONE
    measured = [row["sqnr_db"] for row in outputs if row.get("sqnr_db") is not None]
    return fixed(min(measured), 1) if measured else "exact"


def _generic(report: Report) -> list[RenderableType]:
    made = table("", "")
    made.show_header = False
    for key, value in flattened(report.metrics):
        made.add_row(_cell(key), _cell(value))
    return [made]


def flattened(metrics: dict[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Metrics as (name, text) lines: nested names joined with a dot, long lists counted."""
    lines: list[tuple[str, str]] = []
    for key, value in metrics.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            lines += flattened(value, f"{prefix}{key}.", depth + 1)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            lines.append((name, f"{len(value)} (--json lists them)"))
        elif isinstance(value, (list, tuple)):
            lines.append((name, ", ".join(number(item) for item in value)))
        elif value is not None:
            lines.append((name, number(value)))
    return lines


def _inspect(report: Report) -> list[RenderableType]:
    return [*_generic(report)]


_LAYOUTS: dict[str, Callable[[Report], list[RenderableType]]] = {
    "validate": _validate,
    "bench": _bench,
    "check": _check,
    "targets": _targets,
    "doctor": _doctor,
    "explain": _explain,
    "run": _run,
    "inspect": _inspect,
}
