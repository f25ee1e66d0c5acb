"""The tables of docs/quantization.md (benchmarks/quantization.json, targets, metrics) in the text of docs/parts."""

import json
from pathlib import Path

from deploykit.evaluation import METRICS
from deploykit.precision import PRECISIONS
from deploykit.target import get_target, target_names

HEADS = ("", "accuracy", "SQNR, dB", "int8 MACs", "size", "onnxruntime", "OpenVINO")
SUMMARY = (
    *("model", "metric", "float", "int8 auto", "int8 search", "mixed", "onnxruntime, best", "NNCF, better"),
    "significantly worse than",
)
NOISE = ("model", "int8 auto", "int8 search", "mixed", "onnxruntime, best", "NNCF, better")
PEERS = ("onnxruntime ", "NNCF ")
# What each side is represented by in the summary: the best of its static int8.
OURS = ("int8 auto", "int8 search", "mixed")
LEVEL = 0.05


def page(text: Path, data: Path) -> str:
    """The whole page."""
    results = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {}
    body = [*_summary(results), "", "SQNR of the outputs on the same half, in dB:", "", *_noise(results), ""]
    for name, entry in results.items():
        metric = entry["metric"].rpartition(":")[2] if entry["metric"] else "none"
        body += [f"### {name}", "", f"Metric: {metric}. Data: {entry['data']}.", ""]
        body += ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
        body += [_line(recipe, cell) for recipe, cell in entry["cells"].items()]
        body.append("")
    tables = {"table": body, "precisions": _precisions(), "schemes": _schemes(), "metrics": _metrics()}
    made = text.read_text(encoding="utf-8")
    for mark, lines in tables.items():
        made = made.replace(f"<!-- {mark} -->", "\n".join(lines).strip("\n"))
    return made


def _precisions() -> list[str]:
    lines = [f"| target | {' | '.join(PRECISIONS)} |", "|---" * (len(PRECISIONS) + 1) + "|"]
    for name in target_names():
        takes = get_target(name).precisions
        if set(takes) & set(PRECISIONS):
            lines.append(f"| {name} | {' | '.join('yes' if p in takes else '' for p in PRECISIONS)} |")
    return lines


