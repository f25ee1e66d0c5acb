"""Measured tables: what engines did with nodes in a sweep, for verdicts where the engine is not installed.

A point is an operator's revision with the types of its inputs and outputs, which inputs are constant, the rank of the
first one and whether dimensions are open. Where attributes decided, the point says which.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from typing import TYPE_CHECKING, Any

from deploykit.opsupport.limits import load_limits
from deploykit.opsupport.verdict import Verdict, conditional, supported, unknown, unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.opsupport.facts import NodeFacts, TensorFacts
    from deploykit.opsupport.limits import Limits

FOLDER = "measurements"
# Attributes that are told apart: what is a list, a graph or a tensor has no few values.
_SCALARS = (bool, int, float, str)
ABSENT = "(absent)"
_PROBE = "deploykit check --probe, where the engine is installed"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One engine's measured table. limits: rules found in the same sweeps, which know more than single points."""

    engine: str
    version: str
    title: str
    operators: Mapping[str, Mapping[str, Mapping[str, Any]]]
    reasons: tuple[str, ...]
    limits: Limits | None

    @property
    def source(self) -> str:
        """Who says so: "measured on OpenVINO 2026.4.1"."""
        return f"measured on {self.title} {self.version}"

    def judge(self, node: NodeFacts) -> Verdict:
        """What was measured of nodes like this one; UNKNOWN where none was."""
        limit = self.limits.judge(node) if self.limits is not None else None
        if limit is not None:
            return limit
        points = self.operators.get(node.key, {}).get(str(node.since))
        if points is None:
            revisions = ", ".join(self.operators.get(node.key, {}))
            told = f"its revisions {revisions} were measured, not {node.since}" if revisions else "it was not measured"
            return self._unmeasured(told)
        point = points.get(signature(node))
        if point is None:
            return self._unmeasured(f"{node.op} was not measured with {_told(node)}")
        return self._said(node, point)

    def near(self, node: NodeFacts) -> Verdict:
        """Of a node whose point differs in the rank or in open sizes only: a condition where all of those ran."""
        told = f"{node.op} was not measured with {_told(node)}"
        like = signature(node).split()[:2]
        points = self.operators.get(node.key, {}).get(str(node.since), {})
        near = {name: point for name, point in points.items() if name.split()[:2] == like}
        if not near or any(point != 1 for point in near.values()):
            return self._unmeasured(told)
        ranks = sorted({name.split()[2] for name in near} - {"?"})
        ran = f"it ran in rank {', '.join(ranks)}" if ranks else "it ran with another shape"
        return conditional(f"{told}; {ran}", remedy=_PROBE, source=self.source)

    def wrong(self, node: NodeFacts) -> str | None:
        """Why the values are wrong although the engine takes the node; None when that is not known."""
        point = self.operators.get(node.key, {}).get(str(node.since), {}).get(signature(node))
        if point is None or point == 1:
            return None
        verdict = self._said(node, point)
        return verdict.reason if not verdict.runs and verdict.reason.startswith(WRONG) else None

    def _unmeasured(self, why: str) -> Verdict:
        return unknown(why, remedy=_PROBE, source=self.source)

    def _said(self, node: NodeFacts, point: Any) -> Verdict:
        """A point is 1 (taken), [reason] (refused), or decided by an attribute, or both ways for an unknown reason."""
        if point == 1:
            return supported(self.source)
        if isinstance(point, list):
            return self._refused(node, point[0], "")
        name = point.get("attribute")
        if name is None:
            told = f"nodes like this one ran, and others did not: {self.reasons[point['refused'][0]]}"
            return conditional(
                told, remedy="deploykit check --probe, where the engine is installed", source=self.source
            )
        value = json.dumps(plain(node.attributes.get(name, ABSENT)))
        if value in point["taken"]:
            return supported(self.source)
        if value in point["refused"]:
            return self._refused(node, point["refused"][value], f"with {name} {value}: ")
        return conditional(
            f"{name} decides, and {value} was not measured; these ran: {', '.join(point['taken'])}",
            remedy=f"use {name} {point['taken'][0]}, or deploykit check --probe where the engine is installed",
            source=self.source,
        )

    def _refused(self, node: NodeFacts, reason: int, where: str) -> Verdict:
        told, like = self.reasons[reason], _told(node)
        remedy = f"change {like}, or rewrite {node.op} with other operators"
        start, told = (f"{WRONG} ", told.removeprefix(WRONG).strip()) if told.startswith(WRONG) else ("", told)
        return unsupported(f"{start}{where}{told} (with {like})", remedy=remedy, source=self.source)


WRONG = "takes it and computes wrong values:"


def plain(value: Any) -> Any:
    """An attribute's value as it is compared: text for bytes; "(other)" for what has no few values."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value if isinstance(value, _SCALARS) else "(other)"


def signature(node: NodeFacts) -> str:
    """A node's point, as the tables name it: `float32,int64>float32 vc 4` and ` open` where sizes are symbols."""
    inputs = _joined([_kind(tensor) for tensor in node.inputs])
    outputs = _joined([_kind(tensor) for tensor in node.outputs])
    given = [tensor for tensor in node.inputs if tensor is not None]
    mask = "".join("-" if tensor is None else "c" if tensor.foldable else "v" for tensor in node.inputs)
    first = given[0] if given else None
    rank = "?" if first is None or first.rank is None else str(first.rank)
    sizes = [size for tensor in given if not tensor.foldable for size in tensor.shape or ()]
    opened = " open" if any(not isinstance(size, int) for size in sizes) else ""
    return f"{inputs}>{outputs} {_squeezed(mask)} {rank}{opened}"


def _kind(tensor: TensorFacts | None) -> str:
    return "-" if tensor is None else tensor.dtype


def _joined(kinds: list[str]) -> str:
    """Types with repeated ones at the end told once: a Concat of 30 is a Concat of 3."""
    while len(kinds) > 2 and kinds[-1] == kinds[-2] == kinds[-3]:
        kinds = kinds[:-1]
    return ",".join(kinds)


def _squeezed(mask: str) -> str:
    while len(mask) > 2 and mask[-1] == mask[-2] == mask[-3]:
        mask = mask[:-1]
    return mask


def _told(node: NodeFacts) -> str:
    kinds = " and ".join(dict.fromkeys(_kind(tensor) for tensor in node.inputs if tensor is not None))
    ranks = [str(tensor.rank) for tensor in node.inputs[:1] if tensor is not None and tensor.rank is not None]
    constant = [str(index) for index, tensor in enumerate(node.inputs) if tensor is not None and tensor.foldable]
    return ", ".join(
        [
            f"the types {kinds}" if kinds else "its types",
            *(f"rank {rank}" for rank in ranks),
            *([f"constant inputs {' '.join(constant)}"] if constant else []),
        ]
    )


@functools.cache
def load_measured(engine: str) -> Measured | None:
    """The measured table of an engine by its target's name; None when the package ships none."""
    folder = importlib.resources.files("deploykit.opsupport") / FOLDER
    if not folder.is_dir():
        return None
    found = sorted(each.name for each in folder.iterdir() if _engine_of(each.name) == engine)
    if not found:
        return None
    facts = json.loads((folder / found[-1]).read_text(encoding="utf-8"))
    return Measured(
        facts["engine"],
        facts["version"],
        facts["title"],
        facts["operators"],
        tuple(facts["reasons"]),
        load_limits(engine),
    )


def _engine_of(name: str) -> str:
    """`tensorrt-rtx-1.7.1.116.json` is of `tensorrt-rtx`."""
    stem = name.removesuffix(".json")
    return stem.rpartition("-")[0] if name.endswith(".json") else ""
