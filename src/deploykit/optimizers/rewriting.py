"""The contract of rewrites: what `check --fix` may do to nodes that a target refuses, as named, verified steps."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What one application of a rewrite did: names of nodes that went and came, and a sentence for people.

    bound: how the outputs may differ afterwards, as a precision of `parity.TOLERANCES` ("fp32" when they are equal but
    for rounding; "int8" when values were quantized anew).
    """

    removed: tuple[str, ...]
    added: tuple[str, ...]
    text: str
    bound: str = "fp32"


class Rewrite(abc.ABC):
    """One way to express nodes differently.

    name: kebab-case, stable, shown to users. title: what it does, one line, shown in help and reports.
    A rewrite knows nothing of targets: which one is tried follows from the nodes that a target refuses, and which one
    is kept from what the target says of the result.
    interface: whether it changes the dtype of graph inputs or outputs. Such a rewrite is tried only where a target
    cannot hold one of them (`applies` is asked about the nodes that read or make that tensor), and is told loudly.
    answers: words in the reason of a refusal that call for it. A rewrite that has some is tried last where the reason
    has none of them, and not suggested there: it changes more than the node.
    keeps_operator: whether the node stays one of its operator (of other types, with other inputs). Such a rewrite is
    not suggested where it is the operator that a target lacks.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    interface: ClassVar[bool] = False
    answers: ClassVar[tuple[str, ...]] = ()
    keeps_operator: ClassVar[bool] = False

    @property
    def gives(self) -> str:
        """The type in which it has the node compute, as in "int32"; "" where it does not change types."""
        return ""

    def is_called_for(self, reason: str) -> bool:
        """Whether a refusal with this reason may want it: always, unless it has words to look for."""
        return not self.answers or any(word in reason for word in self.answers)

    @abc.abstractmethod
    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether this node can be expressed differently; shapes have been inferred. Changes nothing."""

    @abc.abstractmethod
    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Rewrites these nodes of the model (all of them in scope of it, bodies included) in place.

        Names of graph inputs and outputs, their order and symbolic dimensions stay. New nodes have unique names derived
        from the node they replace. Nodes that turn out not to be expressible are left alone and have no Change.
        """
