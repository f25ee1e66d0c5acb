"""docs/coreml-ops.md: the operators that are lowered to Core ML, the conformance run, and the same run for others."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def page(registry: Any) -> str:
    """The page for the registry of lowerings, from the runs kept in benchmarks/."""
    counts = json.loads((BENCHMARKS / "coreml_conformance.json").read_text(encoding="utf-8"))
    rivals = json.loads((BENCHMARKS / "coreml_rivals.json").read_text(encoding="utf-8"))
    cases = counts["by_operator"]
    operators = {(entry.domain, entry.op) for entry in registry}
    names = [f"{name} {facts['version']}" for name, facts in rivals.items()]
    lines = [
        "# ONNX operators that are lowered to Core ML",
        "",
        f"{len(operators)} operators. `deploykit check MODEL --target coreml` asks the same registry, node by node.",
        "",
        f"Of {counts['cases']} single-operator cases of onnx {counts['onnx']}'s node tests, shape-like operands as",
        f"initializers as real models have them, {counts['right']} are right, {counts['refused']} refused with a",
        f"reason, {counts['wrong']} wrong. Each goes through a package on disk (iOS17) and is evaluated by deploykit's",
        "interpreter: Apple's documented semantics, not Apple's kernels.",
        "",
        *_summary(counts, rivals),
        "",
        f"| operator | revisions | right / cases | {' | '.join(names)} | what it becomes |",
        f"|---|---|---|{'---|' * len(names)}---|",
    ]
    for entry in registry:
        function = getattr(entry.function, "func", entry.function)
        text = (function.__doc__ or "MIL's own operator.").split("\n")[0].replace("|", "\\|")
        name = f"{entry.domain}.{entry.op}" if entry.domain else entry.op
        tested = [_tested(cases, entry.op), *(_tested(facts["by_operator"], entry.op) for facts in rivals.values())]
        if entry.domain:  # the cases are those of the standard's operators
            tested = ["" for _ in tested]
        lines.append(f"| {name} | {', '.join(map(str, entry.since))} | {' | '.join(tested)} | {text} |")
    refused = {op: row for op, row in cases.items() if ("", op) not in operators}
    listed = ", ".join(_without(op, total, rivals) for op, (_, total) in refused.items())
    return "\n".join([*lines, "", f"Without a lowering, by cases: {listed}.", ""])


def _summary(counts: dict[str, Any], rivals: dict[str, Any]) -> list[str]:
    """The same run for the two other converters, in a table, and how it was made."""
    days = sorted({facts["date"] for facts in rivals.values()})
    shown = " and ".join(f"{day.day} {day:%B %Y}" for day in map(datetime.date.fromisoformat, days))
    ours = {"right": counts["right"], "refused": counts["refused"], "crashed": counts["broken"]}
    ours |= {"wrong": counts["wrong"], "unchecked": 0}
    columns = tuple(ours)
    lines = [
        f"The same run for two other converters, of {shown} (`benchmarks/coreml_rivals.py`: fp32, iOS17, as",
        "their command lines convert; the same interpreter judges):",
        "",
        f"| converter | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
        f"| deploykit | {' | '.join(str(ours[key]) for key in columns)} |",
    ]
    for name, facts in rivals.items():
        lines.append(f"| {name} {facts['version']} | {' | '.join(str(facts[key]) for key in columns)} |")
    return [
        *lines,
        "",
        "Crashed: an exception that is not the converter's own, or the end of its process. Wrong: a package that gives",
        "other values, or declares another shape, with nothing said. Unchecked: a package whose result Apple's",
        "documentation leaves open, or with an operator that the interpreter lacks.",
    ]


def _tested(cases: dict[str, list[int]], op: str) -> str:
    right, total = cases.get(op, (None, None))
    return "" if total is None else f"{right} / {total}"


def _without(op: str, total: int, rivals: dict[str, Any]) -> str:
    others = [f"{name} {facts['by_operator'][op][0]}" for name, facts in rivals.items() if facts["by_operator"][op][0]]
    return f"{op} ({total}{', right in ' + ', '.join(others) if others else ''})"
