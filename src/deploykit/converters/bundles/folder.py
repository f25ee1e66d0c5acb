"""What every build bundle has: bundle.json, which its programs and `inspect` read, a README and executable scripts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deploykit.target import BUNDLE_FILE, BUNDLE_FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

STEM = "model"
MODEL = "model.onnx"


def save_model(model: ir.Model, home: Path) -> list[str]:
    """Writes the model under the bundle's name for it, large weights in one file beside it; the names."""
    from deploykit import graph

    return list(graph.save(graph.name_nodes(model), home / MODEL))


def write_facts(home: Path, facts: Mapping[str, Any]) -> None:
    """Writes bundle.json: same facts, same bytes."""
    text = json.dumps({"format": BUNDLE_FORMAT, **facts}, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    (home / BUNDLE_FILE).write_text(text, encoding="utf-8")


def read_facts(home: Path) -> dict[str, Any]:
    """What bundle.json says. Raises InvalidFileError (DK528) for a folder that is no bundle, or is not whole."""
    from deploykit.artifact import TensorSpec
    from deploykit.errors import InvalidFileError

    try:
        facts: dict[str, Any] = json.loads((home / BUNDLE_FILE).read_text(encoding="utf-8"))
        missing = [name for name in facts["files"] if not (home / name).is_file()]
        for kind in ("inputs", "outputs"):
            for spec in facts[kind]:
                TensorSpec.from_dict(spec)
        str(facts["precision"]), len(facts["samples"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise InvalidFileError(f"{home} is no build bundle: {problem}", code="DK528", file=home) from problem
    if facts.get("format") != BUNDLE_FORMAT or missing:
        told = f"it lacks {', '.join(missing)}" if missing else f"{BUNDLE_FILE} is of another kind"
        raise InvalidFileError(f"{home} is no whole build bundle: {told}", code="DK528", file=home)
    return facts


def write_script(home: Path, name: str, text: str) -> None:
    """Writes a program that may be executed."""
    file = home / name
    file.write_text(text, encoding="utf-8", newline="\n")
    file.chmod(0o755)


def listing(home: Path) -> list[str]:
    """Every file of the bundle but bundle.json itself, relative."""
    files = (file.relative_to(home).as_posix() for file in home.rglob("*") if file.is_file())
    return sorted(name for name in files if name != BUNDLE_FILE)


def readme(
    title: str,
    intro: Sequence[str],
    steps: Sequence[Mapping[str, Any]],
    contents: Mapping[str, str],
    notes: Sequence[str],
    sources: Sequence[str],
) -> str:
    """README.md: what to do, what is in the folder, what to know, and where the commands are documented."""
    import shlex

    lines = [f"# {title}", "", *intro, ""]
    for number, step in enumerate(steps, 1):
        lines += [f"{number}. {step['about'] or 'run'}:", "", f"       {shlex.join(step['run'])}", ""]
    lines += ["| file | what it is |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in contents.items())]
    if notes:
        lines += ["", *(f"- {note}" for note in notes)]
    if sources:
        lines += ["", "Documented at:", *(f"- {source}" for source in sources)]
    return "\n".join(lines) + "\n"
