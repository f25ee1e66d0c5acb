"""Models in older and newer opsets give what they gave; what an opset cannot say is refused, not bent."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from deploykit import graph
from deploykit.optimizers.rewrites.convert_opset import NewerOpset, OlderOpset, OlderOpsetByThree, OlderOpsetByTwo


def converted(rewritten, rewrite, body, *feeds, opset, to, only=None, **given):
    result = rewritten(rewrite, body, *feeds, opset=opset, only=only, **given)
    assert graph.opset(result.model) == to
    for before, after in zip(result.expected, result.found, strict=True):
        for a, b in zip(before, after, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    return result


def ops(result):
    return result.ops


X = {"x": np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)}


def test_a_pool_that_onnxruntime_has_no_kernel_for_at_22(rewritten):
    body = "agraph (float[N,3,4] x) => (float[N,3,1] y) { y = GlobalLpPool<p=2>(x) }"
    result = converted(rewritten, OlderOpset(), body, opset=22, to=21)
    found = _session(ir.to_proto(result.model)).run(None, X)[0]
    np.testing.assert_allclose(found[..., 0], np.sqrt((X["x"] ** 2).sum(-1)), rtol=1e-5)
    assert result.changes[0].text.startswith("opset 22 as 21")
    assert result.changes[0].bound == "fp32"


@pytest.mark.parametrize("axis", [-1, 1, 0])
@pytest.mark.parametrize(("rewrite", "opset", "to"), [(OlderOpset(), 13, 12), (NewerOpset(), 12, 13)])
def test_softmax_means_one_dimension_from_13_on(rewritten, rewrite, axis, opset, to):
    body = f"agraph (float[N,3,4] x) => (float[N,3,4] y) {{ y = Softmax<axis={axis}>(x) }}"
    result = converted(rewritten, rewrite, body, X, opset=opset, to=to)
    assert ("Transpose" in ops(result) or "Flatten" in ops(result)) == (axis != -1)


@pytest.mark.parametrize(("rewrite", "opset", "to"), [(OlderOpset(), 13, 12), (NewerOpset(), 11, 13)])
def test_softmax_without_an_axis(rewritten, rewrite, opset, to):
    body = "agraph (float[N,3,4] x) => (float[N,3,4] y) { y = Softmax(x) }"
    converted(rewritten, rewrite, body, X, opset=opset, to=to)


def test_axes_and_parts_become_attributes_and_come_back(rewritten):
    inputs = """agraph (float[N,3,4] x) =>
        (float[N,1,4] m, float[N,3,4,1] u, float[N,3,2] a, float[N,3,2] b, float[N,4] s)
        <int64[1] one = {1}, int64[1] last = {-1}, int64[2] parts = {2, 2}>
        { m = ReduceMean<keepdims=1>(x, one)
          u = Unsqueeze(x, last)
          a, b = Split<axis=2>(x, parts)
          s = Squeeze(m, one) }"""
    result = converted(
        rewritten, OlderOpset(), inputs.replace("(x, one)", "(x, one)"), X, opset=18, to=17, only=["ReduceMean_1"]
    )
    back = converted(rewritten, NewerOpset(), ir.to_proto(result.model), X, opset=17, to=18, only=["ReduceMean_1"])
    assert sorted(ops(back)) == ["ReduceMean", "Split", "Squeeze", "Unsqueeze"]
    older = converted(rewritten, OlderOpset(), ir.to_proto(result.model), X, opset=17, to=12, only=["Squeeze_1"])
    assert not older.model.graph.initializers
    newer = converted(rewritten, NewerOpset(), ir.to_proto(older.model), X, opset=12, to=13, only=["Squeeze_1"])
    assert len(newer.model.graph.initializers) == 3


def test_equal_parts_are_counted_from_18_on(rewritten):
    body = """agraph (float[2,3,5] x) => (float[2,3,3] a, float[2,3,2] b) { a, b = Split<axis=-1, num_outputs=2>(x) }"""
    feeds = {"x": np.zeros((2, 3, 5), np.float32)}
    result = converted(rewritten, OlderOpset(), body, feeds, opset=18, to=17)
    assert "num_outputs" not in result.model.graph[0].attributes


def test_defaults_that_changed_are_written_out(rewritten):
    body = """agraph (float[1,1,3,3] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample(x, g) }"""
    feeds = {"x": np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3), "g": np.full((1, 2, 2, 2), 0.3, np.float32)}
    result = converted(rewritten, OlderOpset(), body, feeds, opset=20, to=19)
    assert result.model.graph[0].attributes["mode"].as_string() == "bilinear"


def test_part_of_a_shape_is_sliced(rewritten):
    body = "agraph (float[N,3,4] x) => (int64[1] y) { y = Shape<start=-2, end=-1>(x) }"
    assert ops(converted(rewritten, OlderOpset(), body, X, opset=15, to=14)) == ["Shape", "Slice"]


def test_bodies_and_functions_come_along(rewritten):
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 18, "own": 1]>
        agraph (float[N,3,4] x, bool c) => (float[N,1,4] y) <int64[1] one = {1}>
        { m = own.Mean(x)
          y = If(c) <then_branch = t () => (float[N,1,4] a) { r = ReduceMax<keepdims=1>(x, one)
                                                             a = Add(r, m) },
                     else_branch = e () => (float[N,1,4] b) { b = Neg(m) }> }
        <domain: "own", opset_import: ["": 18]>
        Mean (v) => (w) { at = Constant<value = int64[1] {1}>()
                          w = ReduceMean<keepdims=1>(v, at) }""")
    feeds = [{**X, "c": np.array(flag)} for flag in (True, False)]
    result = converted(rewritten, OlderOpset(), model, *feeds, opset=18, to=17, only=["ReduceMax_1"])
    assert {function.opset_imports[""] for function in result.model.functions.values()} == {17}


