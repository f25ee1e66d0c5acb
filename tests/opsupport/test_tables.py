"""Operator tables: verdicts of each kind, with reason, remedy and source."""

import time

import pytest

from deploykit.opsupport import Status
from deploykit.opsupport.tables import load_table, table_for
from deploykit.target import get_target, parse_target, target_names

RELU = "({0} x) => ({0} y) {{ y = Relu (x) }}"
EVERY = [name for target in map(get_target, target_names()) for name in target.tables.values()]


@pytest.mark.parametrize("name", EVERY)
def test_every_table_of_a_target_loads_and_names_itself(name):
    table = load_table(name)
    assert table.source
    assert "{" not in table.source
    target, version = parse_target(table.asked)
    assert table_for(target, version) == (table, None)


def test_all_tables_of_the_package_belong_to_a_target():
    from importlib import resources

    files = (resources.files("deploykit.opsupport") / "optables").iterdir()
    assert {file.name.removesuffix(".json") for file in files} == set(EVERY)


def test_an_operator_without_conditions_is_supported(last_of):
    verdict = load_table("tensorrt-11.1").judge(last_of(RELU.format("float[2]")))
    assert (verdict.status, verdict.source) == (Status.SUPPORTED, "TensorRT 11.1 operator table")


def test_an_operator_that_is_not_listed_is_refused(last_of):
    node = last_of("(float[2] x) => (y) { y = my.Op (x) }", imports=', "my": 1')
    verdict = load_table("tensorrt-11.1").judge(node)
    assert verdict.status is Status.UNSUPPORTED
    assert verdict.reason == "the TensorRT 11.1 operator table lists no my.Op"


def test_a_listed_operator_that_is_not_taken_is_refused(last_of):
    node = last_of("(string[2] x, string[2] y) => (z) { z = StringConcat (x, y) }")
    verdict = load_table("tensorrt-11.1").judge(node)
    assert verdict.reason == "the TensorRT 11.1 operator table does not have StringConcat"


def test_an_operator_that_the_standard_defines_by_others_has_a_way_out(last_of):
    node = last_of("(float[2] x) => (y) { y = Mish (x) }")
    verdict = load_table("qnn").judge(node)
    assert verdict.status is Status.UNSUPPORTED
    assert "deploykit check MODEL --target onnxruntime@qnn --fix -o OUT" in verdict.remedy


def test_a_type_that_is_not_taken(last_of):
    verdict = load_table("tensorrt-11.1").judge(
        last_of("(int8[2,2] a, int8[2,2] b) => (c) { c = MatMulInteger (a, b) }")
    )
    assert verdict.status is Status.UNSUPPORTED
    verdict = load_table("tensorrt-11.1").judge(last_of("(bool[2] x) => (y) { y = NonZero (x) }"))
    assert verdict.reason == "input 0 'x' is bool, not float32 or float16"


def test_a_type_that_is_narrowed_is_a_condition_and_no_refusal(last_of):
    verdict = load_table("tensorrt-11.1").judge(last_of(RELU.format("double[2]")))
    assert verdict.status is Status.CONDITIONAL
    assert "narrowed to float32" in verdict.reason


def test_the_main_tensor_is_the_one_whose_type_varies(last_of):
    table = load_table("tensorrt-11.1")
    where = "(bool[2] c, float[2] x, float[2] y) => (z) { z = Where (c, x, y) }"
    assert table.judge(last_of(where)).status is Status.SUPPORTED
    text = "(float[2] x) => (y) { y = Cast <to = 8> (x) }"
    assert "output 0 'y' is string" in table.judge(last_of(text)).reason
    fill = "(int64[1] s) => (y) { y = ConstantOfShape <value = double[1] {1}> (s) }"
    assert "narrowed" in table.judge(last_of(fill)).reason


def test_a_broken_condition_refuses_and_all_are_told(last_of):
    node = last_of("(float[2,5000] x) => (v, i) <int64[1] k = {4000}> { v, i = TopK <sorted = 0> (x, k) }")
    verdict = load_table("tensorrt-11.1").judge(node)
    assert verdict.status is Status.UNSUPPORTED
    assert "attribute 'sorted' is 0, only 1 is taken" in verdict.reason
    assert "input 1 'k' is 4000, at most 3840 is taken" in verdict.reason


def test_a_condition_that_cannot_be_told_is_conditional(last_of):
    node = last_of("(float[2,5000] x, int64[1] k) => (v, i) { v, i = TopK (x, k) }")
    verdict = load_table("tensorrt-11.1").judge(node)
    assert verdict.status is Status.CONDITIONAL
    assert "input 1 'k'" in verdict.reason


def test_conditions_for_all_operators_are_looked_at(last_of):
    verdict = load_table("tensorrt-11.1").judge(last_of(RELU.format("float[1,1,1,1,1,1,1,1,2]")))
    assert verdict.reason == "input 0 'x' has rank 9, at most 8 is taken"


