"""The tables of docs/targets.md (benchmarks/targets.json) in the text of docs/parts/targets.md."""

import json
from collections import Counter
from pathlib import Path

from deploykit.target import get_target, target_names

_WORDS = {
    "verified": "verified",
    "simulated": "simulated",
    "built": "built",
    "bundle": "bundle",
    "refused": "refused",
    "failed": "failed",
    "missing": "not here",
}
_LONGEST = 240
_NOT_MEASURED = ("not measured", "", "", "", "", "")
HEADS = ("model", "result", "largest difference", "SQNR, dB", "latency", "size", "because")


def page(text: Path, data: Path) -> str:
    """The whole page."""
    rows = json.loads(data.read_text(encoding="utf-8"))["rows"]
    targets = [name for name in target_names() if any(name in row for row in rows.values())]
    made = text.read_text(encoding="utf-8")
    made = made.replace("<!-- matrix -->", "\n".join(_matrix(rows, targets)))
    return made.replace("<!-- targets -->", "\n".join(line for name in targets for line in _target(rows, name)))


def _table(heads: tuple[str, ...], lines: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ("---",) * len(heads), *lines)]


def _matrix(rows: dict, targets: list[str]) -> list[str]:
    """A row for each target and what became of the models in numbers; a line for the ones that were refused."""
    kinds = [kind for kind in _WORDS if any(cell["status"] == kind for row in rows.values() for cell in row.values())]
    lines = []
    for name in targets:
        onnx = Counter(row[name]["status"] for model, row in rows.items() if name in row and model.endswith(".onnx"))
        other = Counter(
            row[name]["status"] for model, row in rows.items() if name in row and not model.endswith(".onnx")
        )
        cells = [f"{onnx[kind] or '-'} / {other[kind] or '-'}" if onnx[kind] or other[kind] else "" for kind in kinds]
        absent = sum(name not in row for row in rows.values())
        lines.append((f"[{name}](#{name})", *cells, str(absent or "")))
    return _table(("target", *(_WORDS[kind] for kind in kinds), "not measured"), lines)


def _target(rows: dict, name: str) -> list[str]:
    lines = [(model, *(_cells(row[name]) if name in row else _NOT_MEASURED)) for model, row in rows.items()]
    engines = sorted({row[name]["engine"] for row in rows.values() if row.get(name, {}).get("engine")})
    version = next((f"@{row[name]['version']}" for row in rows.values() if row.get(name, {}).get("version")), "")
    head = [f"### {name}", "", f"{get_target(name).title}{f' ({name}{version})' if version else ''}."]
    if engines:
        head[-1] = f"{head[-1][:-1]}, run by {', '.join(engines)}."
    return [*head, "", *_table(HEADS, lines), ""]


def _cells(cell: dict) -> tuple[str, ...]:
    difference = f"{cell['difference']:.1e}" if "difference" in cell else ""
    sqnr = "" if "difference" not in cell else "exact" if cell.get("sqnr_db") is None else f"{cell['sqnr_db']:.0f}"
    latency = f"{cell['latency']:.2f}x" if cell.get("latency") else ""
    size = f"{100 * cell['size_ratio']:.0f} %" if "size_ratio" in cell else ""
    return (_WORDS[cell["status"]], difference, sqnr, latency, size, _because(cell))


def _because(cell: dict) -> str:
    if "sizes" in cell:
        return f"with {cell['sizes']}; with varying ones: {_reason(cell['unless'])}"
    return _reason(cell["because"]) if "because" in cell else ""


def _reason(found: dict) -> str:
    more = f" (and {found['findings'] - 1} more)" if found.get("findings") else ""
    text = found["message"]
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1].rstrip()}..."
    text = text.replace("|", "\\|").replace("<", "&lt;")
    return f"{text}{more}{' [' + found['code'] + ']' if 'code' in found else ''}"
