"""Asks every source about a model's nodes, the engines here, measured and operator tables, and adds up the answers.

The engines work in their workers, all at the same time, while this process counts multiply-accumulates and gathers the
facts that tables are asked about.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.data.request import known_bounds
from deploykit.graph.scopes import scope_of
from deploykit.opsupport.engines import Answer, ask_all, why_not_asked
from deploykit.opsupport.facts import facts_of
from deploykit.opsupport.partitions import Wiring, wiring_of
from deploykit.opsupport.probing import settle_by_probing
from deploykit.opsupport.sources import Settled, Shelf, is_constant, settle
from deploykit.opsupport.summary import REFUSED_WHOLE, NodeVerdict, TargetSummary
from deploykit.opsupport.verdict import Status, Verdict
from deploykit.progress import OnProgress, Progress, silent
from deploykit.target import Target, parse_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.opsupport.engines import Problem
    from deploykit.opsupport.facts import NodeFacts

__all__ = ["REFUSED_WHOLE", "NodeVerdict", "TargetSummary", "check_model"]

_EXTENSION = "the library that has the operator: --custom-ops FILE"
_NOBODY = Verdict(Status.UNKNOWN, "nobody was asked", "deploykit doctor")


def check_model(
    path: Path,
    targets: Iterable[str],
    *,
    dims: Mapping[str, Sequence[int | None]] | None = None,
    profiles: Mapping[str, Sequence[Sequence[int]]] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    probe: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> list[TargetSummary]:
    """What all targets (`name` or `name@version`) say, in their order; every node has a verdict in each.

    dims: bounds by symbol. profiles: shapes by input. options: each target's `--option`s, by target name.
    probe: whether nodes that this leaves open are tried, with inputs of that seed.
    Where an engine is not installed, tables speak, and the summary has the problem; a node that no source speaks about
    is UNKNOWN. Raises ModelError or InvalidFileError for the file, UsageError for a target or an option.
    """
    chosen = [parse_target(text) for text in targets]
    model = graph.name_nodes(graph.load(path))
    known_bounds(dims or {}, graph.interface(model)[0], path.name)
    arguments = {"model": str(path), "dims": dims or {}, "profiles": profiles or {}}
    questions = _questions(chosen, arguments, options or {})
    names = dict.fromkeys(target.title for target, _ in questions.values())
    subject: list[_Subject] = []
    on_progress(Progress("checking", ", ".join(names), 0, len(questions)))
    answers = ask_all(
        list(questions.values()),
        lambda done: on_progress(Progress("checking", "", done, len(questions))),
        lambda: subject.append(_Subject.of(model, dims or {})),
    )
    by_question = dict(zip(questions, answers, strict=True))
    summaries = [
        _summary(subject[0], target, version, by_question, arguments, options or {}) for target, version in chosen
    ]
    if not probe:
        return summaries
    libraries = {name: given["custom_ops"] for name, given in (options or {}).items() if "custom_ops" in given}
    return settle_by_probing(
        graph.load(path),
        summaries,
        dims=dims,
        options=options,
        runtime_options={name: {"custom_ops": libraries} for name in libraries},
        seed=seed,
        on_progress=on_progress,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Subject:
    """The model as this process sees it, once for all targets.

    facts: where inputs with default values are constants; open_facts: where a caller may feed them.
    calls: nodes that call a function of the model.
    """

    nodes: tuple[NodeVerdict, ...]
    facts: tuple[NodeFacts, ...]
    open_facts: tuple[NodeFacts, ...]
    wiring: Wiring
    calls: frozenset[str]

    def seen_by(self, shelf: Shelf) -> tuple[NodeFacts, ...]:
        """The nodes' facts as the target takes them."""
        return self.open_facts if shelf.feeds_defaults else self.facts

    def constants(self, shelf: Shelf) -> frozenset[str]:
        """Nodes that are computed before anything runs."""
        return frozenset(node.name for node in self.seen_by(shelf) if is_constant(node))

    @classmethod
    def of(cls, model: ir.Model, dims: Mapping[str, Sequence[int | None]]) -> _Subject:
        work = graph.macs(model)
        wiring = wiring_of(model)
        holders = _holders(model.graph)
        nodes = list(graph.all_nodes(model))
        rows = tuple(
            NodeVerdict(
                name,
                node.op_type,
                node.domain,
                _NOBODY,
                work.get(name, 0),
                holders.get(name, ()),
                scope=scope_of(node),
            )
            for node in nodes
            for name in (node.name or "",)
        )
        calls = frozenset(node.name or "" for node in nodes if node.op_identifier() in model.functions)
        _fix(model, {name: int(low) for name, (low, high, *_) in dims.items() if low is not None and low == high})
        fed = _without_defaults(model)
        facts = tuple(facts_of(model))
        return cls(rows, facts, facts if fed is None else tuple(facts_of(fed)), wiring, calls)


def _without_defaults(model: ir.Model) -> ir.Model | None:
    """A copy whose inputs have no default values; None where none has any that a caller may replace.

    Before IR version 4 every initializer had to be an input too, and runtimes take those for constants.
    """
    defaults = [value.name or "" for value in model.graph.inputs if value.name in model.graph.initializers]
    if not defaults or model.ir_version < 4:
        return None
    copy = model.clone()
    for name in defaults:
        copy.graph.initializers.pop(name).const_value = None
    return copy


