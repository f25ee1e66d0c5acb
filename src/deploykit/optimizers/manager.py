"""Passes and the manager that repeats them until nothing changes."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

from deploykit import graph
from deploykit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

INFERRED_SHAPES = "inferred shapes"
NO_UNUSED_NODES = "no unused nodes"


class Pass(abc.ABC):
    """One rewriting of a graph that keeps its inputs, outputs and values.

    requires: what has to hold before (the manager provides it). ensures: what holds afterwards.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    ensures: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def run(self, model: ir.Model) -> bool:
        """Rewrites the model in place; returns whether anything changed."""


class PassManager:
    """Runs passes in order, again and again, until a round changes nothing.

    limit: rounds; more than that means two passes undo each other, which is a bug and not a reason to go on.
    """

    def __init__(self, passes: Sequence[Pass], *, limit: int = 8) -> None:
        self.passes = tuple(passes)
        self.limit = limit

    def run(self, model: ir.Model) -> int:
        """Rewrites the model in place; returns the number of rounds that changed something.

        A pass that has seen the model as it is does not look again. Raises ModelError (DK635) when there is no fixed
        point within the limit.
        """
        seen: dict[Pass, int] = {}
        version = inferred = 0
        for rounds in range(self.limit):
            before = version
            for step in self.passes:
                if seen.get(step) == version:
                    continue
                if INFERRED_SHAPES in step.requires and inferred <= rounds:
                    graph.infer_shapes(model)
                    inferred = rounds + 1
                seen[step] = version
                version += step.run(model)
            if version == before:
                return rounds
        raise ModelError(
            f"the passes {', '.join(type(p).__name__ for p in self.passes)} still changed the graph after "
            f"{self.limit} rounds",
            code="DK635",
            hint="deploykit simplify MODEL --engine onnxsim, or --engine onnxslim",
        )
