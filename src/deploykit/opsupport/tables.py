"""Operator tables: what a target's documentation or source says of each operator, for engines that are not here."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import json
from typing import TYPE_CHECKING, Any

from deploykit.opsupport.conditions import outcome
from deploykit.opsupport.kernels import constraints_of, kernel_for
from deploykit.opsupport.outcome import FIX, SIMPLIFY, Outcome, broken, label, listed, ranges, untold
from deploykit.opsupport.registry import since_version
from deploykit.opsupport.tensor_checks import table_dtype, to_dtype
from deploykit.opsupport.verdict import Verdict, conditional, supported, unknown, unsupported
from deploykit.report import Finding, note
from deploykit.target import get_target, nearest_lower, target_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from deploykit.opsupport.facts import NodeFacts, TensorFacts
    from deploykit.target import Target

FOLDER = "optables"
# How a table is called where its verdicts are shown, by the name of its target in the data.
_TITLES = {
    "coreml-ep": "ONNX Runtime Core ML provider's operator table",
    "litert": "{version} operator table",
    "mnn": "MNN {version} converter table",
    "ncnn": "pnnx {version} operator table",
    "nnapi": "ONNX Runtime NNAPI provider's operator table",
    "openvino": "OpenVINO {version} front-end table",
    "ort-cpu": "ONNX Runtime {version} CPU kernel table",
    "ort-cuda": "ONNX Runtime CUDA kernel table",
    "ort-dml": "ONNX Runtime DirectML kernel table",
    "ort-web-wasm": "ONNX Runtime Web wasm kernel table",
    "ort-web-webgl": "ONNX Runtime Web {version} WebGL operator table",
    "ort-web-webgpu": "ONNX Runtime Web {version} WebGPU operator table",
    "ort-web-webnn": "ONNX Runtime Web {version} WebNN operator table",
    "qnn": "ONNX Runtime QNN provider's operator table",
    "tensorrt": "TensorRT {version} operator table",
    "tvm": "TVM {version} importer table",
}
_OTHER_OPERATORS = "rewrite it with other operators where the model is made"
# Where the tensor whose types a table lists is not the first one of the type T or T1; both ends of a Cast are listed.
_MAIN = {
    "Cast": (("input", 0), ("output", 0)),
    "CastLike": (("input", 0), ("output", 0)),
    "ConstantOfShape": (("output", 0),),
    "EyeLike": (("output", 0),),
    "OneHot": (("input", 2),),
    "RandomNormalLike": (("output", 0),),
    "RandomUniformLike": (("output", 0),),
}
# ONNX Runtime's CPU provider, native and in a browser: writes what has no kernel with the operators that define it, and
# computes float16 in float32 where there is no kernel.
_CPU = ("ort-cpu", "ort-web-wasm")
_REMOVABLE = ("Identity", "Dropout")
# What their types mean is in their bodies.
_UNTYPED = ("If", "Loop", "Scan")


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a table has against a node: for certain (holds False), or perhaps (None).

    condition: the table's, None where the whole operator, its version or its types are meant.
    """

    outcome: Outcome
    condition: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One operator table.

    source: what it is called in verdicts. asked: the target that it speaks for, as `--target` takes it. falls_back:
    whether a node that it refuses goes to another engine (ONNX Runtime's CPU provider, the wasm backend of ONNX Runtime
    Web) instead of stopping the model. facts: the table as it is in the package. rules: conditions by operator.
    narrowed: types that are taken and computed in a narrower one. folds: whether what follows from constants has been
    computed before a node is looked at.
    """

    name: str
    source: str
    asked: str
    falls_back: bool
    facts: Mapping[str, Any]
    rules: Mapping[str, tuple[Mapping[str, Any], ...]]
    narrowed: frozenset[str]
    folds: bool

    def judge(self, node: NodeFacts) -> Verdict:
        """What the table says of a node; UNKNOWN where it does not speak."""
        beyond = self._beyond(node)
        if beyond is not None:
            return self._say(unknown, [beyond])
        problems = list(self.problems(node))
        for verdict, holds in ((unsupported, False), (conditional, None)):
            found = [problem.outcome for problem in problems if problem.outcome.holds is holds]
            if found:
                return self._say(verdict, found)
        return supported(self.source)

    def problems(self, node: NodeFacts) -> Iterator[Problem]:
        """Everything that the table has against the node."""
        if self.folds and not node.domain and node.outputs and all(t is None or t.foldable for t in node.outputs):
            return
        row = self.facts["ops"].get(node.key)
        if row is None or row["status"] == "unsupported":
            yield Problem(self._absent(node, row))
            return
        against = [found for found in self._versions(node, row) if not found.holds]
        yield from map(Problem, against)
        refused = any(found.holds is False for found in against)
        for condition in self.rules[node.key]:
            # Of a kernel that is not there, its opsets have been told; of a type that is not taken, the type.
            if refused and (
                ("kernels" in row and condition["machine"]["check"] == "opset_in")
                or (condition["kind"] == "dtype" and condition["machine"]["check"] == "none")
            ):
                continue
            found = outcome(condition, node, self._opset(node))
            if not found.holds:
                yield Problem(found, condition)

    def _beyond(self, node: NodeFacts) -> Outcome | None:
        """What is to be said of an operator whose meaning at the model's opset is outside of what the table covers."""
        low, high = self.facts["opset"]["min"], self.facts["opset"]["max"]
        opset = self._opset(node)
        if node.domain or opset == node.opset:
            return None
        if node.since is not None and since_version("", node.op, opset) == node.since:
            return None
        return untold(
            f"the table is of opsets {low}-{high}, and {node.op} is another in opset {node.opset} of the model",
            f"export the model with opset {opset}, or {FIX} converts it",
        )

    def _opset(self, node: NodeFacts) -> int:
        """The model's opset, as far as the table goes."""
        low, high = self.facts["opset"]["min"], self.facts["opset"]["max"]
        return node.opset if node.domain else max(low, min(node.opset, high or node.opset))

    def _absent(self, node: NodeFacts, row: Mapping[str, Any] | None) -> Outcome:
        operator = f"{node.domain}.{node.op}" if node.domain else node.op
        remedy = f"{SIMPLIFY} removes it" if node.op in _REMOVABLE else _OTHER_OPERATORS
        if _is_function(node.domain, node.op, node.since or 0):
            if self.facts["target"] in _CPU:
                return untold(f"{operator} runs by the operators that define it", "convert the model to find out")
            remedy = f"{FIX} writes it with the operators that define it"
        elif node.op in self.facts.get("legacy_converter_ops", ()):
            remedy = f"{remedy}, or use the older converter, which takes it"
        if row is None and self.facts.get("absent_op") != "unsupported":
            return untold(f"the {self.source} does not speak of {operator}", "convert the model to find out")
        return broken(f"the {self.source} {'lists no' if row is None else 'does not have'} {operator}", remedy)

    def _versions(self, node: NodeFacts, row: Mapping[str, Any]) -> Iterator[Outcome]:
        """What stands against the operator's version and its types."""
        if "kernels" in row:
            found = kernel_for(
                row["kernels"],
                node,
                by_version="version_match_rule" in self.facts,
                half_as_float=self.facts["target"] in _CPU,
            )
            if found.holds is False and row.get("function_body"):
                told = f"{node.op} has no kernel here and runs by the operators that define it ({found.fact})"
                found = untold(told, found.remedy)
            yield found
            return
        low, high = row["since"]
        opset = self._opset(node)
        if not node.domain and ((low or 0) > opset or (high is not None and high < opset)):
            yield broken(
                f"the model's opset is {node.opset}, and {node.op} is taken in opsets {ranges([[low, high]])}",
                f"export the model with another opset, or {FIX} converts it",
            )
        yield from self._types(node, row["types"])

    def _types(self, node: NodeFacts, taken: list[str]) -> Iterator[Outcome]:
        for place, tensor in _main(node) if taken and node.op not in _UNTYPED else ():
            dtype = table_dtype(tensor.dtype)
            if dtype is None:
                yield untold(
                    f"the type of {place} is unknown, {listed(taken)} is taken",
                    "declare the types where the model is exported",
                )
            elif dtype not in taken and dtype not in self.narrowed:
                yield broken(f"{place} is {dtype}, not {listed(taken)}", to_dtype(dtype))

    def _say(self, verdict: Callable[..., Verdict], outcomes: Iterable[Outcome]) -> Verdict:
        outcomes = list(outcomes)
        reason = "; ".join(dict.fromkeys(found.fact for found in outcomes))
        remedy = "; ".join(dict.fromkeys(found.remedy for found in outcomes))
        asked = f"--target {self.asked}"
        return verdict(reason, remedy=remedy.replace("--target TARGET", asked), source=self.source)


