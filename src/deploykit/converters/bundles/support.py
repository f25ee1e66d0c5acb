"""What is known of a toolchain that is not here: its documented limits (runs in the worker).

`deploykit.converters.bundles.support:NAME` is the job of that target. No node is judged here: an operator table does
that where there is one, and the toolchain itself otherwise.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.converters.bundles.rules import broken
from deploykit.opsupport.verdict import unknown
from deploykit.toolchain import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def __getattr__(name: str) -> Callable[..., dict[str, Any]]:
    """The job of a target."""
    if name.startswith("__"):
        raise AttributeError(name)
    return functools.partial(support_job, name)


def support_job(
    target: str,
    model: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Any,
) -> dict[str, Any]:
    """Findings for the documented limits that the model breaks; every node is left to the toolchain."""
    found = load(target)
    loaded = graph.load(Path(model))
    verdict = unknown(
        f"no operator table of {found.title} is known here",
        remedy=f"deploykit convert MODEL --to {target} -o FOLDER writes the command that finds out",
    )
    source = f"documentation of {found.title}"
    return {
        "source": source,
        "nodes": [
            {
                "node": node.name or "",
                "op": node.op_type,
                "domain": node.domain,
                **verdict.as_dict(),
                "source": source,
            }
            for node in graph.all_nodes(loaded)
        ],
        "partitions": None,
        "findings": [finding.as_dict() for finding in broken(found, loaded, dims)],
    }
