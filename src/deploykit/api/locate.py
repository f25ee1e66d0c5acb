"""What `deploykit.validate` adds with `locate`: where the two artifacts part, in words and numbers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.errors import UsageError
from deploykit.report import Finding, failure, note, warning
from deploykit.taps import can_tap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deploykit.artifact import Artifact

_SHOWN = 6  # nodes or differences named in a message


def require_locatable(sides: Sequence[Artifact]) -> None:
    """Raises UsageError (DK456) for a pair that cannot be looked into."""
    reference, candidate = sides
    if reference.format != "onnx":
        raise UsageError(
            f"--locate compares with the tensors of an ONNX graph, and {reference.path.name} is none",
            code="DK456",
            file=reference.path,
            hint="give the ONNX model that the candidate was made from as the reference",
        )
    if not can_tap(candidate.format):
        raise UsageError(
            f"the tensors inside {candidate.path.name} cannot be read: nothing shows those of {candidate.format}",
            code="DK456",
            file=candidate.path,
            hint="--locate takes ONNX, OpenVINO IR, LiteRT and Core ML; without it the outputs are compared",
        )


def locate(
    call: Callable[..., dict[str, Any]], outputs: Sequence[Mapping[str, Any]], save: Path | None, force: bool
) -> tuple[dict[str, Any] | None, dict[str, Any] | None, list[Finding]]:
    """The `first_divergence` of the JSON contract, all that was found besides, and findings.

    call: calls `locating.job:locate_job` in a worker, with `save` as its argument. outputs: rows of the comparison.
    save: where the failing part is to lie. Raises OutputError when it cannot be written there.
    """
    if outputs and all(row["passed"] for row in outputs):
        return None, None, [note("DK454", "nothing diverges: all outputs that both have agree")]
    if not outputs:
        return None, None, [note("DK454", "nothing was located: no output that both have was compared")]
    if save is None:
        found = call(save=None)
    else:
        with io.scratch_folder(save.parent) as folder:
            found = call(save=str(Path(folder) / save.name))
            if found.get("repro"):
                io.publish(Path(folder), save, force=force)
                found["repro"] |= _placed(found["repro"], save.parent)
    first = found.pop("first")
    if first is None:
        return None, found, [_nowhere(found)]
    keys = ("node", "op", "tensor", "source_node", "max_abs", "sqnr_db")
    return {key: first[key] for key in keys}, found | {"first": first}, _findings(first, found)


def _placed(repro: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Where the files lie, and the command that shows the fault again."""
    command = None
    if repro["pair"]:
        files = [str(folder / name) for name in repro["pair"]]
        command = shlex.join(["deploykit", "validate", *files, "--data", str(folder / repro["data"])])
    return {"files": [str(folder / name) for name in repro["files"]], "command": command}


def _nowhere(found: Mapping[str, Any]) -> Finding:
    if found["sample"] is None:
        return note("DK454", "nothing was located: no output that both have differs on any sample")
    if not found["readable"]:
        text = f"nothing was located: no tensor of the candidate is known as {', '.join(found['outputs'][:_SHOWN])}"
        return warning("DK453", text)
    return warning(
        "DK455",
        f"{', '.join(map(repr, found['outputs'][:_SHOWN]))} of {found['sample']} differs in a plain run, and does not "
        "where its tensor is read: what the engine fuses around it is at fault",
    )


def _findings(first: Mapping[str, Any], found: Mapping[str, Any]) -> list[Finding]:
    node = f"node {first['source_node']!r} ({first['source_op']})"
    count = len(first["steps"])
    node = node if count == 1 else f"one of {count} nodes up to {node}"
    measured = [first["problem"]] if first["problem"] else []
    measured += [f"max|diff| {first['max_abs']:.4g}"] if first["max_abs"] is not None else []
    measured += [f"SQNR {first['sqnr_db']:.1f} dB"] if first["sqnr_db"] is not None else []
    if first["first_bad"] is not None:
        ours, theirs = (_number(value) for value in first["values"])
        measured.append(f"first at {first['first_bad']}: {theirs} instead of {ours}")
    agree = "what it is made of is finite" if first["not_finite"] else "what it is made of agrees"
    agree = agree if first["inputs"] else "it is made of the model's inputs"
    text = f"{node} is the first to differ: tensor {first['tensor']!r}, {'; '.join(measured)}; {agree}"
    findings = [
        failure(
            "DK452",
            text,
            node=first["source_node"],
            op=first["source_op"],
            tensor=first["tensor"],
            scope=first["scope"],
            hint=_why(first, found),
        )
    ]
    if len(first["steps"]) > 1:
        names = [f"{step['node']!r} ({step['op']})" for step in first["steps"]]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        text = f"the candidate has one tensor for {len(names)} nodes, any of which may be at fault: {shown}"
        findings.append(note("DK453", text, node=first["source_node"], tensor=first["tensor"]))
    if found.get("repro"):
        files = ", ".join(Path(file).name for file in found["repro"]["files"])
        command = found["repro"]["command"] or ""
        findings.append(note("DK457", f"the failing part is saved: {files}", hint=command))
    return findings


def _why(first: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What is known of the cause: whether the part differs alone, and what its two nodes differ in."""
    alone, before = found["alone"], found["added_up"]
    if alone is None:
        words = []
    elif alone["agrees"]:
        words = ["on the reference's own values it agrees, as all that follows does: small differences add up"]
    else:
        words = ["on the reference's own values it differs, too: the fault is born here"]
        if before:
            count = f"{len(before)} tensor{'s' * (len(before) > 1)} before it"
            words.append(f"small differences alone pass the limit at {count}, first at {before[0]!r}")
    return "; ".join([*words, *first["differences"][:_SHOWN]])


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value)