def _schemes() -> list[str]:
    heads = ("target", "activations", "zero points", "weights", "bias", "Add of a residual")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in target_names():
        target = get_target(name)
        scheme = target.scheme
        if scheme is None or "int8" not in target.precisions:
            continue
        # Not scheme.reduce_range: that is what the CPU here asks for.
        ranged = ", reduced range where it saturates" if scheme.activation == "uint8" else ""
        cells = (
            name,
            scheme.activation,
            "0" if scheme.symmetric_activations else "fitted",
            f"int8 per {'channel' if scheme.per_channel else 'tensor'}{ranged}",
            "int32" if scheme.quantize_bias else "float",
            "both inputs" if scheme.quantize_residual else "as they come",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _metrics() -> list[str]:
    lines = ["| metric | what it is | options |", "|---|---|---|"]
    return lines + [
        f"| `{name}` | {row.help} | {', '.join(f'`{option}`' for option in row.make.accepts)} |"
        for name, row in METRICS.items()
    ]


def _summary(results: dict) -> list[str]:
    lines = [f"| {' | '.join(SUMMARY)} |", "|---" * len(SUMMARY) + "|"]
    for name, entry in results.items():
        cells = entry["cells"]
        worse = {peer for peers in _worse(entry).values() for peer in peers}
        shown = [_of(cells.get("float"), entry), *(_with_share(cells.get(recipe), entry) for recipe in OURS)]
        shown += [_best(cells, start, entry) for start in PEERS]
        metric = entry["metric"].rpartition(":")[2] if entry["metric"] else "SQNR, dB"
        lines.append(f"| {name} | {metric} | {' | '.join(shown)} | {', '.join(sorted(worse)) or '-'} |")
    return lines


def _noise(results: dict) -> list[str]:
    """The summary by SQNR, and on how many models our default is above all that the peers make."""
    lines = [f"| {' | '.join(NOISE)} |", "|---" * len(NOISE) + "|"]
    first = total = 0
    refused: list[str] = []
    for name, entry in results.items():
        unscored = {**entry, "metric": None}
        cells = entry["cells"]
        shown = [_with_share(cells.get(recipe), unscored) for recipe in OURS]
        shown += [_best(cells, start, unscored) for start in PEERS]
        lines.append(f"| {name} | {' | '.join(shown)} |")
        plain = cells.get("int8 auto") or {}
        theirs = [cell["sqnr_db"] for start in PEERS for cell in _static(cells, start) if cell["sqnr_db"]]
        if plain.get("sqnr_db") and theirs:
            total += 1
            if plain["sqnr_db"] >= max(theirs):
                first += 1
                refused += [name] if _refused(plain) else []
    text = f"`int8 auto` alone is above every static INT8 of both peers on {first} of {total} models"
    return [*lines, "", f"{text}, of which the command refuses {' and '.join(refused) or 'none'}."]


def _static(cells: dict, start: str) -> list[dict]:
    """What a peer made in static int8."""
    return [
        cell
        for recipe, cell in cells.items()
        if recipe.startswith(start) and not recipe.endswith("dynamic") and "failed" not in cell
    ]


def _worse(entry: dict) -> dict[str, list[str]]:
    """By recipe of ours: the peers that are better by more than chance at the same share of int8 MACs or more.

    Only where something was lost against float: noise can be to a metric's liking.
    """
    found: dict[str, list[str]] = {}
    cells = entry["cells"]
    for recipe in OURS:
        mine = cells.get(recipe)
        if mine is None or "failed" in mine:
            continue
        for peer, p in entry.get("paired", {}).get(recipe, {}).items():
            other = cells.get(peer)
            if (
                other is None
                or "failed" in other
                or p >= LEVEL
                or (other["int8_macs"] or 0) < mine["int8_macs"] - 0.005
            ):
                continue
            if _loss(mine) > max(_loss(other), _loss(cells["float"])):
                found.setdefault(recipe, []).append(peer)
    return found


def _loss(cell: dict) -> float:
    return -cell["value"] if cell["higher_is_better"] else cell["value"]


def _of(cell: dict | None, entry: dict) -> str:
    if cell is None:
        return ""
    if "failed" in cell:
        return "failed"
    value = cell["value"] if entry["metric"] else cell["sqnr_db"]
    number = "exact" if value is None else f"{value:.4g}"
    return f"{number} (refused)" if _refused(cell) else number


def _refused(cell: dict) -> bool:
    return bool((cell.get("took") or {}).get("said", {}).get("refused"))


def _with_share(cell: dict | None, entry: dict) -> str:
    """The value, and the share of MACs in int8."""
    text = _of(cell, entry)
    if cell is None or "failed" in cell:
        return text
    share = f"{cell['int8_macs'] or 0:.0%}"
    return f"{text.removesuffix(')')}, {share})" if _refused(cell) else f"{text} ({share})"


def _best(cells: dict, start: str, entry: dict) -> str:
    """The best static int8 of a peer."""
    known = _static(cells, start)
    if not known:
        return "failed" if any(recipe.startswith(start) for recipe in cells) else ""
    best = min(known, key=lambda cell: _loss(cell) if entry["metric"] else -(cell["sqnr_db"] or float("inf")))
    return _with_share(best, entry)


def _line(recipe: str, cell: dict) -> str:
    if "failed" in cell:
        why = cell["failed"].replace("|", "/").replace("\n", " ")[:160]
        return f"| {recipe} | failed: {why} |" + " |" * (len(HEADS) - 2)
    said = cell.get("took", {}).get("said", {})
    value = "" if cell["value"] is None else f"{cell['value']:.4g}{cell['unit'] and ' ' + cell['unit']}"
    p = cell.get("p_against_float")
    if p is not None and p < LEVEL:
        value += f" (p {p:.2g})"
    if said.get("refused"):
        value += " (refused)"
    parts = [
        recipe,
        value,
        "exact" if cell["sqnr_db"] is None else f"{cell['sqnr_db']:.1f}",
        "" if cell["int8_macs"] is None else f"{cell['int8_macs']:.0%}",
        f"{cell['size_ratio']:.2f}",
        *(f"{cell[key]:.2f}x" if cell.get(key) else "" for key in ("latency_ratio", "openvino_latency_ratio")),
    ]
    return f"| {' | '.join(parts)} |"
