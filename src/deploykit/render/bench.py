"""A benchmark's tables: the rows, the comparison with a baseline, and the profile of each artifact."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from deploykit.render.numbers import NONE, fixed, number, or_none, percent
from deploykit.render.table import Section, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.report import Report

_NUMBERS = ("p50 ms", "p95 ms", "p99 ms", "per s", "peak MB", "load s", "accuracy")
_DROPPABLE = ("load s", "runtime", "p95 ms")
_MEMORY = ("base", "loaded", "after", "peak")
_KERNELS = 12
_MODULES = 12
_TYPES = 8


def sections(report: Report) -> list[Section]:
    """The rows with the verdict below them, then what was asked for besides."""
    metrics = report.metrics
    rows = metrics.get("rows", [])
    made = table(
        "Benchmark",
        ("artifact", "runtime", *_NUMBERS),
        map(_cells, rows),
        _NUMBERS,
        ("artifact", "runtime"),
        _DROPPABLE,
    )
    made.lines = [f"verdict: {metrics['verdict']}"] if metrics.get("verdict") else []
    found = [made, *_memory(rows)]
    if metrics.get("baseline"):
        found.append(_baseline(metrics["baseline"]))
    for row in rows:
        if row.get("profile"):
            found += _profile(row["label"], row["profile"])
    return found


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    served = f", model {row['model']}, {row['clients']} at once" if row.get("clients") else ""
    return (
        or_none(row.get("artifact")),
        or_none(row.get("runtime")) + (" (simulated)" if row.get("execution") == "simulated" else "") + served,
        *(number(row.get(key)) for key in ("p50_ms", "p95_ms", "p99_ms")),
        number(row.get("throughput_per_s"), 4),
        fixed((row.get("rss_mb") or {}).get("peak"), 0),
        fixed(row.get("load_s"), 2),
        _accuracy(row.get("accuracy")),
    )


def _size(value: float | None) -> str:
    return NONE if value is None else fixed(value, 3 if value < 0.1 else 2 if value < 10 else 1)


def _accuracy(value: Any) -> str:
    return fixed(value.get("value") if isinstance(value, dict) else value, 2)


def _memory(rows: Sequence[dict[str, Any]]) -> list[Section]:
    """Size on disk, and memory of each process: before the engine's import, loaded, after the last call, at most."""
    told = [row for row in rows if (row.get("rss_mb") or {}).get("base") is not None]
    if not told:
        return []
    cells = [
        (row["artifact"], _size(row.get("size_mb")), *(fixed(row["rss_mb"][when], 0) for when in _MEMORY))
        for row in told
    ]
    numeric = ("on disk", *_MEMORY)
    return [table("Size and memory, MB", ("artifact", *numeric), cells, numeric, ("artifact",))]


def _baseline(compared: dict[str, Any]) -> Section:
    rows = [
        (
            row["label"],
            or_none(row.get("measure")),
            number(row.get("before_ms"), 4),
            ", ".join(number(time, 4) for time in row.get("now_ms", [])) or NONE,
            fixed(row.get("ratio"), 3),
            f"{row['interval'][0]:.3f} to {row['interval'][1]:.3f}" if row.get("interval") else NONE,
            row["verdict"].upper() if row["verdict"] == "slower" else row["verdict"],
        )
        for row in compared["rows"]
    ]
    interval = f"{compared['confidence']:.0%} interval"
    numeric = ("ms then", "now", "ratio", interval)
    columns = ("artifact", "compared", *numeric, "verdict")
    made = table("Against the baseline", columns, rows, numeric, ("artifact",), ("compared", "ms then", "now"))
    times = f"{compared['runs']} time{'' if compared['runs'] == 1 else 's'}"
    limit = f"at most {compared['max_slowdown']:g}x is allowed"
    made.lines = [f"baseline: {compared['file']}; {limit}; measured {times}"]
    made.lines += [
        f"{row['label']}: relative to {', '.join(row['relative_to'])}, whose bytes and engine are the same"
        for row in compared["rows"]
        if row.get("relative_to")
    ]
    return made


def _profile(label: str, profile: dict[str, Any]) -> list[Section]:
    kernels = profile["kernels"]
    rows = [
        (row["name"], row["op"], row["precision"], row["module"], number(row["microseconds"]), percent(row["share"]))
        for row in kernels[:_KERNELS]
    ]
    columns = ("kernel", "type", "precision", "module", "us", "share")
    made = table(
        f"Kernels of {label}", columns, rows, ("us", "share"), ("kernel", "module"), ("module", "precision", "us")
    )
    rest = kernels[_KERNELS:]
    if rest:
        share = sum(row["share"] or 0 for row in rest)
        made.lines.append(f"and {len(rest)} more, together {percent(share)} (--json lists them)")
    plain = f"x{profile['ratio']:.2f} of an unprofiled call ({number(profile['unprofiled_ms'], 4)} ms, the same inputs)"
    made.lines += [
        f"the kernels' times sum to {number(profile['sum_ms'], 4)} ms, {plain}",
        f"by type: {_rolled(profile['by_op'], 'op')}",
        f"by precision: {_rolled(profile['by_precision'], 'precision')}",
    ]
    modules = _modules(profile["by_module"])
    if len(modules) < 2:
        return [made]
    cells = [(name, str(count), number(time), percent(share)) for name, count, time, share in modules]
    numeric = ("kernels", "us", "share")
    return [made, table(f"Modules of {label}", ("module", *numeric), cells, numeric, ("module",))]


def _rolled(rows: Sequence[dict[str, Any]], key: str) -> str:
    told = [f"{row[key]} {percent(row['share'])}" for row in rows[:_TYPES]]
    rest = rows[_TYPES:]
    if rest:
        told.append(f"{len(rest)} others {percent(sum(row['share'] for row in rest))}")
    return ", ".join(told)


def _modules(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int, float, float]]:
    """Modules with kernels, microseconds and share: of the deepest level that has few enough, largest first."""
    depth = max((len(_path(row["module"])) for row in rows), default=1)
    while True:
        found: dict[str, tuple[int, float, float]] = {}
        for row in rows:
            parts = _path(row["module"])
            name = row["module"] if len(parts) <= depth else ".".join(parts[:depth])
            count, time, share = found.get(name, (0, 0.0, 0.0))
            found[name] = (count + row["kernels"], time + row["microseconds"], share + row["share"])
        if len(found) <= _MODULES or depth == 1:
            break
        depth -= 1
    ordered = sorted(((name, *sums) for name, sums in found.items()), key=lambda row: -row[2])
    rest = ordered[_MODULES:]
    if not rest:
        return ordered
    others = (f"{len(rest)} others", sum(r[1] for r in rest), sum(r[2] for r in rest), sum(r[3] for r in rest))
    return [*ordered[:_MODULES], others]


def _path(module: str) -> list[str]:
    """`encoder.layers.3 (Attention)` as its parts; what stands in parentheses alone is one."""
    return [module] if module.startswith("(") else re.sub(r" \(.*\)$", "", module).split(".")
