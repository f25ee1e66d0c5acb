"""What a command's report shows, as plain tables; terminal, Markdown and HTML draw the same ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.render import bench, locating, quantization, targets
from deploykit.render.numbers import NONE, fixed, megabytes, number, or_none, percent
from deploykit.render.table import Section, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deploykit.artifact import Artifact
    from deploykit.report import Report

_MAX_DEPTH = 2
# Their tables name the artifacts already.
_WITHOUT_ARTIFACTS = {"run", "bench", "validate", "inspect"}


def sections(report: Report) -> list[Section]:
    """The command's sections in reading order; empty when it measured nothing and made nothing."""
    found = _LAYOUTS.get(report.command, _generic)(report) if report.metrics else []
    if report.artifacts and report.command not in _WITHOUT_ARTIFACTS:
        found.insert(0, _artifacts(report.artifacts))
    return found


def _artifacts(artifacts: Sequence[Artifact]) -> Section:
    rows = [
        (
            made.path,
            made.format,
            made.precision,
            or_none(made.opset),
            megabytes(made.size_bytes),
            _interface(made.inputs),
            _interface(made.outputs),
        )
        for made in artifacts
    ]
    columns = ("artifact", "format", "precision", "opset", "MB", "inputs", "outputs")
    return table("Artifacts", columns, rows, ("opset", "MB"), ("artifact", "inputs", "outputs"), ("outputs", "inputs"))


def _interface(specs: Sequence[Any]) -> str:
    shown = [f"{spec.name}: {spec.describe()}" for spec in specs[:8]]
    return ", ".join([*shown, *([f"and {len(specs) - 8} more"] if len(specs) > 8 else [])])


_PARITY = ("max abs", "max rel", "SQNR dB", "cosine")


def _validate(report: Report) -> list[Section]:
    section = _parity("Outputs", report.metrics)
    section.lines += _accuracy_line(report.metrics.get("accuracy"))
    located = locating.neighbourhood(report.metrics.get("located"))
    if located is None:
        return [section]
    rows, lines = located
    numeric, flexible, droppable = locating.NUMERIC, locating.FLEXIBLE, locating.DROPPABLE
    around = table("Where they part", locating.COLUMNS, rows, numeric, flexible, droppable)
    around.lines = lines
    return [section, around]


def _parity(title: str, compared: dict[str, Any]) -> Section:
    """Outputs of a comparison, and how it was made."""
    rows = [
        (
            row["name"],
            number(row["max_abs"]),
            number(row["max_rel"]),
            "exact" if row["exact"] else fixed(row["sqnr_db"], 1),
            fixed(row["cosine"], 6),
            "passed" if row["passed"] else "FAILED",
        )
        for row in compared.get("outputs") or []
    ]
    section = table(title, ("output", *_PARITY, "verdict"), rows, _PARITY, ("output",))
    about = [f"{compared['samples']} samples"] if compared.get("samples") is not None else []
    about += [f"execution: {compared['execution']}"] if compared.get("execution") else []
    about += [f"{side}: {engine}" for side, engine in (compared.get("engines") or {}).items()]
    section.lines = [", ".join(about)] if about else []
    return section


def _accuracy_line(accuracy: Any) -> list[str]:
    if not isinstance(accuracy, dict):
        return []
    known = {key: value for key, value in accuracy.items() if value is not None}
    name, unit = known.pop("metric", ""), known.pop("unit", "")
    units = dict.fromkeys(("value", "reference", "candidate"), unit) | {"drop": "points" if unit == "%" else unit}
    facts = []
    for key, value in known.items():
        if key in units:
            shown = fixed(value, 2) if unit == "%" else number(value, 4)
        else:
            shown = percent(value) if key.endswith("_share") else number(value, 4)
        facts.append(" ".join(part for part in (key.replace("_", " "), shown, units.get(key, "")) if part))
    return [f"accuracy{f' ({name})' if name else ''}: " + ", ".join(facts)]


def _check(report: Report) -> list[Section]:
    parity = report.metrics.get("parity") or {}  # of a model that --fix wrote
    proof = [_parity("Against the original", parity)] if parity.get("outputs") else []
    return [_check_table(report.metrics.get("targets", [])), *proof]


def _check_table(rows: Sequence[dict[str, Any]]) -> Section:
    numeric, droppable = targets.NUMERIC, targets.DROPPABLE
    made = table("Check", targets.COLUMNS, map(targets.cells, rows), numeric, ("verdict",), droppable)
    made.lines = targets.judges(rows)
    return made


def _targets(report: Report) -> list[Section]:
    rows = [
        (
            row["name"],
            "yes" if row["check"] else "no",
            "yes" if row["convert"] else "bundle" if row.get("bundle") else "no",
            "yes" if row["run"] else "no",
            row["missing"],
        )
        for row in report.metrics["targets"]
    ]
    columns = ("target", "check", "convert", "run", "what is missing")
    return [table("Targets", columns, rows, flexible=("what is missing",))]


