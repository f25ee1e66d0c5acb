"""What Core AI takes, node by node: coreai-onnx is asked by converting (runs in the worker)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.converters.coreai.prepare import prepared
from deploykit.converters.coreai.vendor import Refusal, label, program_of
from deploykit.opsupport.verdict import Verdict, supported, unsupported
from deploykit.report import failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIX = "deploykit check MODEL --target coreai --fix -o OUT rewrites what can be; --dim NAME=SIZE fixes sizes"


def support_job(
    model: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Any],
) -> dict[str, Any]:
    """A verdict for every node; coreai-onnx converts a model whole or not at all.

    It names all nodes without a lowering, and otherwise the first one that it cannot lower.
    """
    loaded, _ = prepared(Path(model), dims, profiles)
    refusal = refused(loaded) or Refusal()
    rows = []
    for node in graph.all_nodes(loaded):
        verdict = _verdict(refusal, node.name or "")
        rows.append(
            {
                "node": node.name or "",
                "op": node.op_type,
                "domain": node.domain,
                **verdict.as_dict(),
                "source": label(),
            }
        )
    # What is folded or fused before lowering has another name than any node of the file.
    named = {row["node"] for row in rows}
    elsewhere = [f"node {name!r}: {why}" for name, why in refusal.nodes.items() if name not in named]
    whole = [*elsewhere, *([refusal.whole] if refusal.whole else [])]
    fails = any(row["verdict"] == "unsupported" for row in rows)
    return {
        "source": label(),
        "nodes": rows,
        "partitions": None if fails or whole else 1,
        "findings": [failure("DK202", f"{label()}: {why}", target="coreai", hint=_FIX).as_dict() for why in whole],
    }


def refused(loaded: Any) -> Refusal | None:
    """What coreai-onnx refuses of a prepared model; None where it converts."""
    with io.scratch_folder() as folder:
        place = Path(folder) / "model.onnx"
        graph.save(loaded, place)
        _, refusal = program_of(place)
    return refusal


def _verdict(refusal: Refusal, name: str) -> Verdict:
    return unsupported(refusal.nodes[name], remedy=_FIX) if name in refusal.nodes else supported()