def _main(node: NodeFacts) -> list[tuple[str, TensorFacts]]:
    """The tensors whose type a table's `types` are about: the first of the type T or T1, or the first of all."""
    places = _MAIN.get(node.op) or (_main_place(node.domain, node.op, node.since or 0),)
    found = []
    for role, at in places:
        tensors = node.inputs if role == "input" else node.outputs
        if at < len(tensors) and (tensor := tensors[at]) is not None:
            found.append((label(at, tensor, role), tensor))
    return found


@functools.lru_cache(maxsize=4096)
def _main_place(domain: str, op: str, since: int) -> tuple[str, int]:
    inputs, outputs = constraints_of(domain, op, since)
    for name in ("T", "T1"):
        for role, names in (("input", inputs), ("output", outputs)):
            if name in names:
                return role, names.index(name)
    return ("input", 0) if inputs or not outputs else ("output", 0)


@functools.lru_cache(maxsize=4096)
def _is_function(domain: str, op: str, opset: int) -> bool:
    """Whether the standard defines the operator by others."""
    from onnx import defs

    try:
        schema = defs.get_schema(op, max_inclusive_version=opset, domain=domain)
    except defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _rules(facts: Mapping[str, Any], *, folds: bool) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """For each operator the conditions of its own, and those that stand for all operators as far as it has no other."""
    everywhere = facts.get("global_conditions", ())
    by_version = "version_match_rule" in facts
    rules = {}
    for key, row in facts["ops"].items():
        own = [
            condition
            for condition in row["conditions"]
            # The kernels tell it more exactly.
            if not (by_version and "kernels" in row and condition["machine"]["check"] == "opset_in")
        ]
        typed = bool(row["types"]) or any(c["machine"]["check"] == "dtype_in" for c in own)
        others = [c for c in everywhere if not (typed and c["machine"]["check"] == "dtype_in")]
        rules[key] = tuple(_folded(condition) if folds else condition for condition in (*own, *others))
    return rules