def _doctor(report: Report) -> list[Section]:
    metrics = report.metrics
    machine = [
        (key.replace("_", " "), ", ".join(value) if isinstance(value, list) else or_none(value))
        for key, value in metrics["machine"].items()
    ]
    core = [(name, version or "MISSING") for name, version in metrics["core"].items()]
    extras = []
    for row in metrics["extras"]:
        packages = ", ".join(f"{name} {version or 'missing'}" for name, version in row["packages"].items())
        state = "installed" if row["installed"] else "missing" if row["install"] else "not for this system"
        extras.append((row["name"], state, packages, "" if row["installed"] else row["install"] or ""))
    return [
        table("This machine", ("", ""), machine, flexible=("",)),
        table("Every install", ("", ""), core),
        table("Extras", ("extra", "state", "packages", "install with"), extras, flexible=("packages",)),
        _environments(metrics["environments"]),
    ]


def _environments(rows: list[dict[str, Any]]) -> Section:
    told = [
        (
            row["name"],
            "installed" if row["installed"] else "outdated" if row["version"] else "not installed",
            row["version"] or row["wanted"] or "",
            megabytes(row["size_bytes"]) if row["version"] else "",
            row["path"] if row["version"] else row["install"] or row["refused"],
            row["serves"],
        )
        for row in rows
    ]
    columns = ("environment", "state", "version", "MB", "where, or install with", "serves")
    return table("Managed environments", columns, told, flexible=("where, or install with", "serves"))


def _explain(report: Report) -> list[Section]:
    codes = report.metrics["codes"]
    if len(codes) == 1:
        entry = codes[0]
        lines = [f"{entry['code']}: {entry['title']}", "", entry["why"], "", f"What to do: {entry['fix']}"]
        return [Section("", lines=lines)]
    rows = [(entry["code"], entry["title"]) for entry in codes]
    return [table("Codes", ("code", "title"), rows, flexible=("title",))]


_RUN = ("accuracy", "drop", "int8 MACs", "SQNR dB", "MB", "p50 ms", "p99 ms", "per s")
_RUN_DROPPABLE = ("p99 ms", "drop", "per s", "MB", "int8 MACs")


def _run(report: Report) -> list[Section]:
    metrics = report.metrics
    steps = [(step["step"], step["status"], step.get("reason", "")) for step in metrics.get("steps", [])]
    if "rows" not in metrics:
        return [table("Steps", ("step", "status", "reason"), steps, flexible=("reason",))]
    rows = [
        (
            row["target"],
            row["precision"],
            _status(row.get("status")),
            executed(row),
            fixed(row.get("accuracy"), 2),
            fixed(row.get("accuracy_drop"), 2),
            percent(row.get("int8_macs_share")),
            worst_sqnr(row.get("parity")),
            megabytes(row.get("size_bytes")),
            number(row.get("p50_ms")),
            number(row.get("p99_ms")),
            number(row.get("throughput_per_s"), 4),
        )
        for row in metrics["rows"]
    ]
    columns = ("target", "precision", "status", "executed", *_RUN)
    made = table("Artifacts", columns, rows, _RUN, droppable=_RUN_DROPPABLE)
    source = metrics.get("source") or {}
    if source.get("accuracy") is not None:
        made.lines.append(f"source: {source.get('metric')} {fixed(source['accuracy'], 2)}")
    made.lines += [f"{name}: {metrics[name]}" for name in ("best", "verdict") if metrics.get(name)]
    checked = [_check_table(metrics["check"])] if metrics.get("check") else []
    return [made, *checked]


def _status(status: str | None) -> str:
    return status if status in ("passed", "planned") else (status or NONE).upper()


def executed(row: dict[str, Any]) -> str:
    """How an artifact's numbers were got: on the real engine, simulated, or not at all; - where none was made."""
    if row.get("artifact") is None:
        return NONE
    return {"real": "real", "simulated": "simulated"}.get(row.get("execution") or "", "only built")


def worst_sqnr(parity: Any) -> str:
    """The lowest SQNR over all gates and outputs; "exact" when every output is equal bit for bit; - without parity."""
    gates = parity.values() if isinstance(parity, dict) else ()
    outputs = [row for gate in gates if isinstance(gate, dict) for row in gate.get("outputs", [])]
    if not outputs:
        return NONE
    measured = [row["sqnr_db"] for row in outputs if row.get("sqnr_db") is not None]
    return fixed(min(measured), 1) if measured else "exact"


def _shape(shape: Sequence[int | str] | None) -> str:
    return NONE if shape is None else f"[{', '.join(map(str, shape))}]"


