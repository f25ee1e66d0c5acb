"""Every condition of every table, on the nodes of the onnx package's own test models: an answer, and never a crash."""

from __future__ import annotations

import warnings
from collections import Counter

import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.opsupport import Status
from deploykit.opsupport.conditions import outcome
from deploykit.opsupport.facts import facts_of
from deploykit.opsupport.tables import load_table
from deploykit.target import get_target, target_names

# Two targets may go by one table.
NAMES = dict.fromkeys(name for target in map(get_target, target_names()) for name in target.tables.values())
TABLES = [load_table(name) for name in NAMES]
SAMPLE = 72


@pytest.fixture(scope="module")
def models():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the expected values of the cases overflow on purpose
        return [case.model for case in collect_testcases(None)]


def judged(models):
    """Verdicts of all tables on all nodes, counted by table and status."""
    found = {table.name: Counter() for table in TABLES}
    for model in models:
        for node in facts_of(ir.from_proto(model)):
            for table in TABLES:
                verdict = table.judge(node)
                found[table.name][verdict.status] += 1
                assert verdict.source == table.source
                assert "TARGET" not in verdict.remedy
    return found


def evaluated(models):
    """How often a condition held, did not, or could not be told, by check, on the nodes of its operator."""
    counts = Counter()
    for model in models:
        for node in facts_of(ir.from_proto(model)):
            for table in TABLES:
                for condition in table.rules.get(node.key, ()):
                    found = outcome(condition, node, node.opset)
                    assert bool(found.fact) == (not found.holds)
                    counts[condition["machine"]["check"], found.holds] += 1
    return counts


def test_every_condition_has_an_answer_on_any_node(models):
    """Also on nodes of other operators, with fewer inputs and other attributes than it was written for."""
    nodes = [node for model in models[::SAMPLE] for node in facts_of(ir.from_proto(model))[:1]]
    assert len(nodes) > 20
    conditions = [
        condition
        for table in TABLES
        for row in table.facts["ops"].values()
        for condition in (*row["conditions"], *table.facts.get("global_conditions", ()))
    ]
    own = sum(len(row["conditions"]) for table in TABLES for row in table.facts["ops"].values())
    assert own == 1181 + 163
    distinct = {repr(condition): condition for condition in conditions}
    for condition in distinct.values():
        for node in nodes:
            assert outcome(condition, node, node.opset).holds in (True, False, None)


def test_all_models_are_judged_by_all_tables(models):
    counts = judged(models)
    assert all(found[Status.SUPPORTED] and found[Status.UNSUPPORTED] for found in counts.values())


def test_all_conditions_are_evaluated_on_the_nodes_of_their_operators(models):
    counts = evaluated(models)
    assert sum(counts.values()) > 100_000
    assert {check for check, _ in counts} >= {"rank_max", "input_is_initializer", "attr_in", "dtype_in", "opset_in"}


def test_the_kernel_table_agrees_with_the_kernels_of_the_version_that_it_was_made_from(models):
    ort = pytest.importorskip("onnxruntime")
    from deploykit.converters.onnxruntime.support import kernel_verdict

    table = load_table("ort-cpu-1.32.0")
    if ort.__version__ != table.facts["version"]:
        pytest.skip(f"the table is of {table.facts['version']}, and {ort.__version__} is installed")
    seen = Counter()
    differ = Counter()
    for proto in models:
        model = ir.from_proto(proto)
        for facts, node in zip(facts_of(model), graph.all_nodes(model), strict=True):
            said, here = table.judge(facts), kernel_verdict(node, model)
            seen[said.runs] += 1
            if said.runs is not here.runs and said.status is not Status.CONDITIONAL:
                differ[facts.op, said.runs] += 1
    assert seen[True] > 14_000
    assert seen[False] > 100
    # Bernoulli runs by a definition that has no kernel itself; the table merges kernels of OneHot that are apart.
    assert set(differ) == {("Bernoulli", False), ("OneHot", True)}