def _folded(condition: Mapping[str, Any]) -> Mapping[str, Any]:
    """The condition where constants have been computed before it is looked at."""
    machine = condition["machine"]
    if machine["check"] != "input_is_initializer":
        return condition
    return {**condition, "machine": {**machine, "constant_expr_ok": True}}


@functools.cache
def load_table(name: str) -> Table:
    """The table of the package with that name (`tensorrt-11.1`)."""
    text = (importlib.resources.files("deploykit.opsupport") / FOLDER / f"{name}.json").read_text(encoding="utf-8")
    facts = json.loads(text)
    falls_back = "runs on" in facts.get("unsupported_means", "")
    # ONNX Runtime computes constants before it asks a provider; onnx2tf and pnnx do before they convert.
    folds = falls_back or facts["target"] in ("litert", "ncnn")
    narrowed = [
        condition["subject"]
        for condition in facts.get("global_conditions", ())
        if condition["kind"] == "dtype" and condition["rule"].startswith("narrowed")
    ]
    return Table(
        name=name,
        source=_TITLES[facts["target"]].format(version=facts["version"]),
        asked=_asked(name),
        falls_back=falls_back,
        facts=facts,
        rules=_rules(facts, folds=folds),
        narrowed=frozenset(narrowed),
        folds=folds,
    )


def _asked(name: str) -> str:
    for target in map(get_target, target_names()):
        for version, table in target.tables.items():
            if table == name:
                return f"{target.name}@{version}" if version else target.name
    raise KeyError(f"no target has the operator table {name!r}")


def table_for(target: Target, version: str | None) -> tuple[Table | None, Finding | None]:
    """The table that speaks for a target's version, and a note (DK213) where another version's had to be taken.

    None for a target without tables. version: as `parse_target` gave it.
    """
    asked = version or ""
    if asked in target.tables:
        return load_table(target.tables[asked]), None
    taken = nearest_lower(target, asked)
    if taken is None or taken not in target.tables:
        return None, None
    table = load_table(target.tables[taken])
    which = "the newest of it" if taken.startswith(f"{asked}.") else "the nearest lower"
    told = f"there is no operator table of {target.title} {asked}: the one of {taken}, {which}, speaks for it"
    said = note("DK213", told, target=target.name, hint=f"the versions with a table: {', '.join(target.versions)}")
    return table, said