def _inspect(report: Report) -> list[Section]:
    metrics = dict(report.metrics)
    specs = [(side[:-1], spec) for side in ("inputs", "outputs") for spec in metrics.pop(side, [])]
    interface = [
        (
            side,
            spec["name"],
            spec["dtype"],
            NONE if spec["shape"] is None else f"[{', '.join(map(str, spec['shape']))}]",
        )
        for side, spec in specs
    ]
    counted = {
        title: metrics.pop(key, None) for key, title in (("operators", "operators"), ("macs_by_op", "MACs by operator"))
    }
    facts = flattened(metrics)
    facts += [
        (title, ", ".join(f"{name} {number(count)}" for name, count in counts.items()) or NONE)
        for title, counts in counted.items()
        if isinstance(counts, dict)
    ]
    return [
        table("Interface", ("", "name", "dtype", "shape"), interface, flexible=("name", "shape")),
        table("Content", ("", ""), facts, flexible=("",)),
    ]


def _simplify(report: Report) -> list[Section]:
    """What each engine made of the model beside the original, and the comparison of the chosen one."""
    metrics = report.metrics
    if "candidates" not in metrics:
        return _generic(report)
    before, after = ((metrics["nodes"][when], metrics["bytes"][when]) for when in ("before", "after"))
    rows = [
        ("the original", *before),
        *((made["engine"], made["nodes"], made["bytes"]) for made in metrics["candidates"]),
    ]
    kept = ("the original" if metrics["engine"] == "none" else metrics["engine"], *after)
    if metrics.get("fusions"):
        kept = (f"{kept[0]}, fused", *after)
        rows.append(kept)
    cells = [
        (name, number(nodes), number(size), "kept" if (name, nodes, size) == kept else "") for name, nodes, size in rows
    ]
    made = table("Engines", ("engine", "nodes", "bytes", ""), cells, ("nodes", "bytes"))
    parity = metrics.get("parity") or {}
    return [made, *([_parity("Against the original", parity)] if parity.get("outputs") else [])]


def _quantize(report: Report) -> list[Section]:
    """What was measured, the comparison with float, and below it the decisions and the ranking of the nodes."""
    rest = dict(report.metrics)
    search, ranking = rest.pop("search", None), rest.pop("sensitivity", None)
    found = _generic(dataclasses.replace(report, metrics=rest))
    if search:
        found.append(table("Search", ("", ""), quantization.decided(search), flexible=("",)))
    if ranking:
        numeric, droppable = quantization.NUMERIC, quantization.DROPPABLE
        rows = quantization.cells(ranking)
        found.append(table("Sensitivity", quantization.COLUMNS, rows, numeric, ("node",), droppable))
        found[-1].lines = quantization.explained(ranking)
    return found


# Facts for the cache, not for a person.
_FOR_MACHINES = {"source_files"}


def _generic(report: Report) -> list[Section]:
    """Every metric by name, and a table for each comparison among them."""
    metrics = {key: value for key, value in report.metrics.items() if key not in _FOR_MACHINES}
    gates = metrics.get("parity")
    tables = []
    if isinstance(gates, dict) and any(isinstance(gate, dict) and "outputs" in gate for gate in gates.values()):
        tables = [_parity(f"Against its {name}", gate) for name, gate in metrics.pop("parity").items() if gate]
    elif isinstance(gates, dict) and _is_comparison(gates.get("outputs")):
        tables = [_parity("Against its source", metrics.pop("parity"))]
    elif _is_comparison(metrics.get("outputs")):
        about = metrics.pop("parity", None) or {}
        metrics.pop("samples", None)  # stands below the table
        tables = [_parity("Against its source", {**about, "outputs": metrics.pop("outputs")})]
    facts = flattened(metrics)
    return [*([table("Measured", ("", ""), facts, flexible=("",))] if facts else []), *tables]


def _is_comparison(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "max_abs" in value[0]


def flattened(metrics: dict[str, Any], prefix: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Metrics as (name, text) lines: nested names joined with a dot, lists of objects counted."""
    lines: list[tuple[str, str]] = []
    for key, value in metrics.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            lines += flattened(value, f"{prefix}{key}.", depth + 1)
        elif isinstance(value, (list, tuple)) and any(isinstance(item, (dict, list)) for item in value):
            lines.append((name, f"{len(value)} (--json lists them)"))
        elif isinstance(value, (list, tuple)):
            lines.append((name, ", ".join(number(item) for item in value) or NONE))
        elif value is not None:
            lines.append((name, number(value, 4)))
    return lines


_LAYOUTS: dict[str, Callable[[Report], list[Section]]] = {
    "validate": _validate,
    "bench": bench.sections,
    "check": _check,
    "targets": _targets,
    "doctor": _doctor,
    "explain": _explain,
    "run": _run,
    "inspect": _inspect,
    "simplify": _simplify,
    "quantize": _quantize,
}