def _fix(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Gives the inputs' symbolic dimensions the one size that their bounds leave; the rest follows by inference."""
    import onnx_ir as ir

    for value in model.graph.inputs if sizes else ():
        if value.shape is not None:
            value.shape = ir.Shape([d if isinstance(d, int) else sizes.get(str(d.value), d) for d in value.shape])


def _holders(holder: Any, inside: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """For each node in a body, by name: the nodes that hold it."""
    from onnx_ir import AttributeType

    found: dict[str, tuple[str, ...]] = {}
    for node in holder:
        found[node.name] = inside
        for attribute in node.attributes.values():
            if attribute.type == AttributeType.GRAPH:
                found |= _holders(attribute.as_graph(), (*inside, node.name))
    return found


def _questions(
    chosen: Sequence[tuple[Target, str | None]], arguments: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[Target, Mapping[str, Any]]]:
    """Each different question to an engine once: the providers of one runtime all leave nodes to the same one."""
    questions: dict[str, tuple[Target, Mapping[str, Any]]] = {}
    for target, version in chosen:
        for asked in (version, _backstop(target, version)):
            if target.asks_engine(asked):
                full = _asked(target, asked, arguments, options)
                questions[_key(target, full)] = (target, full)
    return questions


def _asked(
    target: Target,
    version: str | None,
    arguments: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """The arguments of a target's support job."""
    return {
        **arguments,
        "dims": target.bounded(arguments["dims"]),
        "options": _settings(target, version, options),
    }


def _settings(target: Target, version: str | None, options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {**options.get(target.name, {}), **({"version": version} if version else {})}


def _key(target: Target, arguments: Mapping[str, Any]) -> str:
    return json.dumps([target.name, arguments], sort_keys=True, default=str)


def _backstop(target: Target, version: str | None) -> str | None:
    """The version of the target that takes what this one leaves: its first, for a version whose table falls back."""
    first = target.versions[0] if target.versions else None
    return first if version != first and Shelf(target, version).falls_back else version


def _judged(subject: _Subject, shelf: Shelf, answer: Answer | None, *, extended: bool) -> list[NodeVerdict]:
    """The nodes with what is believed of them: the engine, then the tables. extended: the engine had a library."""
    engine = answer.verdicts([(node.node, node.op) for node in subject.nodes]) if answer is not None else None
    judged = []
    for node, facts in zip(subject.nodes, subject.seen_by(shelf), strict=True):
        spoken = shelf.say(facts, calls=node.node in subject.calls)
        if engine is not None:
            spoken = [*shelf.heard(next(engine), facts), *spoken]
        said = settle(spoken)
        if facts.since is None and shelf.extensible:
            said = _with_extension(said) if extended else _naming_extensions(said)
        judged.append(dataclasses.replace(node, verdict=said.verdict, kind=said.kind, others=said.others))
    return judged


def _with_extension(said: Settled) -> Settled:
    """What tables say of an operator was written about the target without a library."""
    return dataclasses.replace(said, others=()) if said.verdict.runs else said


def _naming_extensions(said: Settled) -> Settled:
    """An operator that the standard does not define may be in a library of the target's."""
    if said.verdict.status is not Status.UNSUPPORTED or _EXTENSION in said.verdict.remedy:
        return said
    remedy = f"{said.verdict.remedy}; or name {_EXTENSION}"
    return dataclasses.replace(said, verdict=dataclasses.replace(said.verdict, remedy=remedy))


def _summary(
    subject: _Subject,
    target: Target,
    version: str | None,
    answers: Mapping[str, Answer | Problem],
    arguments: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
) -> TargetSummary:
    def asked(which: str | None) -> Answer | Problem | None:
        return answers.get(_key(target, _asked(target, which, arguments, options)))

    said = asked(version) if target.asks_engine(version) else why_not_asked(target)
    answer = said if isinstance(said, Answer) else None
    shelf = Shelf(target, version)
    extended = "custom_ops" in options.get(target.name, {})
    nodes = _judged(subject, shelf, answer, extended=extended)
    findings = (*(answer.findings if answer is not None else ()), *([shelf.told] if shelf.told else []))
    backstop = _backstop(target, version)
    leaves_to = ""
    if backstop != version:
        behind = asked(backstop)
        after = behind if isinstance(behind, Answer) else None
        taken = _judged(subject, Shelf(target, backstop), after, extended=extended)
        nodes = [dataclasses.replace(node, fallback=other.verdict) for node, other in zip(nodes, taken, strict=True)]
        # A model that the engine behind it does not even read runs nowhere.
        findings += tuple(finding for finding in (after.findings if after else ()) if finding.code == REFUSED_WHOLE)
        leaves_to = f"{target.title} ({backstop})"
    summary = TargetSummary(
        target,
        version,
        _who_spoke(nodes, answer, shelf),
        tuple(nodes),
        answer.partitions if answer is not None else None,
        findings,
        said if not isinstance(said, Answer) else None,
        leaves_to,
    )
    if summary.runs and summary.partitions is None:
        # What is taken as a whole is one piece, also where nothing joins its parts.
        own = [node.node for node in nodes if node.verdict.runs]
        pieces = subject.wiring.partitions(own, subject.constants(shelf)) if summary.left else 1
        summary = dataclasses.replace(summary, partitions=pieces)
    return summary


def _who_spoke(nodes: Sequence[NodeVerdict], answer: Answer | None, shelf: Shelf) -> str:
    """The best source, and whoever else is believed about some node."""
    if answer is None and not shelf.sources:
        return ""
    first = answer.source if answer is not None else shelf.sources[0]
    others = dict.fromkeys(node.verdict.source for node in nodes if node.kind in ("measurement", "table", "probe"))
    return "; ".join(dict.fromkeys([first, *(source for source in others if source in shelf.sources)]))