@pytest.mark.parametrize(
    ("opset", "body", "shape"),
    [
        (13, "a = ReduceSum<keepdims=0>(x, i)\n y = Expand(a, s)", "A,B,C"),  # axes that are computed
        (18, 'y = ScatterElements<axis=0, reduction="max">(x, z, x)', "1,3,4"),  # a reduction that 16 lacks
        (19, 'y = Pad<mode="wrap">(x, p)', "1,3,4"),
        (22, "y = MaxPool<kernel_shape=[1], strides=[2], ceil_mode=1>(x)", "1,3,2"),  # another last window
    ],
)
def test_what_an_older_opset_cannot_say_is_left(rewritten, opset, body, shape):
    result = rewritten(
        OlderOpset(),
        f"""agraph (float[1,3,4] x, int64[1] i, int64[3] s) => (float[{shape}] y)
        <int64[1,1,1] z = {{0}}, int64[6] p = {{0,0,0,0,0,0}}> {{ {body} }}""",
        opset=opset,
    )
    assert result.changes == []
    assert graph.opset(result.model) == opset


def _cases():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute infinities on purpose
        return [case for case in collect_testcases(None) if case.model is not None and case.data_sets]


def _session(proto):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _outcome(proto, feeds):
    """Outputs, or None where onnxruntime has no kernel for a node or refuses what it is fed."""
    try:
        return _session(proto).run(None, feeds)
    except Exception:  # onnxruntime's own classes; whether the model is valid is the checker's to say
        return None


@pytest.mark.slow
@pytest.mark.parametrize(
    "rewrite", [OlderOpset(), OlderOpsetByTwo(), OlderOpsetByThree(), NewerOpset()], ids=lambda r: r.name
)
def test_every_node_test_gives_the_same_in_the_other_opset(rewrite):
    """Against onnxruntime before; where it has no kernel, only the checker judges."""
    compared = 0
    for case in _cases():
        arrays = [np.asarray(v) if isinstance(v, np.generic) else v for v in case.data_sets[0][0]]
        feeds = {i.name: v for i, v in zip(case.model.graph.input, arrays, strict=False)}
        if not all(isinstance(v, np.ndarray) and v.dtype.kind in "fiubO" for v in feeds.values()):
            continue
        model = graph.name_nodes(graph.infer_shapes(ir.from_proto(case.model)))
        nodes = [node for node in graph.all_nodes(model) if rewrite.applies(node, model)]
        if not nodes or not rewrite.apply(model, nodes):
            continue
        after = ir.to_proto(model)
        onnx.checker.check_model(after, full_check=True)
        if any(node.op_type in ("Bernoulli", "RandomUniformLike") for node in graph.all_nodes(model)):
            continue
        before, now = _outcome(case.model, feeds), _outcome(after, feeds)
        if before is None or now is None:
            continue
        for a, b in zip(before, now, strict=True):
            if isinstance(a, np.ndarray) and a.dtype.kind == "f":
                # Another revision may be another kernel: the same but for rounding.
                rtol = 1e-2 if a.dtype == np.float16 else 1e-4
                np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol / 10, err_msg=case.name)
            elif isinstance(a, np.ndarray):
                np.testing.assert_array_equal(b, a, err_msg=case.name)
        compared += 1
    assert compared > 250
