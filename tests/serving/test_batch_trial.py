"""Which models' requests may share a call: found by trying, never by trusting the shapes."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit.runtime import RuntimeOptions, open_runtime
from deploykit.serving.batch_trial import AUTO_ROWS, batched_inputs, policy_for
from deploykit.serving.batching import BatchPolicy

ROWS = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 3] x) => (float[N, 3] y) { y = Softmax(x) }"""
MEAN = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 3] x) => (float[N, 3] y) { m = ReduceMean<axes=[0]>(x)  y = Sub(x, m) }"""
SCALES = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 3] x) => (float[N, 3] y) { q, s, z = DynamicQuantizeLinear(x)  y = DequantizeLinear(q, s, z) }"""
FIXED = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 3] x) => (float[1, 3] y) { y = Softmax(x) }"""
STATE = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 3] x, float[2, N] h) => (float[N, 3] y, float[2, N] hn) { y = Softmax(x)  hn = Neg(h) }"""
MEMBERS = """<ir_version: 8, opset_import: ["": 17]>
g (int64[N, 3] x) => (int64[N, 3] y) { y = Identity(x) }"""


@pytest.fixture
def opened(model_file):
    def one(name, text):
        return open_runtime(model_file(name, text), RuntimeOptions(threads=1))

    return one


def feeds(dtype=np.float32):
    return {"x": np.asarray([[1, 2, 5]], dtype)}


def test_a_model_whose_rows_are_independent_may_batch(opened):
    runtime = opened("rows", ROWS)
    assert batched_inputs(runtime) == ("x",)
    asked = BatchPolicy(8, 0.001)
    assert policy_for(runtime, feeds(), asked) == (asked, None)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("mean", MEAN, "'y' of a row depends on the rows beside it"),
        ("scales", SCALES, "'y' of a row depends on the rows beside it"),
        ("fixed", FIXED, "do not all begin with the same symbolic dimension"),
        ("state", STATE, "do not all begin with the same symbolic dimension"),
    ],
)
def test_other_models_are_computed_alone_whatever_is_asked(opened, name, text, why):
    given = feeds() | ({"h": np.ones((2, 1), np.float32)} if name == "state" else {})
    if name == "scales":
        given = {"x": np.asarray([[0.1, 0.2, 50]], np.float32)}
    for asked in (BatchPolicy(8), None):
        policy, reason = policy_for(opened(name, text), given, asked)
        assert policy.max_rows == 1
        assert why in (reason or "")


def test_without_a_wish_a_trial_decides_and_says_why_not(opened, monkeypatch):
    runtime = opened("small rows", ROWS)
    share = {"of": 0.2}
    monkeypatch.setattr("deploykit.serving.batch_trial._share", lambda *_: share["of"])
    assert policy_for(runtime, feeds(), None) == (BatchPolicy(AUTO_ROWS), None)
    share["of"] = 0.95
    policy, why = policy_for(runtime, feeds(), None)
    assert policy.max_rows == 1
    assert why == "8 rows take 0.95 of their time one by one, so batches gain nothing"


def test_whole_numbers_are_compared_exactly(opened):
    assert policy_for(opened("members", MEMBERS), feeds(np.int64), BatchPolicy(4))[1] is None


def test_a_call_that_fails_for_two_keeps_requests_apart(opened):
    runtime = opened("one only", ROWS)
    whole = runtime.predict

    def refuse(given):
        if given["x"].shape[0] > 1:
            raise RuntimeError("one row only")
        return whole(given)

    runtime.predict = refuse
    policy, why = policy_for(runtime, feeds(), BatchPolicy(8))
    assert (policy.max_rows, why) == (1, "two requests in one call fail: one row only")


EMBEDDED = """<ir_version: 8, opset_import: ["": 17]>
g (int64[N, 3] tokens) => (float[N, 3, 1] y)
<float[6, 1] table = {0.01, 0.02, 0.5, 1.0, 10.0, 100.0}> {
    e = Gather(table, tokens)
    q, s, z = DynamicQuantizeLinear(e)
    y = DequantizeLinear(q, s, z)
}"""


def test_scales_over_token_ids_are_found_although_their_order_does_not_change_them(opened):
    runtime = opened("embedded", EMBEDDED)
    given = {"tokens": np.asarray([[5, 3, 0]])}
    assert "depends on the rows beside it" in (policy_for(runtime, given, BatchPolicy(8))[1] or "")
    # Ids of which smaller ones are the same: other requests tell.
    low, high = {"tokens": np.zeros((1, 3), np.int64)}, {"tokens": np.full((1, 3), 5)}
    assert "depends on the rows beside it" in (policy_for(runtime, low, BatchPolicy(8), [high])[1] or "")
    # One that the model refuses by itself says nothing about two.
    wrong = {"tokens": np.full((1, 3), 99)}
    assert policy_for(opened("members again", MEMBERS), feeds(np.int64), BatchPolicy(4), [{}, wrong])[1] is None
