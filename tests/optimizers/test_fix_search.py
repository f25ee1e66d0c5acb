"""Which rewrites the search keeps: made-up targets refuse operators, and made-up rewrites replace them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from deploykit import graph
from deploykit.errors import ModelError
from deploykit.opsupport.summary import NodeVerdict, TargetSummary
from deploykit.opsupport.verdict import Status, Verdict, supported, unknown, unsupported
from deploykit.optimizers import fix_search
from deploykit.optimizers.fix_search import Search
from deploykit.optimizers.rewriting import Change, Rewrite
from deploykit.report import failure
from deploykit.target import get_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHAIN = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n,4] x) => (float[n,4] y) { [a] p = HardSwish (x) [b] q = Softplus (p) [c] y = HardSwish (q) }"""


def becomes(op: str, *into: str, only: Callable[[ir.Node], bool] = lambda node: True, **facts: Any) -> Rewrite:
    """A rewrite of one operator into a chain of others, whatever the values."""

    class Replace(Rewrite):
        name: ClassVar[str] = f"{op}-to-{'-'.join(into)}".lower()
        title: ClassVar[str] = f"turns {op} into {' and '.join(into)}"
        interface: ClassVar[bool] = facts.get("interface", False)

        def applies(self, node: ir.Node, model: ir.Model) -> bool:
            return node.op_type == op and only(node)

        def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
            changes = []
            for node in nodes:
                last, made = node.inputs[0], []
                for index, kind in enumerate(into):
                    new = ir.node(kind, [last], name=f"{node.name}/{kind}_{index}")
                    node.graph.insert_before(node, new)
                    made.append(new)
                    last = new.outputs[0]
                    last.name = f"{node.name}/{index}"
                old = node.outputs[0]
                last.shape, last.type = old.shape, old.type
                old.replace_all_uses_with(last, replace_graph_outputs=True)
                node.graph.remove(node, safe=True)
                name, old.name = old.name, None
                last.name = name
                changes.append(Change((node.name,), tuple(n.name for n in made), "replaced"))
            return changes

    return Replace()


def target(
    name: str, judge: Callable[[NodeVerdict], Verdict], findings: Callable[[ir.Model], list] = lambda model: []
) -> Callable[[Path], TargetSummary]:
    """A target that says of each node what `judge` says."""

    def ask(path: Path) -> TargetSummary:
        model = graph.name_nodes(graph.load(path))
        rows = [
            NodeVerdict(node.name, node.op_type, node.domain, supported(), kind="engine")
            for node in graph.all_nodes(model)
        ]
        judged = [NodeVerdict(r.node, r.op, r.domain, judge(r), kind="engine") for r in rows]
        return TargetSummary(get_target(name), None, "made up", tuple(judged), findings=tuple(findings(model)))

    return ask


def refuses(*ops: str) -> Callable[[NodeVerdict], Verdict]:
    return lambda row: unsupported(f"no {row.op}", remedy="none") if row.op in ops else supported()


@pytest.fixture
def search(tmp_path, monkeypatch):
    """Runs a search over a model's text; returns the outcome and how often the targets were asked."""

    def run(text: str, targets: Sequence, rewrites: Sequence[Rewrite], prove=lambda before, after, steps: ""):
        monkeypatch.setattr(fix_search, "all_rewrites", lambda: tuple(rewrites))
        path = tmp_path / "model.onnx"
        onnx.save(parser.parse_model(text), path)
        folder = Path(tempfile.mkdtemp(dir=tmp_path))

        def ask(file: Path) -> list[TargetSummary]:
            return [one(file) for one in targets]

        return Search(ask, prove, folder).run(path, ask(path))

    return run


def ops(outcome) -> list[str]:
    return [node.op_type for node in graph.all_nodes(graph.load(outcome.state.path))]


def test_what_a_target_takes_is_left_alone(search):
    outcome = search(CHAIN, [target("openvino", refuses())], [becomes("HardSwish", "Relu")])
    assert (outcome.asked, outcome.state.steps) == (0, ())


def test_all_nodes_of_one_kind_are_rewritten_and_asked_about_at_once(search):
    nodes = " ".join(f"t{i + 1} = HardSwish (t{i})" for i in range(200))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[4] t0) => (float[4] t200) {{ {nodes} }}'
    outcome = search(text, [target("coreml", refuses("HardSwish"))], [becomes("HardSwish", "Relu")])
    assert outcome.asked == 1
    assert ops(outcome) == ["Relu"] * 200
    (step,) = outcome.state.steps
    assert len(step.removed) == len(step.added) == 200


