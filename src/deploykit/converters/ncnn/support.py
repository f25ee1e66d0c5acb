"""What ncnn takes, node by node: pnnx translates the model, and its layers are looked up in ncnn (in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.converters.ncnn.options import stored
from deploykit.converters.ncnn.tool import NAME, versions
from deploykit.converters.ncnn.translation import Attempt, attempt
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported
from deploykit.report import failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REMEDY = "rewrite it with operators that ncnn has, or use another target"


def support_job(
    model: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
) -> dict[str, Any]:
    """A verdict for every node; where pnnx fails as a whole it is unknown, and the operator table speaks.

    pnnx computes what depends on shapes only while it follows the model: such nodes leave no layer.
    """
    found = attempt(Path(model), dims, profiles, half=stored(options, "") == "fp16")
    findings = list(found.findings)
    verdicts = _verdicts(found)
    if unexplained := found.unexplained():
        text = f"pnnx leaves {', '.join(unexplained)}, which ncnn {versions()['ncnn']} does not have as layers"
        findings.append(failure("DK526", text, target=NAME, hint=REMEDY))
    refused = bool(findings) or any(verdict.status == "unsupported" for verdict in verdicts)
    return {
        "source": source_label(),
        "nodes": [
            {"node": name, "op": op, "domain": domain, **verdict.as_dict(), "source": verdict.source or source_label()}
            for (name, op, domain), verdict in zip(found.nodes, verdicts, strict=True)
        ],
        "partitions": None if refused else 1,
        "findings": [finding.as_dict() for finding in findings],
    }


def source_label() -> str:
    """Who says so."""
    return f"pnnx {versions()['pnnx']}, ncnn {versions()['ncnn']}"


def _verdicts(found: Attempt) -> list[Verdict]:
    if found.result is None:
        why = "the interface is refused" if found.findings else "pnnx fails without naming a node"
        nobody = unknown(why, remedy="deploykit convert MODEL --to ncnn shows the end of its log")
        return [nobody for _ in found.nodes]
    left = found.left()
    return [
        unsupported(left[place], remedy=REMEDY) if place in left else supported() for place in range(len(found.nodes))
    ]
