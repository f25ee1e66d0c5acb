"""The hints of a check, as commands to run: with the model's own path, and with --fix where a rewrite applies."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from typing import TYPE_CHECKING

from deploykit import graph
from deploykit.data.request import dim_options

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.artifact import TensorSpec
    from deploykit.optimizers.rewriting import Rewrite
    from deploykit.report import Finding

    Bounds = Mapping[str, Sequence[int | None]]

REFUSED_NODE = "DK201"
LEFT_NODE = "DK218"
NEEDS_BOUNDS = "DK520"
REFUSED_WHOLE = "DK202"
IN_PARTS = "DK212"
BAD_INTERFACE = "DK529"
# Suggested where nothing is known of a dimension; the user replaces it.
_USUAL_LARGEST = 64
# A command in a target's remedy. What it calls MODEL and OUT has names here.
_COMMAND = re.compile(r"deploykit (?P<verb>\w+) MODEL(?P<rest>(?: -o OUT| --[\w-]+(?: (?!deploykit)[^\s,;()`]+)?)*)")
_CLAUSES = re.compile(r"; otherwise:? |; |, or ")
# What a table says of an operator that it does not know at all.
_LACKS_IT = re.compile(r"table (lists no|does not have) ")
# What it says of a type: `input 0 'x' is int32, not float32 or float16`.
_WANTED_TYPES = re.compile(r" is \w+, not (?P<types>\w+(?:(?:, | or )\w+)*)")
_MADE = {"simplify": "simple", "check": "fixed", "quantize": "int8", "export": "exported"}
_NOTHING_ELSE = "make this part of the model with other operators"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a check was asked for, as its commands have to repeat it.

    targets: as named, `name` or `name@version`. libraries: extension libraries by target name.
    """

    model: Path
    targets: Sequence[str]
    dims: Bounds
    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def command(self, target: str, *more: str, dims: Bounds | None = None) -> str:
        """`deploykit check MODEL --target T ...` as a shell takes it."""
        bounds = self.dims if dims is None else dims
        words = ["deploykit", "check", str(self.model), "--target", target, *more]
        return shlex.join([*words, *dim_options(bounds), *self.extensions(target)])

    def extensions(self, target: str) -> list[str]:
        """`--custom-ops FILE` for a target that was given one."""
        library = self.libraries.get(target.partition("@")[0])
        return [] if library is None else ["--custom-ops", library]

    def fixing(self, target: str) -> str:
        """The command that fixes the model for a target."""
        return self.command(target, "--fix", "-o", str(self.beside("fixed")))

    def beside(self, kind: str) -> Path:
        """Where a model that is made of this one may stand."""
        return self.model.with_name(f"{self.model.stem}-{kind}.onnx")