def test_a_type_of_all_operators_gives_way_to_an_operators_own(last_of):
    table = load_table("coreml-ep-mlprogram")
    refused = table.judge(last_of("(bool[2] a) => (y) { y = Sqrt (a) }"))
    assert "is bool, not float32, float16 or int64" in refused.reason
    cast = table.judge(last_of("(int32[2] x) => (y) { h = Cast <to = 1> (x) y = Cast <to = 6> (h) }"))
    assert cast.status is not Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("opset", "graph", "expected"),
    [
        (24, "(float[2] x) => (y) { y = Relu (x) }", Status.SUPPORTED),
        (25, "(float[2] x) => (y) { y = Relu (x) }", Status.SUPPORTED),  # as in opset 24: not revised since 14
        (25, "(float[2] x) => (y) { y = Cast <to = 10> (x) }", Status.UNKNOWN),  # revised in opset 25
        (8, "(float[2] x) => (y) { y = Relu (x) }", Status.SUPPORTED),
        (7, "(float[2] x) => (y) { y = Cast <to = 10> (x) }", Status.UNKNOWN),  # revised in opset 9
    ],
)
def test_beyond_its_opsets_a_table_speaks_of_what_was_not_revised(last_of, opset, graph, expected):
    verdict = load_table("tensorrt-11.1").judge(last_of(graph, opset))
    assert verdict.status is expected
    if expected is Status.UNKNOWN:
        assert f"opset {opset}" in verdict.reason


def test_an_operator_that_ended_is_refused_at_later_opsets(last_of):
    text = "(float[1,1,2,2] x) => (y) <float[4] s = {1, 1, 2, 2}> { y = Upsample (x, s) }"
    assert load_table("ort-web-webgl").judge(last_of(text, 9)).status is Status.SUPPORTED
    verdict = load_table("ort-web-webgl").judge(
        last_of("(float[4] x) => (a, b) { a, b = Split <num_outputs = 2> (x) }", 18)
    )
    assert verdict.reason == "the model's opset is 18, and Split is taken in opsets 2-12"


def test_kernels_follow_the_rule_of_the_registry(last_of):
    pool = "(float[1,1,2,2] x) => (y) { y = GlobalLpPool (x) }"
    assert load_table("ort-cpu-1.32.0").judge(last_of(pool, 21)).status is Status.SUPPORTED
    refused = load_table("ort-cpu-1.32.0").judge(last_of(pool, 22))
    assert refused.status is Status.UNSUPPORTED
    assert "revised in opset 22" in refused.reason
    assert "--target onnxruntime@cpu" in refused.remedy


def test_an_operator_without_a_kernel_runs_by_its_definition(last_of):
    verdict = load_table("ort-cpu-1.32.0").judge(last_of("(float[2] x) => (y) { y = Mish (x) }"))
    assert verdict.status is Status.CONDITIONAL
    assert "function body" in verdict.reason


def test_float16_runs_on_the_cpu_and_is_refused_where_it_is_not_computed_otherwise(last_of):
    conv = "(float16[1,1,4,4] x, float16[1,1,3,3] w) => (y) { y = Conv (x, w) }"
    assert load_table("ort-cpu-1.32.0").judge(last_of(conv, 21)).status is Status.SUPPORTED
    assert load_table("ort-web-wasm").judge(last_of(conv, 21)).status is Status.SUPPORTED


def test_constants_are_computed_before_a_provider_is_asked(last_of):
    text = "(float[1,4] x) => (y) <float[2,4] w = {1,2,3,4,5,6,7,8}> { t = Neg (w) y = Gemm <transB = 1> (x, t) }"
    assert load_table("coreml-ep-mlprogram").judge(last_of(text)).status is not Status.UNSUPPORTED
    table = load_table("ort-web-webnn")
    assert table.falls_back


@pytest.mark.parametrize("name", EVERY)
def test_what_is_left_to_another_engine_falls_back(name):
    expected = {"ort-cuda", "ort-dml", "qnn", "coreml-ep-mlprogram", "nnapi", "ort-web-webgpu", "ort-web-webnn"}
    assert load_table(name).falls_back is (name in expected)


def test_a_version_between_two_tables_takes_the_lower_one_and_says_so():
    table, said = table_for(*parse_target("tensorrt@10.9"))
    assert table is load_table("tensorrt-10.1")
    assert said.code == "DK213"
    assert said.severity == "note"
    assert "10.9" in said.message
    assert "10.1" in said.message


def test_a_target_without_tables_has_none():
    assert table_for(*parse_target("coreml")) == (None, None)


def test_problems_name_the_conditions_that_are_broken(last_of):
    node = last_of("(float[2,9] x) => (v, i) <int64[1] k = {4}> { v, i = TopK <sorted = 0> (x, k) }")
    (found,) = load_table("tensorrt-11.1").problems(node)
    assert found.condition["machine"]["check"] == "attr_equals"


def test_a_thousand_nodes_are_judged_by_all_tables_within_a_second(nodes_of):
    chain = " ".join(f"t{i} = Conv <pads = [1, 1, 1, 1]> (t{i - 1}, w)" for i in range(1, 1001))
    text = f"(float[n,1,8,8] t0) => (t1000) <float[1,1,3,3] w = {{1,2,3,4,5,6,7,8,9}}> {{ {chain} }}"
    facts = nodes_of(text)
    tables = [load_table(name) for name in EVERY]
    taken = []
    for _ in range(3):
        started = time.process_time()
        for table in tables:
            for node in facts:
                table.judge(node)
        taken.append(time.process_time() - started)
    assert len(facts) == 1000
    assert min(taken) < 1.0
