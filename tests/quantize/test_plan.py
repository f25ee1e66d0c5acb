import numpy as np
import pytest
from quantize_models import SYMMETRIC, onnx_text

from deploykit.errors import UsageError
from deploykit.quantize.findings import about_plan
from deploykit.quantize.plan import make_plan
from deploykit.quantize.prepare import load_float
from deploykit.target import QuantizationScheme

RNG = np.random.default_rng(0)
MIXED = """g (float[5,1,4] x, bool cond) => (float[5,1,4] y, float[5,4] z) {
    [rnn] h, last = LSTM <hidden_size=4> (x, lw, lr)
    [squeeze] s = Squeeze (h, one)
    [mm] m = MatMul (s, w)
    [branch] y = If (cond) <
        then_branch = t () => (float[5,1,4] ty) { [inner] ty = MatMul (m, w) },
        else_branch = e () => (float[5,1,4] ey) { ey = Identity (m) }
    >
    [sq2] m2 = Squeeze (m, one)
    [fc] z = Gemm (m2, w)
}"""


@pytest.fixture
def model(tmp_path):
    weights = {
        "lw": RNG.normal(size=(1, 16, 4)).astype(np.float32),
        "lr": RNG.normal(size=(1, 16, 4)).astype(np.float32),
        "w": RNG.normal(size=(4, 4)).astype(np.float32),
        "one": np.array([1], np.int64),
    }
    return load_float(onnx_text(MIXED, tmp_path / "m.onnx", **weights))[0]


def names(plan):
    return [node.name for node in plan.nodes]


def reasons(plan):
    return {item.name: item.reason for item in plan.left}


def test_recurrent_nodes_and_bodies_stay_float_with_a_reason(model):
    plan = make_plan(model, SYMMETRIC)
    assert names(plan) == ["mm", "fc"]
    assert "recurrent" in reasons(plan)["rnn"]
    assert "If 'branch'" in reasons(plan)["inner"]
    assert {finding.node for finding in about_plan(plan.nodes, plan.left)} == {"rnn", "branch"}


@pytest.mark.parametrize("exclude", ["mm", "MatMul"])
def test_exclusion_by_node_and_by_operator(model, exclude):
    plan = make_plan(model, SYMMETRIC, exclude=[exclude])
    assert names(plan) == ["fc"]
    assert reasons(plan)["mm"] == "excluded"


def test_an_exclusion_that_names_nothing_is_refused(model):
    with pytest.raises(UsageError, match="'matmul'") as caught:
        make_plan(model, SYMMETRIC, exclude=["matmul"])
    assert caught.value.code == "DK354"


def test_the_scheme_decides_the_operators(model):
    plan = make_plan(model, QuantizationScheme(operators=("Conv",)))
    assert plan.nodes == []
    assert "does not quantize MatMul" in reasons(plan)["mm"]
    assert "DK356" in {finding.code for finding in about_plan(plan.nodes, plan.left)}


def test_a_node_whose_input_has_no_range_stays_float(model):
    plan = make_plan(model, SYMMETRIC, unseen={"s"})
    assert names(plan) == ["fc"]
    assert "'s' was empty" in reasons(plan)["mm"]


def test_what_a_logarithm_measures_stays_float(tmp_path):
    text = """g (float[1,1,64] x) => (float[1,4,60] y) {
        [spectrum] a = Conv (x, w1)
        [power] p = Mul (a, a)
        [floor] f = Max (p, tiny)
        [level] l = Log (f)
        [net] y = Conv (l, w2)
    }"""
    weights = {
        "w1": RNG.normal(size=(4, 1, 5)).astype(np.float32),
        "w2": RNG.normal(size=(4, 4, 1)).astype(np.float32),
        "tiny": np.float32([1e-12]),
    }
    plan = make_plan(load_float(onnx_text(text, tmp_path / "m.onnx", **weights))[0], SYMMETRIC)
    assert names(plan) == ["net"]
    assert "'level'" in reasons(plan)["spectrum"]


@pytest.mark.parametrize("integers", [True, False])
def test_extremes_are_found_among_integers_where_the_scheme_asks_for_it(tmp_path, integers):
    text = """g (float[1,4,6,6] x) => (float[1,2,1,1] y) {
        [halve] h = Sigmoid (x)
        [largest] m = GlobalMaxPool (h)
        [conv] y = Conv (m, w)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", w=RNG.normal(size=(2, 4, 1, 1)).astype(np.float32))
    plan = make_plan(load_float(path)[0], QuantizationScheme(lifted_pairs=integers))
    assert [value.name for value in plan.readers] == (["h"] if integers else ["m"])
    assert plan.group("m") == plan.group("h") if integers else plan.group("h") == "h"
