"""Operator tables: what a target's documentation or source says of each operator, for engines that are not here."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from typing import TYPE_CHECKING, Any

from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported
from deploykit.report import Finding, note
from deploykit.target import nearest_lower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.opsupport.facts import NodeFacts
    from deploykit.target import Target

_FOLDER = "optables"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One operator table.

    source: what it is called in verdicts. falls_back: whether a node that it refuses goes to another engine (ONNX
    Runtime's CPU provider, the wasm backend of ONNX Runtime Web) instead of stopping the model.
    """

    name: str
    source: str
    falls_back: bool
    ops: Mapping[str, Mapping[str, Any]]

    def judge(self, node: NodeFacts) -> Verdict:
        """What the table says of a node; UNKNOWN where it does not speak."""
        row = self.ops.get(node.key)
        if row is None or row["status"] == "unsupported":
            return unsupported(
                f"the {self.source} lists no {node.op}", remedy="use other operators", source=self.source
            )
        if row["conditions"]:
            return unknown("the conditions were not looked at", remedy="convert the model", source=self.source)
        return supported(self.source)


@functools.cache
def load_table(name: str) -> Table:
    """The table of the package with that name (`tensorrt-11.1`)."""
    text = (importlib.resources.files(__package__) / _FOLDER / f"{name}.json").read_text(encoding="utf-8")
    facts = json.loads(text)
    source = f"{facts['target']} {facts['version']} operator table"
    return Table(name, source, "runs on" in facts.get("unsupported_means", ""), facts["ops"])


def table_for(target: Target, version: str | None) -> tuple[Table | None, Finding | None]:
    """The table that speaks for a target's version, and a note (DK213) where a lower version's had to be taken.

    None for a target without tables. version: as `parse_target` gave it.
    """
    asked = version or ""
    if asked in target.tables:
        return load_table(target.tables[asked]), None
    taken = nearest_lower(target, asked)
    if taken is None or taken not in target.tables:
        return None, None
    table = load_table(target.tables[taken])
    told = f"there is no operator table of {target.title} {asked}: the one of {taken}, the nearest lower, speaks for it"
    said = note("DK213", told, target=target.name, hint=f"the versions with a table: {', '.join(target.versions)}")
    return table, said
