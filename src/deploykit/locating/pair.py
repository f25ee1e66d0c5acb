"""Two models, open for reading inside, on one sample: where they part."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.data.dtypes import cast
from deploykit.locating.lineage import lineage_of
from deploykit.locating.matching import by_lineage, differences, without_renumbered
from deploykit.locating.repro import save_repro
from deploykit.locating.rows import Row, compare_tensor
from deploykit.locating.search import Cuts, Search
from deploykit.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from deploykit.locating.lineage import Step
    from deploykit.parity import Tolerance
    from deploykit.progress import OnProgress
    from deploykit.taps import Taps

    Array = np.ndarray[Any, np.dtype[Any]]

_NEIGHBOURS = 3  # tensors shown before and behind the first one that differs
_RESTARTS = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A tensor that differs while what it is made of agrees.

    parents: the nearest compared tensors that it is made of. given: their values, which both sides can start from.
    alone: the row of the part on these values, None where the two say nothing about each other.
    """

    search: Search
    tensor: str
    parents: list[str]
    given: dict[str, Array]
    alone: Row | None


class Pair:
    """Both sides on one sample."""

    def __init__(
        self,
        reference: Taps,
        candidate: Taps,
        feeds: Mapping[str, Array],
        tolerance: Tolerance,
        on_progress: OnProgress,
    ) -> None:
        """feeds: the reference's."""
        if reference.model is None:
            raise AssertionError("the reference is ONNX: `deploykit.validate` refuses others")
        self._reference = reference
        self._candidate = candidate
        self._graph = reference.model
        self._feeds = dict(feeds)
        self._theirs = {spec.name: cast(feeds[spec.name], spec, "the sample")[0] for spec in candidate.inputs}
        self._tolerance = tolerance
        self._on_progress = on_progress
        self._lineage = lineage_of(self._graph, {name: array.shape for name, array in feeds.items()})
        self._known = self._match()
        self._forms: dict[str, tuple[Any, tuple[int, ...]]] = {}  # the candidate's type and shape of a tensor
        self._base: dict[str, Array] = {}  # the reference's values that the candidate goes on from
        self._looks = 0

    def _match(self) -> dict[str, str]:
        known = self._candidate.find(self._lineage.maker)
        other = self._candidate.model
        if other is None:
            return known
        known = without_renumbered(known, self._graph, other)
        named = self._reference.own_names & self._candidate.own_names
        found = by_lineage(self._graph, other, known, named)
        return known | {name: own for name, own in found.items() if name in self._lineage.maker}

    def _compare(self, names: Sequence[str]) -> dict[str, Row | None]:
        self._on_progress(Progress("locating", f"{len(names)} tensors"))
        self._looks += 1
        ours = self._reference.read(self._feeds, names)
        theirs = self._candidate.read(self._theirs, [self._known[name] for name in names], self._given(self._base))
        rows: dict[str, Row | None] = {}
        for name in names:  # each pair is dropped once compared: comparing takes a multiple of it
            rows[name] = compare_tensor(name, ours.pop(name), theirs[self._known[name]], self._tolerance)
        return rows

    def locate(self, outputs: Sequence[str], save: Path | None, format: str) -> dict[str, Any]:
        """The result of `locate_job`, for outputs that differ in a plain run."""
        facts: dict[str, Any] = {
            "first": None,
            "outputs": list(outputs),
            "matched": len(self._known),
            "tensors": len(self._lineage.maker),
            "engines": {"reference": self._reference.engine, "candidate": self._candidate.engine},
            "execution": self._candidate.execution,
        }
        rows = self._compare([name for name in outputs if name in self._known])
        start = next((row for row in rows.values() if row is not None and not row.agrees), None)
        if start is None:
            return {**facts, "looks": self._looks, "readable": any(row is not None for row in rows.values())}
        found, added_up = self._fault(start)
        tensor, given = found.tensor, found.given
        around = self._around(found.search, tensor, start.tensor)
        facts |= {
            "readable": True,
            "first": self._described(found.search.rows[tensor], found.parents),
            "neighbourhood": [self._line(found.search, name, tensor) for name in around],
            "alone": None if found.alone is None else found.alone.as_dict(),
            "added_up": added_up,
            "repro": None,
        }
        if save is not None:
            own = self._given(given)
            like = self._candidate.read(self._theirs, [self._known[tensor]], own)[self._known[tensor]]
            facts["repro"] = save_repro(
                save, self._graph, self._candidate, tensor, self._known, given, own, like, self._feeds, format
            )
        return facts | {"looks": self._looks}

    def _fault(self, start: Row) -> tuple[Found, list[str]]:
        """What is to be reported, and tensors before it at which rounding alone was beyond the limit.

        Rounding adds up along a deep model until some tensor is beyond the limit, which hides a fault behind it. So
        where the part that makes a tensor agrees by itself, the candidate goes on with the reference's values from
        there; these tensors are named. Where no part differs by itself, the first of them is reported.
        """
        # What makes NaN or infinities is looked for as such: the differences before them are another matter.
        differs = _not_finite if _not_finite(start) else _beyond
        found: list[Found] = []
        settled = -1
        for _ in range(_RESTARTS):
            search = Search(self._lineage, self._known, self._compare, differs, settled=settled)
            search.look([start.tensor])
            row = search.rows.get(start.tensor)
            if row is None or not differs(row):
                break
            tensor, parents = search.first(start.tensor)
            given = self._shared_values(parents)
            alone = self._alone(tensor, given)
            found.append(Found(search, tensor, parents, given, alone))
            if alone is None or differs(alone):
                return found[-1], [each.tensor for each in found[:-1]]
            settled = self._lineage.maker[tensor]
            if tensor == start.tensor:
                break
            self._base = self._shared_values(self._crossing(tensor, start.tensor))
        self._base = {}
        return found[0], [each.tensor for each in found]

    def _crossing(self, tensor: str, output: str) -> list[str]:
        """What lives across the step that makes a tensor on the way to an output, and both sides have."""
        cuts = Cuts(self._lineage, output)
        return [name for name in cuts.at(cuts.place(tensor)) if name in self._known]

    def _shared_values(self, names: Sequence[str]) -> dict[str, Array]:
        """The reference's values, rounded to the candidate's types, in the reference's: both sides can start there.

        Left out is what the two sides hold in another arrangement.
        """
        if not names:
            return {}
        ours = self._reference.read(self._feeds, names)
        theirs = self._candidate.read(self._theirs, [self._known[name] for name in names], self._given(self._base))
        shared = {}
        for name in names:
            value, like = ours.pop(name), theirs[self._known[name]]
            if value.size == like.size and value.dtype.kind == like.dtype.kind:
                shared[name] = value.astype(like.dtype).astype(value.dtype)
                self._forms[name] = (like.dtype, like.shape)
        return shared

    def _given(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Values of `_shared_values` by the candidate's names, in its types and shapes."""
        made = {}
        for name, array in values.items():
            dtype, shape = self._forms[name]
            made[self._known[name]] = array.astype(dtype).reshape(shape)
        return made

    def _alone(self, tensor: str, given: Mapping[str, Array]) -> Row | None:
        """The candidate's part against the reference's, both on the given values."""
        expected = self._reference.read(self._feeds, [tensor], given)[tensor]
        own = self._known[tensor]
        found = self._candidate.read(self._theirs, [own], self._given(given))[own]
        return compare_tensor(tensor, expected, found, self._tolerance)

    def _described(self, row: Row | None, parents: Sequence[str]) -> dict[str, Any]:
        if row is None:
            raise AssertionError("a tensor that differs has a row")
        step = self._lineage.step(row.tensor)
        inner = self._candidate.tensors[self._known[row.tensor]]
        steps = self._lineage.between(row.tensor, parents)
        facts = row.as_dict()
        return {
            "node": inner.node,
            "op": inner.op,
            "tensor": row.tensor,
            "source_node": step.name,
            "max_abs": row.max_abs,
            "sqnr_db": row.sqnr_db,
            "source_op": step.op,
            "scope": step.scope,
            "candidate_tensor": inner.name,
            **{key: facts[key] for key in ("max_rel", "first_bad", "values", "problem", "not_finite")},
            "inputs": list(parents),
            "steps": [{"node": each.name, "op": each.op} for each in steps],
            "differences": self._differences(steps, inner.node),
        }

    def _differences(self, steps: Sequence[Step], node: str) -> list[str]:
        other = self._candidate.model
        if other is None:
            return []
        names = {step.name for step in steps}
        ours = [each for each in self._graph.graph if each.name in names]
        theirs = next((each for each in other.graph if each.name == node), None)
        return differences(ours, theirs) if ours and theirs is not None else []

    def _around(self, search: Search, tensor: str, output: str) -> list[str]:
        """Tensors on the way from what the tensor is made of to the output, in order, compared."""
        before: list[str] = []
        edge = [tensor]
        while edge and len(before) < _NEIGHBOURS:
            edge = [name for each in edge for name in search.parents(each) if name not in before]
            before += edge
        before = sorted(set(before), key=self._lineage.place)[-_NEIGHBOURS:]
        leads = {name for index in self._lineage.before(output) for name in self._lineage.steps[index].outputs}
        behind = [name for name in self._lineage.after(tensor) if name in self._known and name in leads]
        search.look(behind[:_NEIGHBOURS])
        return [name for name in (*before, tensor, *behind[:_NEIGHBOURS]) if search.rows.get(name) is not None]

    def _line(self, search: Search, name: str, first: str) -> dict[str, Any]:
        row = search.rows[name]
        step = self._lineage.step(name)
        facts = row.as_dict() if row is not None else {}
        return {**facts, "node": step.name, "op": step.op, "first": name == first}


def _beyond(row: Row) -> bool:
    return not row.agrees


def _not_finite(row: Row) -> bool:
    return row.not_finite
