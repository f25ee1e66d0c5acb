"""fp16 with automatic mixed precision: what has to stay fp32 is measured on data, and the report names it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from deploykit.converters.coreml.islands import Islands
from deploykit.converters.coreml.measuring import Evidence, Feeder, ProgramSwitches
from deploykit.converters.coreml.precision import Candidate, candidates
from deploykit.converters.coreml.simulator.halves import HalfInterpreter
from deploykit.data import open_request
from deploykit.data.holdout import HELD_OUT, calibrating, carried, held_out, verifying, widened
from deploykit.half_search import JUDGES, Loss, Refinement, Search
from deploykit.parity import TOLERANCES
from deploykit.progress import silent
from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.converters.coreml.origins import Origins
    from deploykit.converters.images import ImageInput
    from deploykit.data import Dataset, Sample

COSTLY = "rounding it costs most of the accuracy on the data"
# Cost is bounded by work, not by time, so that every machine decides the same: multiply-accumulates of the samples that
# magnitudes are taken from, of the search, and of one evaluation of all judges.
EVIDENCE_WORK, SEARCH_WORK, JUDGING_WORK = 5e10, 1e11, 1e10
EVALUATIONS = 96, 12  # at most, at least
# More than this share in fp32, and fp16 is not what the model needs.
LARGEST_SHARE = 0.25
# At most this share is left in fp32 for a margin on data that was not seen, where fp16 is within the tolerance.
FOR_MARGIN = 0.05
NAMED = 10


@dataclasses.dataclass(slots=True)
class Mixture:
    """What is decided. half: names of the operations to be fp16. islands: the reason by name of the others.

    measured: the facts for the manifest.
    """

    half: set[str]
    islands: dict[str, str]
    known: dict[str, Candidate]
    measured: dict[str, Any]
    on_random_data: bool

    def findings(self, origins: Origins, refused: Sequence[str]) -> list[Finding]:
        """What a report says, the most important first. refused: operations that coremltools could not make fp16."""
        islands = {**self.islands, **dict.fromkeys(refused, "coremltools has no fp16 form of it")}
        found = []
        if self.on_random_data:
            found.append(
                warning(
                    "DK541",
                    "which operations stay fp32 was measured on random inputs, whose magnitudes may not be those of "
                    "real ones",
                    target="coreml",
                    hint="--calib DATA measures on your data",
                )
            )
        total = max(len(self.known), 1)
        if len(islands) / total > LARGEST_SHARE:
            found.append(
                warning(
                    "DK543",
                    f"{len(islands)} of {total} operations stay fp32, so fp16 saves little here",
                    target="coreml",
                    hint="--option compute_precision=fp32, or int8-weights where size matters",
                )
            )
        costly = sum(reason == COSTLY for reason in islands.values())
        if costly:
            found.append(
                note(
                    "DK542",
                    f"with every operation in fp16 that it can hold, outputs were off by {self.measured['before']:.3g} "
                    f"times what is allowed on the data; with {costly} of them in fp32 it is "
                    f"{self.measured['after']:.3g} times",
                    target="coreml",
                )
            )
        return [*found, *_named(islands, self.known, origins)]


def _named(islands: Mapping[str, str], known: Mapping[str, Candidate], origins: Origins) -> list[Finding]:
    """Each island with its ONNX node; those of one operator and reason together where there are many."""
    rows = []
    for name, reason in islands.items():
        operation = known[name].kind
        node, op = origins.of(known[name].operation) or ("", "")
        rows.append((operation, name, node, op, reason))
    if len(rows) <= NAMED:
        return [_island(operation, name, node, op, reason) for operation, name, node, op, reason in rows]
    found = []
    kinds: dict[tuple[str, str], list[tuple[str, str, str, str, str]]] = {}
    for row in rows:
        kinds.setdefault((row[0], _kind(row[4])), []).append(row)
    for same in kinds.values():
        found.append(_island(*same[0]))
        if len(same) > 1:
            nodes = ", ".join(repr(node or name) for _, name, node, _, _ in same[1:NAMED])
            more = f" and {len(same) - NAMED} more" if len(same) > NAMED else ""
            found.append(
                note(
                    "DK540",
                    f"{len(same) - 1} more {same[0][0]} stay fp32 for the same reason: those of {nodes}{more}",
                    target="coreml",
                    op=same[0][3] or None,
                )
            )
    return found


def _island(operation: str, name: str, node: str, op: str, reason: str) -> Finding:
    told = f" of node {node!r} ({op})" if node else f" {name!r}"
    return note("DK540", f"{operation}{told} stays fp32: {reason}", target="coreml", node=node or None, op=op or None)


def _kind(reason: str) -> str:
    """A reason without names and numbers."""
    return " ".join(word for word in reason.split() if not any(c.isdigit() or c in "'\"_" for c in word))


def mix(
    function: Any,
    inputs: Sequence[TensorSpec],
    names: Mapping[str, str],
    model: Path,
    request: Mapping[str, Any],
    images: Mapping[str, ImageInput],
) -> Mixture:
    """Decides for the operations of an optimized fp32 function.

    names: the package's name of inputs and outputs by the model's. request: a `DataRequest`; without a source the
    inputs are random. images: the inputs that the function takes as pixels.
    Raises what reading data raises, and UnavailableError (DK502) for what is not simulated.
    """
    return _Mixer(function, inputs, names, model, request, images).run()


class _Mixer:
    def __init__(
        self,
        function: Any,
        inputs: Sequence[TensorSpec],
        names: Mapping[str, str],
        model: Path,
        request: Mapping[str, Any],
        images: Mapping[str, ImageInput],
    ) -> None:
        self._function = function
        self._request = request
        self._carry = carried(request)
        self._dataset: Dataset = open_request(widened(request), inputs, model)  # type: ignore[arg-type]
        self._held = held_out(self._dataset, request)
        self._interpreter = HalfInterpreter(function, model.name)
        self._feeder = Feeder(inputs, names, self._carry, images)
        self._known = candidates(function)
        self._tolerance = TOLERANCES["fp16"]

    def run(self) -> Mixture:
        evidence, seen = self._evidence()
        islands = Islands(self._function, self._known, evidence).reasons()
        switches = ProgramSwitches(self._interpreter, self._feeder, self._known)
        every = list(switches.nodes)
        switches.nodes = [name for name in every if name not in islands]
        work = evidence.work / max(seen, 1)
        judges = list(itertools.islice(self._calibrating(), self._judging(work)))
        found = self._search(switches, judges, islands, work)
        before, evaluations = found.before, found.evaluations
        checked = self._checked(switches, islands, every, work)
        if checked is not None and checked > 1.0:
            found = self._search(switches, [*judges, *self._verifying(work)], islands, work)
            evaluations += found.evaluations
        order = {name: place for place, name in enumerate(self._known)}
        half = switches.all(set(every) - set(islands))
        measured = {
            "data": self._request["source"] or "random",
            "samples": seen,
            "judged": len(judges),
            "before": before,
            "after": found.after,
            "held_out": checked,
            "evaluations": evaluations,
            "fp16": len(half),
            "fp32": len(self._known) - len(half),
        }
        kept = {name: islands[name] for name in sorted(islands, key=lambda name: order[name])}
        return Mixture(half, kept, self._known, measured, self._request["source"] is None)

    def _calibrating(self) -> Any:
        return calibrating(self._dataset, self._held)

    def _judging(self, work: float) -> int:
        """How many samples judge, of those that cost so much each."""
        most = 4 * JUDGES if self._carry else JUDGES
        return max(1, min(most, int(JUDGING_WORK / max(work, 1.0))))

    def _verifying(self, work: float) -> list[Sample]:
        held = verifying(self._dataset, self._held, HELD_OUT) if self._held else iter(())
        return list(itertools.islice(held, self._judging(work)))

    def _evidence(self) -> tuple[Evidence, int]:
        evidence, seen = Evidence(), 0
        self._interpreter.witness = evidence.note
        for _ in self._feeder.outputs(self._interpreter, self._calibrating(), {}):
            seen += 1
            if evidence.work > EVIDENCE_WORK:
                break
        self._interpreter.witness = None
        return evidence, seen

    def _search(
        self, switches: ProgramSwitches, judges: list[Sample], islands: dict[str, str], work: float
    ) -> Refinement:
        """Adds to the islands what the judges need."""
        most, least = EVALUATIONS
        search = Search(
            switches,
            judges,
            self._tolerance,
            silent,
            in_order=bool(self._carry),
            largest_share=1.0,
            evaluations=max(least, min(most, int(SEARCH_WORK / max(work, 1.0)))),
        )
        found = search.run()
        if found.before <= 1.0 and len(found.islands) > FOR_MARGIN * len(switches.nodes):
            # Within the tolerance as it is: what makes it safer on other data would cost too much.
            found = dataclasses.replace(found, after=found.before, islands=())
        islands.update(dict.fromkeys(found.islands, COSTLY))
        switches.nodes = [name for name in switches.nodes if name not in islands]
        return found

    def _checked(
        self, switches: ProgramSwitches, islands: Mapping[str, str], every: Sequence[str], work: float
    ) -> float | None:
        """How far the mixture is off on samples that it was not made from, in units of what is allowed."""
        samples = self._verifying(work)
        if not samples:
            return None
        reference = switches.run(samples, ())
        found = switches.run(samples, [name for name in every if name not in islands])
        return Loss(reference, self._tolerance).of(found, range(len(samples)))[0]
