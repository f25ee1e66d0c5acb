"""The tables of docs/coreml.md (benchmarks/coreml_models.json) in the text of docs/parts."""

import json
from pathlib import Path

HEADS = ("model", "exporter", "sizes that vary", "MIL operators", "fp32", "fp16", "kept fp32")


def page(text: Path, data: Path) -> str:
    """The whole page."""
    results = json.loads(data.read_text(encoding="utf-8"))
    zoo, published = results["zoo"], results["published"]
    asked = {name: row for name, row in zoo.items() if row["asked"]}
    more = {name: row for name, row in zoo.items() if not row["asked"]}
    tables = {
        "summary": _summary(zoo, published),
        "asked": _zoo(asked),
        "more": _zoo(more),
        "published": _published(published),
        "refused": _refused(zoo, published),
    }
    made = text.read_text(encoding="utf-8")
    for mark, lines in tables.items():
        made = made.replace(f"<!-- {mark} -->", "\n".join(lines))
    return made


def _summary(zoo: dict, published: dict) -> list[str]:
    rows = [*zoo.values(), *published.values()]
    done = [row for row in rows if "fp32" in row]
    asked = max(row["fp32"]["difference"] for row in zoo.values() if row["asked"] and "fp32" in row)
    largest = max(row["fp32"]["difference"] for row in done)
    measured = [row["fp16"] for row in done if "fp16" in row]
    half = sum(found["passed"] for found in measured)
    families = len({row["title"] for row in zoo.values()})
    beyond = len(measured) - half
    return [
        f"{len(zoo)} variants of {families} families and {len(published)} published files: {len(done)} converted.",
        f"Their fp32 difference is at most {asked:.1e} of the largest reference value in the first table, and",
        f"{largest:.1e} in all. Of {len(measured)} that were measured in fp16 {half} are within its tolerance,",
        f"{beyond} are not.",
    ]


def _head(heads: tuple[str, ...]) -> list[str]:
    return ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]


def _cell(found: dict | None) -> str:
    if found is None:
        return "not measured"
    if found["difference"] is None:
        return "another number of rows"
    return f"{found['difference']:.1e}" + ("" if found["passed"] else ", **above the tolerance**")


def _zoo(rows: dict) -> list[str]:
    lines = _head(HEADS)
    for row in rows.values():
        start = f"| {row['title']} | {row['exporter']} | {', '.join(row['varying'])} |"
        if "fp32" in row:
            cells = (
                f"{row['operators']} | {_cell(row['fp32'])} | {_cell(row.get('fp16'))} | {row.get('kept_fp32') or ''}"
            )
            lines.append(f"{start} {cells} |")
        else:
            lines.append(f"{start} | {'not exported' if 'not_exported' in row else 'refused'} | | |")
    return lines


def _published(rows: dict) -> list[str]:
    lines = _head(("model", *HEADS[3:]))
    for name, row in rows.items():
        if "fp32" in row:
            cells = (
                f"{row['operators']} | {_cell(row['fp32'])} | {_cell(row.get('fp16'))} | {row.get('kept_fp32') or ''}"
            )
            lines.append(f"| {name} | {cells} |")
    return lines


def _refused(zoo: dict, published: dict) -> list[str]:
    lines = []
    for name, row in {**zoo, **published}.items():
        lines += [f"- {name}: {problem['message']}" for problem in row.get("refused", ())]
        if "not_exported" in row:
            lines.append(f"- {name}: {row['not_exported']}")
    return lines or ["None."]
