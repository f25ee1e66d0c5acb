"""Measured tables: how points are judged, and that a sample of them is still as measured."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

import onnx_ir as ir
import pytest

from deploykit import lazy
from deploykit.opsupport import Status
from deploykit.opsupport.facts import facts_of
from deploykit.opsupport.measured import WRONG, Measured, load_measured, signature
from deploykit.target import get_target

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ENGINES = ("onnxruntime", "openvino", "tensorrt-rtx", "coreml")
SAMPLE = 24
RELU = "(float[2] x) => (float[2] y) { y = Relu (x) }"


@pytest.fixture
def made():
    """A table with one operator revision: its points, and reasons."""

    def table(key, since, points, *reasons):
        return Measured("engine", "1.0", "Engine", {key: {str(since): points}}, reasons, None)

    return table


def test_a_point_is_types_constants_rank_and_open_dimensions(last_of):
    text = "(float[n,3] x, float16[3] z) => (float[n,3] y) <int64[1] a = {1}> { y = my.Op (x, , a, z) }"
    assert signature(last_of(text, imports=', "my": 1')) == "float32,-,int64,float16>float32 v-cv 2 open"


def test_a_long_row_of_like_inputs_is_one_point(last_of):
    three, five = (
        f"({', '.join(f'float[2] x{i}' for i in range(n))}) => (y) {{ y = Concat <axis=0> "
        f"({', '.join(f'x{i}' for i in range(n))}) }}"
        for n in (3, 5)
    )
    assert signature(last_of(three)) == signature(last_of(five)) == "float32,float32>float32 vv 1"


def test_a_measured_point_speaks_and_no_other(made, last_of):
    table = made("ai.onnx:Relu", 14, {"float32>float32 v 1": 1, "float64>float64 v 1": [0]}, "no such type")
    assert table.judge(last_of(RELU)).status is Status.SUPPORTED
    refused = table.judge(last_of(RELU.replace("float", "double")))
    assert (refused.status, refused.reason) == (
        Status.UNSUPPORTED,
        "no such type (with the types float64, rank 1)",
    )
    assert "float64" in refused.remedy
    assert refused.source == "measured on Engine 1.0"
    other = table.judge(last_of(RELU.replace("float", "int32")))
    assert (other.status, other.reason) == (Status.UNKNOWN, "Relu was not measured with the types int32, rank 1")


def test_another_rank_of_what_ran_is_a_condition_and_of_what_did_not_is_unknown(made, last_of):
    points = {"float32>float32 v 3": 1, "float32>float32 v 4 open": 1, "float64>float64 v 3": [0]}
    table = made("ai.onnx:Relu", 14, points, "no such type")
    assert table.judge(last_of(RELU)).status is Status.UNKNOWN
    near = table.near(last_of(RELU))
    assert (near.status, near.reason) == (
        Status.CONDITIONAL,
        "Relu was not measured with the types float32, rank 1; it ran in rank 3, 4",
    )
    assert table.near(last_of(RELU.replace("float", "double"))).status is Status.UNKNOWN
    assert table.judge(last_of(RELU, 13)).reason == "its revisions 14 were measured, not 13"
    assert table.judge(last_of("(float[2] x) => (float[2] y) { y = Abs (x) }")).reason == "it was not measured"


def test_an_attribute_that_decides_is_named(made, last_of):
    point = {"attribute": "mode", "taken": ['"a"'], "refused": {'"b"': 0}}
    table = made("my:Op", None, {"float32>unknown v 1": point}, f"{WRONG} other values")
    text = '(float[2] x) => (y) {{ y = my.Op <mode="{}"> (x) }}'

    def judged(mode):
        return table.judge(last_of(text.format(mode), imports=', "my": 1'))

    assert judged("a").status is Status.SUPPORTED
    assert judged("b").reason == f'{WRONG} with mode "b": other values (with the types float32, rank 1)'
    assert judged("c").status is Status.CONDITIONAL
    assert '"a"' in judged("c").remedy
    assert table.wrong(last_of(text.format("b"), imports=', "my": 1')) == judged("b").reason
    assert table.wrong(last_of(text.format("a"), imports=', "my": 1')) is None


def test_what_went_both_ways_is_a_condition(made, last_of):
    table = made("ai.onnx:Relu", 14, {"float32>float32 v 1": {"attribute": None, "refused": [0]}}, "sometimes")
    verdict = table.judge(last_of(RELU))
    assert (verdict.status, "sometimes" in verdict.reason) == (Status.CONDITIONAL, True)
    assert table.wrong(last_of(RELU)) is None


def test_rules_know_more_than_points(last_of):
    verdict = load_measured("openvino").judge(last_of("(float[2,2] x, int64[2] r) => (y) { y = Tile (x, r) }", 13))
    assert "uninitialised" in verdict.reason


def test_an_engine_that_was_not_measured_has_no_table():
    assert load_measured("ncnn") is None
    assert load_measured("tensorrt") is None


@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_is_small_and_of_its_engine(engine):
    table = load_measured(engine)
    assert get_target(engine).measured == table.engine == engine
    assert table.version in table.source
    assert sum(len(points) for revisions in table.operators.values() for points in revisions.values()) > 2000
    assert all(reason.strip() and "/tmp" not in reason and "test_" not in reason for reason in table.reasons)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sample_of_points_is_still_as_measured(engine):
    table = load_measured(engine)
    have = lazy.version_of(get_target(engine).distributions[0])
    if have != table.version:
        pytest.skip(f"measured on {engine} {table.version}, installed is {have}")
    sys.path.insert(0, str(BENCHMARKS))
    try:
        variations = importlib.import_module("operator_variations")
        compatibility = importlib.import_module("compatibility")
        says_nothing = importlib.import_module("operator_sweep")._says_nothing
        names = random.Random(engine).sample([name for name in variations.names() if ";" in name], 3 * SAMPLE)
        verdicts = {}
        for name in names:
            case = variations.case(name)
            verdict = None if case is None else table.judge(facts_of(ir.from_proto(case.model))[0])
            if verdict is not None and verdict.status in (Status.SUPPORTED, Status.UNSUPPORTED):
                verdicts[name] = verdict
        verdicts = dict(list(verdicts.items())[:SAMPLE])
        assert len(verdicts) == SAMPLE
        made = dict(compatibility.outcomes(engine, list(verdicts), function="operator_outcomes:varied"))
    finally:
        sys.path.remove(str(BENCHMARKS))
    drifted = {
        name: (verdict.status, made[name])
        for name, verdict in verdicts.items()
        if (verdict.status is Status.SUPPORTED) != (made[name][0] in ("right", "built"))
        and not (verdict.status is Status.SUPPORTED and says_nothing(name, made[name], table.limits))
    }
    assert drifted == {}