def test_the_second_rewrite_is_tried_when_the_first_gives_what_is_refused_too(search):
    rewrites = [becomes("HardSwish", "Elu"), becomes("HardSwish", "Relu")]
    outcome = search(CHAIN, [target("coreml", refuses("HardSwish", "Elu"))], rewrites)
    assert [step.rewrite.name for step in outcome.state.steps] == ["hardswish-to-relu"]
    assert ops(outcome) == ["Relu", "Softplus", "Relu"]


def test_what_a_rewrite_makes_is_rewritten_in_turn(search):
    rewrites = [becomes("HardSwish", "Elu", "Celu"), becomes("Celu", "Selu"), becomes("Selu", "Relu")]
    outcome = search(CHAIN, [target("coreml", refuses("HardSwish", "Celu", "Selu"))], rewrites)
    assert ops(outcome) == ["Elu", "Relu", "Softplus", "Elu", "Relu"]
    assert not outcome.state.own


def test_rewrites_that_lead_into_each_other_end(search):
    rewrites = [becomes("HardSwish", "Elu"), becomes("Elu", "HardSwish")]
    outcome = search(CHAIN, [target("coreml", refuses("HardSwish", "Elu"))], rewrites)
    assert not outcome.state.steps
    assert ops(outcome) == ["HardSwish", "Softplus", "HardSwish"]
    assert outcome.asked <= 10


def test_a_rewrite_that_another_target_refuses_is_not_kept(search):
    targets = [target("coreml", refuses("HardSwish")), target("openvino", refuses("Relu"))]
    outcome = search(CHAIN, targets, [becomes("HardSwish", "Relu"), becomes("HardSwish", "Elu")])
    assert ops(outcome) == ["Elu", "Softplus", "Elu"]


def test_a_rewrite_that_helps_one_of_two_refusing_targets_is_kept_unless_one_helps_both(search):
    targets = [target("coreml", refuses("HardSwish", "Relu")), target("openvino", refuses("HardSwish"))]
    outcome = search(CHAIN, targets, [becomes("HardSwish", "Relu")])
    assert ops(outcome) == ["Relu", "Softplus", "Relu"]
    assert {complaint[0] for complaint in outcome.state.own} == {"coreml"}


def test_one_that_helps_both_is_preferred_although_it_stands_later(search):
    targets = [target("coreml", refuses("HardSwish", "Relu")), target("openvino", refuses("HardSwish"))]
    outcome = search(CHAIN, targets, [becomes("HardSwish", "Relu"), becomes("HardSwish", "Elu")])
    assert ops(outcome) == ["Elu", "Softplus", "Elu"]


def test_only_the_nodes_that_are_helped_are_rewritten(search):
    def judge(row: NodeVerdict) -> Verdict:
        return refuses("HardSwish", "Relu")(row) if row.node.startswith("c") else refuses("HardSwish")(row)

    outcome = search(CHAIN, [target("coreml", judge)], [becomes("HardSwish", "Relu")])
    assert ops(outcome) == ["Relu", "Softplus", "HardSwish"]
    assert [complaint[2] for complaint in outcome.state.own] == ["c"]


def test_a_node_that_is_refused_because_of_another_is_not_rewritten(search):
    def judge(row: NodeVerdict) -> Verdict:
        if row.node == "c":
            return Verdict(Status.UNSUPPORTED, "its input has no type", "solve the other", follows="b")
        return refuses("Softplus")(row)

    rewrites = [becomes("HardSwish", "Relu"), becomes("Softplus", "Elu")]
    outcome = search(CHAIN, [target("openvino", judge)], rewrites)
    assert [step.rewrite.name for step in outcome.state.steps] == ["softplus-to-elu"]


def test_unequal_results_are_dropped_with_the_reason_and_the_node_stays_refused(search):
    def prove(before: Path, after: Path, steps: Sequence) -> str:
        return "y differs by 3"

    outcome = search(CHAIN, [target("coreml", refuses("Softplus"))], [becomes("Softplus", "Relu")], prove)
    assert ops(outcome) == ["HardSwish", "Softplus", "HardSwish"]
    assert [(rewrite.name, list(nodes), why) for rewrite, nodes, why in outcome.dropped] == [
        ("softplus-to-relu", ["b"], "y differs by 3")
    ]
    assert [complaint[2] for complaint in outcome.state.own] == ["b"]


