"""What trying nodes changes in the answers of `check`: verdicts that nobody gave, conditions, disagreements."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.opsupport.probe import Prober, why_not_probed
from deploykit.opsupport.verdict import Status, Verdict
from deploykit.progress import OnProgress, silent
from deploykit.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.opsupport.summary import NodeVerdict, TargetSummary

_REFUSED = "(refused)"
# What was measured to go wrong under a condition; what was not measured refers to the probe itself.
_MEASURED, _PROBE = "measured on", "--probe"


def settle_by_probing(
    model: ir.Model,
    summaries: Sequence[TargetSummary],
    *,
    dims: Mapping[str, Sequence[int | None]] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    runtime_options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> list[TargetSummary]:
    """The summaries with every node tried that is unknown, conditional, or judged differently by two sources.

    model: the one that they are about. options: each target's `--option`s, runtime_options: what `RuntimeOptions`
    takes, both by target name. A target that cannot be tried here gets a note that says why (DK228), when there was
    something to try. A node that the target's own engine refused in the model stays refused when it is taken alone.
    """
    prober: Prober | None = None
    settled = []
    for summary in summaries:
        names = [node.node for node in summary.nodes if _is_open(node)]
        reason = why_not_probed(summary.target, summary.version, summary.title)
        if not names:
            settled.append(summary)
            continue
        if reason is not None:
            counted = f"{len(names)} node{'s' if len(names) > 1 else ''}"
            told = f"{counted} could be settled by a probe, and none was: {reason}"
            finding = note("DK228", told, target=summary.target.name, hint=summary.target.elsewhere)
            settled.append(dataclasses.replace(summary, findings=(*summary.findings, finding)))
            continue
        prober = prober or Prober(model, dims=dims, options=runtime_options, seed=seed)
        settings = dict((options or {}).get(summary.target.name, {}))
        if summary.version is not None:
            settings["version"] = summary.version
        probed = prober.probe(summary.target, settings, names, on_progress)
        nodes = tuple(settled_node(node, probed[node.node]) if node.node in probed else node for node in summary.nodes)
        settled.append(dataclasses.replace(summary, nodes=nodes, source=_sources(summary, nodes)))
    return settled


def _is_open(node: NodeVerdict) -> bool:
    """Whether trying the node can tell more than is known."""
    return node.verdict.status in (Status.UNKNOWN, Status.CONDITIONAL) or bool(node.others)


def settled_node(node: NodeVerdict, probed: Verdict) -> NodeVerdict:
    """The node with what came of trying it alone."""
    said = node.verdict
    if node.op == "Constant" and not probed.runs:
        return node  # as the output of a model it tells nothing about its use
    if probed.status is Status.UNKNOWN:
        if said.status is Status.SUPPORTED:
            return node
        return dataclasses.replace(node, verdict=dataclasses.replace(said, reason=f"{said.reason}; {probed.reason}"))
    if probed.runs and said.reason and said.source.startswith(_MEASURED) and _PROBE not in said.remedy:
        # Wrong for some values or sizes, which a few random inputs need not have.
        reason = f"{said.reason} (on the inputs of a probe it did not show)"
        return dataclasses.replace(node, verdict=dataclasses.replace(said, reason=reason))
    if node.kind == "engine" and said.status is Status.UNSUPPORTED and probed.runs:
        # In the model it is refused, whatever it does alone: the cause is around it.
        reason = f"{said.reason} (alone it is taken, {probed.source}: what is around it decides)"
        return dataclasses.replace(node, verdict=dataclasses.replace(said, reason=reason))
    if node.kind == "engine" and said.status is Status.SUPPORTED and probed.source.endswith(_REFUSED):
        return node  # the engine took it in the model, where it makes a constant of it or fuses it
    believed = probed
    if said.remedy and probed.status is Status.UNSUPPORTED and said.status is not Status.UNKNOWN:
        believed = dataclasses.replace(probed, remedy=said.remedy)
    others = tuple(
        each for each in (said, *node.others) if each.status is not Status.UNKNOWN and each.runs is not probed.runs
    )
    return dataclasses.replace(node, verdict=believed, kind="probe", others=others)


def _sources(summary: TargetSummary, nodes: Sequence[NodeVerdict]) -> str:
    """Who spoke before, and the probes by what was done."""
    made = dict.fromkeys(node.verdict.source for node in nodes if node.kind == "probe")
    return ", ".join(part for part in (summary.source, *made) if part)
