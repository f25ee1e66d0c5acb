"""Which execution provider runs which nodes, as ONNX Runtime itself assigned them; falling back is said or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from deploykit.converters.onnxruntime.providers import CPU, FALLBACK, Provider
from deploykit.errors import GateError
from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from pathlib import Path

# Since 1.24. Sessions without it run as they always did.
_RECORD = "session.record_ep_graph_assignment_info"
_NAMED = 5


def record(options: ort.SessionOptions) -> None:
    """Has a session keep what it assigned; where this ONNX Runtime can."""
    if hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
        options.add_session_config_entry(_RECORD, "1")


def placed(session: ort.InferenceSession) -> dict[str, list[str]] | None:
    """The nodes that each provider runs, by operator and name; None where this ONNX Runtime does not tell.

    The nodes are those of the optimised graph: what was folded into constants runs nowhere.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    found: dict[str, list[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found.setdefault(part.ep_name, []).extend(map(_told, part.get_nodes()))
    return found


def _told(node: Any) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else str(node.op_type)


def judge_placement(session: ort.InferenceSession, provider: Provider, path: Path) -> list[Finding]:
    """What runs where, when a provider other than the CPU's is asked for.

    Raises GateError (DK571) where it takes no node: all results and times would be the CPU's under its name.
    """
    if provider.name == CPU:
        return []
    nodes = placed(session)
    if nodes is None:
        return [
            warning(
                "DK572",
                f"ONNX Runtime {ort.__version__} does not tell which nodes {provider.name} runs: some or all of "
                f"{path.name} may run on the CPU",
                target="onnxruntime",
                hint="ONNX Runtime 1.24 and newer tell",
            )
        ]
    there = nodes.get(provider.name, [])
    others = {name: rows for name, rows in nodes.items() if name != provider.name and rows}
    if not there and others:
        left = "; ".join(f"{name}: {_listed(rows)}" for name, rows in others.items())
        if not provider.fallback:
            raise GateError(
                f"{provider.name} takes no node of {path.name}: all of it would run on {' and '.join(others)}",
                code="DK571",
                file=path,
                target="onnxruntime",
                context=[left],
                hint=f"--provider {provider.name.removesuffix('ExecutionProvider').lower()}:{FALLBACK}=allow runs it "
                "there all the same; without --provider it runs on the CPU under its own name",
            )
        return [warning("DK571", f"{provider.name} takes no node of {path.name}; {left}", target="onnxruntime")]
    told = f"{provider.name} runs {len(there)} nodes of {path.name}"
    for name, rows in others.items():
        told += f"; {name} {len(rows)}: {_listed(rows)}"
    return [note("DK572", f"{told}{'' if others else ', and nothing is left to the CPU'}", target="onnxruntime")]


def _listed(rows: list[str]) -> str:
    return ", ".join(rows[:_NAMED]) + (f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else "")