def test_of_many_nodes_only_the_one_whose_result_is_unequal_is_left(search):
    def prove(before: Path, after: Path, steps: Sequence) -> str:
        return "wrong" if any("t6/Relu_0" in step.added for step in steps) else ""

    nodes = " ".join(f"[t{i}] t{i + 1} = HardSwish (t{i})" for i in range(16))
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[4] t0) => (float[4] t16) {{ {nodes} }}'
    outcome = search(text, [target("coreml", refuses("HardSwish"))], [becomes("HardSwish", "Relu")], prove)
    assert [complaint[2] for complaint in outcome.state.own] == ["t6"]
    assert ops(outcome).count("Relu") == 15
    assert outcome.asked <= 12


def test_a_rewrite_that_fails_is_told_and_others_are_tried(search):
    class Broken(Rewrite):
        name: ClassVar[str] = "broken"
        title: ClassVar[str] = "fails"

        def applies(self, node: ir.Node, model: ir.Model) -> bool:
            return True

        def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
            raise KeyError("axis")

    rewrites = [Broken(), becomes("HardSwish", "Relu")]
    outcome = search(CHAIN, [target("coreml", refuses("HardSwish"))], rewrites)
    assert ops(outcome) == ["Relu", "Softplus", "Relu"]
    assert ["KeyError" in why for _, _, why in outcome.dropped] == [True]


def test_a_result_that_is_no_model_is_dropped(search):
    asked = target("coreml", refuses("HardSwish"))

    def ask(path: Path) -> TargetSummary:
        if any(node.op_type == "Relu" for node in graph.all_nodes(graph.load(path))):
            raise ModelError("it has a cycle", code="DK100")
        return asked(path)

    outcome = search(CHAIN, [ask], [becomes("HardSwish", "Relu"), becomes("HardSwish", "Elu")])
    assert ops(outcome) == ["Elu", "Softplus", "Elu"]
    assert "no valid model: it has a cycle" in outcome.dropped[0][2]


def test_nodes_that_nobody_judges_are_no_improvement(search):
    def judge(row: NodeVerdict) -> Verdict:
        return unknown("not reached", remedy="none") if row.op == "Relu" else refuses("HardSwish")(row)

    outcome = search(CHAIN, [target("tensorrt-rtx", judge)], [becomes("HardSwish", "Relu")])
    assert not outcome.state.steps


def test_refusals_that_come_to_light_behind_a_solved_one_are_solved_next(search):
    """TensorRT's parser stops at the first refused node: what lies behind is unknown until that one is solved."""
    blocked: list[bool] = []

    def ask(path: Path) -> TargetSummary:
        model = graph.load(path)
        blocked[:] = [any(node.op_type == "Softplus" for node in model.graph)]
        return asked(path)

    def judge(row: NodeVerdict) -> Verdict:
        if row.node == "c" and blocked[0]:
            return unknown("not reached", remedy="none")
        return refuses("Softplus", "HardSwish")(row) if row.node != "a" else supported()

    asked = target("tensorrt-rtx", judge)
    outcome = search(CHAIN, [ask], [becomes("HardSwish", "Relu"), becomes("Softplus", "Elu")])
    assert ops(outcome) == ["HardSwish", "Elu", "Relu"]
    assert [step.rewrite.name for step in outcome.state.steps] == ["softplus-to-elu", "hardswish-to-relu"]


def test_a_rewrite_of_dtypes_is_the_last_resort(search):
    rewrites = [becomes("HardSwish", "Relu", interface=True), becomes("HardSwish", "Elu")]
    assert ops(search(CHAIN, [target("coreml", refuses("HardSwish"))], rewrites)) == ["Elu", "Softplus", "Elu"]
    outcome = search(CHAIN, [target("coreml", refuses("HardSwish", "Elu"))], rewrites)
    assert ops(outcome) == ["Relu", "Softplus", "Relu"]


