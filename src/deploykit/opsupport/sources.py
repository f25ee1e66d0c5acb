"""Who says what about a node, best source first, and who is believed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deploykit import lazy
from deploykit.opsupport.measured import load_measured
from deploykit.opsupport.registry import is_newer, newest_opset
from deploykit.opsupport.tables import table_for
from deploykit.opsupport.verdict import Status, Verdict, supported, unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.opsupport.facts import NodeFacts
    from deploykit.opsupport.measured import Measured
    from deploykit.opsupport.summary import Kind
    from deploykit.opsupport.tables import Table
    from deploykit.target import Target

_BEFORE_THE_PROVIDER = "becomes a constant before the provider is asked"


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """What is believed of a node: the verdict, the kind of source it is from, and who says the opposite."""

    verdict: Verdict
    kind: Kind
    others: tuple[Verdict, ...] = ()


def settle(spoken: Sequence[tuple[Kind, Verdict]]) -> Settled:
    """Believes the first source that speaks.

    spoken: best first. A later source disagrees when one says that the node runs and the other that it does not; one
    that is refused only because of another node is no disagreement about its own operator.
    """
    speaking = [(kind, verdict) for kind, verdict in spoken if verdict.status is not Status.UNKNOWN]
    if not speaking:
        silent = next((verdict for _, verdict in spoken), None)
        return Settled(
            silent or Verdict(Status.UNKNOWN, "no source speaks about it", "convert the model to find out"), ""
        )
    (kind, believed), *rest = speaking
    others = () if believed.follows else tuple(other for _, other in rest if other.runs is not believed.runs)
    return Settled(believed, kind, others)


def is_constant(node: NodeFacts) -> bool:
    """Whether the node gives constants only, which runtimes compute once, before their engines are asked.

    Quantized weights stay as they are: ONNX Runtime's constant folding leaves DequantizeLinear to the engine.
    """
    if node.op == "DequantizeLinear":
        return False
    return bool(node.outputs) and all(value is None or value.foldable for value in node.outputs)


class Shelf:
    """What the package holds about one version of a target: its measured table, and its operator table."""

    def __init__(self, target: Target, version: str | None) -> None:
        """Loads both, where there are any. The measured table speaks for the versions that an engine speaks for."""
        self._target, self._version = target, version
        engine = target.measured if target.measured and target.asks_engine(version) else None
        self.measured: Measured | None = load_measured(engine) if engine else None
        self.table: Table | None
        # told: that a lower version's table had to be taken.
        self.table, self.told = table_for(target, version)
        self._installed = next((lazy.version_of(name) for name in target.distributions), None)

    @property
    def extensible(self) -> bool:
        """Whether a library can bring operators that the target does not have."""
        return bool(self._target.custom_ops) and self._target.asks_engine(self._version)

    @property
    def feeds_defaults(self) -> bool:
        """Whether a caller may feed inputs with default values: compilers build them in, ONNX Runtime does not."""
        return self._target.name in ("onnxruntime", "onnxruntime-web")

    @property
    def falls_back(self) -> bool:
        """Whether what the target refuses goes to another engine."""
        return self.table is not None and self.table.falls_back

    @property
    def sources(self) -> list[str]:
        """Labels, best first."""
        return [each.source for each in (self.measured, self.table) if each is not None]

    def say(self, node: NodeFacts, *, calls: bool) -> list[tuple[Kind, Verdict]]:
        """What the tables say, best first. calls: the node calls a function of the model, whose body is judged."""
        if is_newer(node.domain, node.opset):
            newest = newest_opset(node.domain)
            told = f"opset {node.opset} is newer than {newest}, the newest that is known here"
            return [("table", Verdict(Status.UNKNOWN, told, f"export the model with opset {newest} or lower"))]
        if calls:
            return [("table", supported(source)) for source in self.sources[-1:]]
        if self.falls_back and is_constant(node):
            return [("table", supported(f"ONNX Runtime: {_BEFORE_THE_PROVIDER}"))]
        spoken: list[tuple[Kind, Verdict]] = []
        if self.measured is not None:
            spoken.append(("measurement", _from(self.measured.judge(node), self.measured.source)))
        if self.table is not None:
            spoken.append(("table", _from(self.table.judge(node), self.table.source)))
        if self.measured is not None and all(verdict.status is Status.UNKNOWN for _, verdict in spoken):
            spoken.append(("measurement", self.measured.near(node)))
        return spoken

    def heard(self, said: Verdict, node: NodeFacts) -> list[tuple[Kind, Verdict]]:
        """The engine's own verdict; behind a measurement on this version, when it takes the node and errs."""
        if said.runs and self.measured is not None and self._is_measured_version():
            wrong = self.measured.wrong(node)
            if wrong is not None:
                remedy = "rewrite the node with others, or keep this model in ONNX Runtime"
                measured = unsupported(wrong, remedy=remedy, source=self.measured.source)
                return [("measurement", measured), ("engine", said)]
        return [("engine", said)]

    def _is_measured_version(self) -> bool:
        version = self.measured.version if self.measured is not None else ""
        here = self._installed or ""
        return bool(version) and (here == version or here.startswith((f"{version}.", f"{version}-")))


def _from(verdict: Verdict, source: str) -> Verdict:
    return verdict if verdict.source else dataclasses.replace(verdict, source=source)
