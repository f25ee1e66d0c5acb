"""Opens both sides, finds a sample on which they part, and then where (runs in the worker)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.comparison import Side, carry_of, runtime_options, shared_samples
from deploykit.data.dtypes import cast
from deploykit.locating.lineage import lineage_of
from deploykit.locating.matching import by_lineage, differences, without_renumbered
from deploykit.locating.repro import save_repro
from deploykit.locating.rows import Row, compare_tensor
from deploykit.locating.search import Search
from deploykit.parity import TOLERANCES, OutputComparison, Tolerance
from deploykit.progress import OnProgress, Progress, silent
from deploykit.runtime import open_runtime
from deploykit.taps import Taps, open_taps
from deploykit.target import format_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from deploykit.locating.lineage import Lineage

    Array = np.ndarray[Any, np.dtype[Any]]

_NEIGHBOURS = 3  # tensors shown before and behind the first one that differs


@dataclasses.dataclass(frozen=True, slots=True)
class Failing:
    """A sample on which outputs differ: its name, the reference's feeds, and the outputs that do."""

    name: str
    feeds: Mapping[str, Array]
    outputs: list[str]


def locate_job(
    reference: str,
    candidate: str,
    data: dict[str, Any],
    row: str,
    rtol: float | None = None,
    atol: float | None = None,
    min_sqnr: float | None = None,
    options: dict[str, Any] | None = None,
    save: str | None = None,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """The first tensor that differs on the first sample whose outputs do; arguments as of `comparison.compare_job`.

    save: where the failing part is written. Returns JSON: "first" (None when no output differs on any sample, or none
    does once its tensors are read), "sample", "outputs", "matched" and "tensors" (how many of how many), "looks" (runs
    of each side), "neighbourhood" (rows in order), "alone" (whether the part differs on equal inputs), "repro".
    """
    paths = (Path(reference), Path(candidate))
    wanted = runtime_options(options)
    exact = dataclasses.replace(wanted, optimize=False)
    tolerance = TOLERANCES[row].override(rtol, atol, min_sqnr)
    failing = _failing(paths, exact, wanted, data, tolerance, on_progress)
    if failing is None:
        return {"first": None, "sample": None}
    pair = _Pair(open_taps(paths[0], exact), open_taps(paths[1], wanted), failing.feeds, tolerance, on_progress)
    return {"row": row, "limits": tolerance.describe()} | pair.locate(
        failing, None if save is None else Path(save), format_of(paths[1]) or ""
    )


def _failing(
    paths: Sequence[Path], exact: Any, wanted: Any, data: dict[str, Any], tolerance: Tolerance, on_progress: OnProgress
) -> Failing | None:
    """The first sample with an output beyond the tolerance."""
    first, second = open_runtime(paths[0], exact), open_runtime(paths[1], wanted)
    try:
        dataset = shared_samples(data, first, second, paths)
        sides = [Side(first, carry_of(data), "reference"), Side(second, carry_of(data), "candidate")]
        for index, sample in enumerate(dataset):
            on_progress(Progress("looking for a sample that differs", sample.name, index, dataset.total))
            feeds = sides[0].feeds(sample)
            ours, theirs = (side(sample) for side in sides)
            bad = []
            for name in (name for name in ours if name in theirs):
                comparison = OutputComparison(name, tolerance)
                comparison.add(ours[name], theirs[name])
                bad += [] if comparison.passed else [name]
            if bad:
                return Failing(sample.name, feeds, bad)
        return None
    finally:
        first.close()
        second.close()


class _Pair:
    """Both sides, open for reading inside, on one sample."""

    def __init__(
        self,
        reference: Taps,
        candidate: Taps,
        feeds: Mapping[str, Array],
        tolerance: Tolerance,
        on_progress: OnProgress,
    ) -> None:
        self._reference = reference
        self._candidate = candidate
        if reference.model is None:
            raise AssertionError("the reference is ONNX: `deploykit.validate` refuses others")
        self._graph = reference.model
        self._feeds = dict(feeds)
        self._theirs = {spec.name: cast(feeds[spec.name], spec, "the sample")[0] for spec in candidate.inputs}
        self._tolerance = tolerance
        self._on_progress = on_progress
        self._lineage: Lineage = lineage_of(self._graph, {n: a.shape for n, a in feeds.items()})
        self.known = self._match()

    def _match(self) -> dict[str, str]:
        tensors = list(self._lineage.maker)
        known: dict[str, str] = self._candidate.find(tensors)
        other = self._candidate.model
        if other is None:
            return known
        known = without_renumbered(known, self._graph, other)
        named = self._reference.own_names & self._candidate.own_names
        found = by_lineage(self._graph, other, known, named)
        return known | {name: own for name, own in found.items() if name in self._lineage.maker}

    def _compare(self, names: Sequence[str]) -> dict[str, Row | None]:
        self._on_progress(Progress("locating", f"{len(names)} tensors"))
        ours = self._reference.read(self._feeds, names)
        theirs = self._candidate.read(self._theirs, [self.known[name] for name in names])
        rows: dict[str, Row | None] = {}
        for name in names:  # each pair is dropped once compared: comparing takes a multiple of it
            rows[name] = compare_tensor(name, ours.pop(name), theirs[self.known[name]], self._tolerance)
        return rows

    def locate(self, failing: Failing, save: Path | None, format: str) -> dict[str, Any]:
        """The result of `locate_job`."""
        search = Search(self._lineage, self.known, self._compare)
        facts: dict[str, Any] = {
            "first": None,
            "sample": failing.name,
            "outputs": failing.outputs,
            "matched": len(self.known),
            "tensors": len(self._lineage.maker),
            "engines": {"reference": self._reference.engine, "candidate": self._candidate.engine},
            "execution": self._candidate.execution,
        }
        shown = [name for name in failing.outputs if name in self.known]
        search.look(shown)
        start = next((name for name in shown if (row := search.rows.get(name)) and not row.agrees), None)
        if start is None:
            return {**facts, "looks": search.looks, "readable": bool(shown)}
        tensor, parents = search.first(start)
        around = self._around(search, tensor, start)
        facts |= {
            "looks": search.looks,
            "readable": True,
            "first": self._described(search.rows[tensor], parents),
            "neighbourhood": [self._line(search, name, tensor) for name in around],
            **self._alone(tensor, parents, save, format),
        }
        return facts

    def _described(self, row: Row | None, parents: Sequence[str]) -> dict[str, Any]:
        if row is None:
            raise AssertionError("a tensor that differs has a row")
        step = self._lineage.step(row.tensor)
        inner = self._candidate.tensors[self.known[row.tensor]]
        steps = self._lineage.between(row.tensor, parents)
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
            "max_rel": row.max_rel,
            "first_bad": row.as_dict()["first_bad"],
            "values": row.as_dict()["values"],
            "problem": row.problem,
            "inputs": list(parents),
            "steps": [{"node": each.name, "op": each.op} for each in steps],
            "differences": self._differences(steps, inner.node),
        }

    def _differences(self, steps: Sequence[Any], node: str) -> list[str]:
        other = self._candidate.model
        if other is None or not steps:
            return []
        names = [step.name for step in steps]
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
        behind = [name for name in self._lineage.after(tensor) if name in self.known and name in leads]
        search.look(behind[:_NEIGHBOURS])
        return [name for name in (*before, tensor, *behind[:_NEIGHBOURS]) if search.rows.get(name) is not None]

    def _line(self, search: Search, name: str, first: str) -> dict[str, Any]:
        row = search.rows[name]
        step = self._lineage.step(name)
        facts = row.as_dict() if row is not None else {}
        return {**facts, "node": step.name, "op": step.op, "first": name == first}

    def _alone(self, tensor: str, parents: Sequence[str], save: Path | None, format: str) -> dict[str, Any]:
        """Whether the part differs by itself: the candidate's, on the reference's values, against the reference's.

        The reference's values are rounded to the candidate's types first, and the reference computes with them.
        """
        values = self._reference.read(self._feeds, parents) if parents else {}
        theirs = self._candidate.read(self._theirs, [self.known[name] for name in parents]) if parents else {}
        given, own = {}, {}
        for name in parents:
            template = theirs[self.known[name]]
            own[self.known[name]] = values[name].astype(template.dtype).reshape(template.shape)
            given[name] = own[self.known[name]].astype(values[name].dtype).reshape(values[name].shape)
        expected = self._reference.read(self._feeds, [tensor], given)[tensor]
        found = self._candidate.read(self._theirs, [self.known[tensor]], own)[self.known[tensor]]
        row = compare_tensor(tensor, expected, found, self._tolerance)
        result: dict[str, Any] = {"alone": None if row is None else row.as_dict(), "repro": None}
        if save is not None:
            result["repro"] = save_repro(
                save, self._graph, self._candidate, tensor, self.known, given, self._feeds, format
            )
        return result