def test_an_interface_is_changed_only_where_the_target_then_runs_the_model(search):
    rewrites = [becomes("HardSwish", "Relu", interface=True), becomes("Softplus", "Elu")]
    outcome = search(CHAIN, [target("coreml", refuses("HardSwish", "Softplus", "Elu"))], rewrites)
    assert ops(outcome) == ["HardSwish", "Softplus", "HardSwish"]
    # It waits for what else there is to solve.
    outcome = search(CHAIN, [target("coreml", refuses("HardSwish", "Softplus"))], rewrites)
    assert ops(outcome) == ["Relu", "Elu", "Relu"]


def test_a_rewrite_that_answers_certain_reasons_comes_first_where_one_is_given_and_last_elsewhere(search):
    whole = becomes("HardSwish", "Relu")
    type(whole).answers = ("opset",)
    rewrites = [whole, becomes("HardSwish", "Elu")]

    def judge(row: NodeVerdict) -> Verdict:
        return unsupported("a revision of a newer opset", remedy="none") if row.op == "HardSwish" else supported()

    assert ops(search(CHAIN, [target("coreml", refuses("HardSwish"))], rewrites)) == ["Elu", "Softplus", "Elu"]
    assert ops(search(CHAIN, [target("coreml", judge)], rewrites)) == ["Relu", "Softplus", "Relu"]
    assert ops(search(CHAIN, [target("coreml", refuses("HardSwish", "Elu"))], rewrites)) == ["Relu", "Softplus", "Relu"]


def test_what_waits_behind_other_refusals_is_judged_once_those_are_solved(search):
    """After the first refused node, TensorRT's parser says nothing of the rest, what a rewrite made included."""

    def ask(path: Path) -> TargetSummary:
        model = graph.name_nodes(graph.load(path))
        refused = [node.name for node in model.graph if node.op_type in ("HardSwish", "Softplus")]
        stops = next((at for at, node in enumerate(model.graph) if node.name in refused[-1:]), 99)
        rows = []
        for at, node in enumerate(model.graph):
            said = supported() if at > stops or not refused else unknown("not reached", remedy="none")
            if node.name in refused:
                said = unsupported(f"no {node.op_type}", remedy="none")
            rows.append(NodeVerdict(node.name, node.op_type, "", said, kind="engine"))
        return TargetSummary(get_target("tensorrt-rtx"), None, "made up", tuple(rows))

    outcome = search(CHAIN, [ask], [becomes("HardSwish", "Relu"), becomes("Softplus", "Elu")])
    assert ops(outcome) == ["Relu", "Elu", "Relu"]
    assert not outcome.state.own


def test_a_node_is_rewritten_for_the_sake_of_the_one_before_it(search):
    """A QuantizeLinear with a zero point can be changed only once its reader is no QLinearConv."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[4] x) => (float[4] y) { [a] p = HardSwish (x) [b] y = Softplus (p) }"""
    free = becomes(
        "HardSwish", "Relu", only=lambda node: all(reader.op_type != "Softplus" for reader, _ in node.outputs[0].uses())
    )
    outcome = search(text, [target("tensorrt-rtx", refuses("HardSwish"))], [free, becomes("Softplus", "Elu")])
    assert ops(outcome) == ["Relu", "Elu"]


def test_a_rewrite_of_dtypes_is_tried_on_what_touches_the_tensor(search):
    def findings(model: ir.Model) -> list:
        first = next(iter(model.graph))
        return [failure("DK529", "x is float64", tensor="x")] if first.op_type == "HardSwish" else []

    rewrites = [becomes("HardSwish", "Relu", interface=True)]
    outcome = search(CHAIN, [target("coreml", refuses(), findings)], rewrites)
    assert [step.removed for step in outcome.state.steps] == [["a"]]
    assert not outcome.state.own


def test_bounds_that_are_missing_are_no_reason_to_rewrite(search):
    def findings(model: ir.Model) -> list:
        return [failure("DK520", "dimension n has no bound", tensor="x")]

    outcome = search(CHAIN, [target("tensorrt-rtx", refuses(), findings)], [becomes("HardSwish", "Relu")])
    assert not outcome.asked


def test_the_search_is_limited(search, monkeypatch):
    monkeypatch.setattr(fix_search, "ASKS", 3)
    rewrites = [becomes("HardSwish", kind) for kind in ("Elu", "Celu", "Selu", "Relu", "Abs")]
    outcome = search(CHAIN, [target("coreml", refuses("HardSwish", "Elu", "Celu", "Selu", "Relu"))], rewrites)
    assert (outcome.asked, outcome.exhausted) == (3, True)