class Hints:
    """What a check says about nodes that a rewrite may help, about bounds that a target needs, and all else.

    The model is read when the first rewrite is asked for; nothing is tried.
    """

    def __init__(self, wanted: Wanted, *, fixable: bool = True) -> None:
        """fixable: False for what a fix has left: no rewrite is suggested."""
        self._wanted = wanted
        self._fixable = fixable
        self._model: ir.Model | None = None
        self._nodes: dict[str, ir.Node] = {}
        self._applying: dict[str, list[Rewrite]] = {}

    def improved(self, findings: Iterable[Finding], target: str, stopped: Collection[str] = ()) -> list[Finding]:
        """The findings of a target (as named), with commands as a shell takes them.

        stopped: the nodes that it does not take, or has not come to judge.
        """
        return [dataclasses.replace(finding, hint=self._hint(finding, target, stopped)) for finding in findings]

    def _hint(self, finding: Finding, target: str, stopped: Collection[str]) -> str:
        if finding.code == NEEDS_BOUNDS:
            return self._bounds(target) or finding.hint
        if finding.code == IN_PARTS and not finding.hint:
            return f"`{self._wanted.command(target, '--verbose')}` says why each of them is left"
        remedy = _without_fix(finding.hint)
        asked = self._fixable and (finding.severity != "note" or finding.code == LEFT_NODE)
        titles = self._titles_for(finding, stopped) if asked else []
        if titles:
            told = f"`{self._wanted.fixing(target)}` may solve it ({'; or '.join(titles)})"
            return f"{told}; otherwise: {self._named(remedy)}" if remedy else told
        return self._named(remedy) or (_NOTHING_ELSE if finding.hint else "")

    def _named(self, remedy: str) -> str:
        """The remedy with the model's path in its commands."""

        def command(found: re.Match[str]) -> str:
            model = self._wanted.model
            made = self._wanted.beside(_MADE.get(found["verb"], "out"))
            rest = found["rest"].replace(" -o OUT", f" -o {shlex.quote(str(made))}")
            return f"`deploykit {found['verb']} {shlex.quote(str(model))}{rest}`"

        return _COMMAND.sub(command, remedy)

    def _titles_for(self, finding: Finding, stopped: Collection[str]) -> list[str]:
        """Titles of the rewrites that apply to what a finding is about, or else to what is stopped beside it."""
        if finding.code not in (REFUSED_NODE, LEFT_NODE, REFUSED_WHOLE, BAD_INTERFACE):
            return []
        self._load()
        if finding.code == REFUSED_WHOLE and not finding.tensor:
            return self._answering(finding.message)
        if finding.code in (REFUSED_NODE, LEFT_NODE):
            node = self._nodes.get(finding.node or "")
            if node is None:
                return []
            if own := self._rewrites(node, finding.message):
                return own
            beside = [near for near in _beside(node) if near.name in stopped]
            return list(dict.fromkeys(title for near in beside for title in self._rewrites(near)))
        touching = [
            node
            for node in self._nodes.values()
            if any(value is not None and value.name == finding.tensor for value in (*node.inputs, *node.outputs))
        ]
        return list(dict.fromkeys(title for node in touching for title in self._rewrites(node, interface=True)))

    def _answering(self, reason: str) -> list[str]:
        """Titles of the rewrites that a refusal of the whole model calls for by its words: any node may be meant."""
        from deploykit.optimizers.rewrites import all_rewrites

        called = [rewrite for rewrite in all_rewrites() if rewrite.answers and rewrite.is_called_for(reason)]
        model, nodes = self._model, self._nodes.values()
        return [r.title for r in called if model is not None and any(r.applies(node, model) for node in nodes)]

    def _rewrites(self, node: ir.Node, reason: str = "", *, interface: bool = False) -> list[str]:
        """Titles of the rewrites that apply to a node, each asked once, and that the reason calls for."""
        from deploykit.optimizers.rewrites import all_rewrites

        name = node.name or ""
        if name not in self._applying and self._model is not None:
            self._applying[name] = [rewrite for rewrite in all_rewrites() if rewrite.applies(node, self._model)]
        fitting = [rewrite for rewrite in self._applying.get(name, ()) if interface or not rewrite.interface]
        called = [rewrite for rewrite in fitting if rewrite.is_called_for(reason)]
        return [rewrite.title for rewrite in called if not _in_vain(rewrite, reason)]

    def _bounds(self, target: str) -> str:
        """The check with bounds for every dimension that has none."""
        self._load()
        if self._model is None:
            return ""
        inputs, _ = graph.interface(self._model)
        symbols = dict.fromkeys(s for spec in inputs for s in spec.shape or () if isinstance(s, str))
        if not symbols:
            return ""
        given = self._wanted.dims
        dims = {**{symbol: (low_of(symbol, given), high_of(symbol, given)) for symbol in symbols}, **_closed(given)}
        return f"`{self._wanted.command(target, dims=dims)}` (put in the largest sizes that you will use)"

    def _load(self) -> None:
        if self._model is None:
            from deploykit.optimizers.rewrites.unique_names import named

            self._model = graph.infer_shapes(named(graph.load(self._wanted.model)))
            self._nodes = {node.name or "": node for node in graph.all_nodes(self._model)}


def _in_vain(rewrite: Rewrite, reason: str) -> bool:
    """Whether the reason says that the rewrite is no help: the operator is missing, or the type that it gives."""
    if rewrite.keeps_operator and _LACKS_IT.search(reason):
        return True
    wanted = _WANTED_TYPES.search(reason) if rewrite.gives else None
    return wanted is not None and rewrite.gives not in re.findall(r"\w+", wanted["types"])


def _beside(node: ir.Node) -> list[ir.Node]:
    """The nodes that make its inputs and that read its outputs."""
    before = [value.producer() for value in node.inputs if value is not None]
    after = [reader for value in node.outputs for reader, _ in value.uses()]
    return [near for near in (*before, *after) if near is not None]


def _without_fix(remedy: str) -> str:
    """What a remedy says besides the general advice to try --fix: whether a rewrite applies is known here."""
    if " --fix" not in remedy:
        return remedy
    return "; or ".join(clause for clause in _CLAUSES.split(remedy) if " --fix" not in clause)


def _closed(dims: Bounds) -> Bounds:
    return {name: bounds for name, bounds in dims.items() if bounds[1] is not None}


def suggested_profile(spec: TensorSpec, dims: Bounds) -> str:
    """`1x3x224x224:8x3x224x224:64x3x224x224` for an input with dynamic dimensions; "" for another one."""
    if spec.shape is None or not any(isinstance(size, str) for size in spec.shape):
        return ""
    ranges = [(s, s) if isinstance(s, int) else (low_of(s, dims), high_of(s, dims)) for s in spec.shape]
    usual = [min(max(round(math.sqrt(low * high)), low), high) for low, high in ranges]
    shapes = ([low for low, _ in ranges], usual, [high for _, high in ranges])
    return ":".join("x".join(map(str, shape)) for shape in shapes)


def low_of(symbol: str, dims: Bounds) -> int:
    """The smallest size of a dimension, 1 where it has no bound."""
    return (dims[symbol][0] if symbol in dims else None) or 1


def high_of(symbol: str, dims: Bounds) -> int:
    """The largest size of a dimension, or one to begin with."""
    given = dims[symbol][1] if symbol in dims else None
    return given if given is not None else max(_USUAL_LARGEST, low_of(symbol, dims))
