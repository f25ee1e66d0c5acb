"""The interpreter: rounding, declared shapes, what it refuses, and operators against coremltools' own evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from coremltools.converters.mil.mil import Builder as mb  # noqa: N813 - its own name for it
from coremltools.converters.mil.mil import Function, Program, get_new_symbol, types

from deploykit.converters.coreml.simulator import Interpreter, lacking
from deploykit.converters.coreml.simulator.table import EVALUATORS, Undocumented
from deploykit.errors import UnavailableError, VendorError

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
PLANE = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)
WHOLE = np.arange(-6, 6, dtype=np.int32).reshape(3, 4)
ROWS = np.array([[0, 2], [1, 1]], np.int32)


def function(build, **inputs):
    """A MIL function of the given inputs (arrays say shape and type)."""
    kinds = {np.dtype(np.float32): types.fp32, np.dtype(np.float16): types.fp16, np.dtype(np.int32): types.int32}
    specs = {name: mb.TensorSpec(array.shape, kinds[array.dtype]) for name, array in inputs.items()}
    import coremltools as ct

    with Function(specs, opset_version=ct.target.iOS17) as made:
        made.set_outputs([build(**made.inputs)])
    Program().add_function("main", made)
    return made


def run(build, **inputs):
    (result,) = Interpreter(function(build, **inputs), "m").run(inputs).values()
    return result


# Operator, arguments: coremltools evaluates it when all are constants (its value_inference), which is Apple's own code.
FOLDED = [
    ("band_part", {"x": X, "lower": 1, "upper": 0}),
    ("concat", {"values": (X, X + 1), "axis": 1}),
    ("elu", {"x": X, "alpha": np.float32(0.7)}),
    ("erf", {"x": X}),
    ("expand_dims", {"x": X, "axes": [0, 2]}),
    ("floor_div", {"x": WHOLE, "y": np.int32(4)}),
    ("floor_div", {"x": X, "y": np.float32(0.7)}),
    ("gather", {"x": X, "indices": ROWS, "axis": 1}),
    ("gather_nd", {"x": X, "indices": ROWS[:, :1] * 0 + 1}),
    ("leaky_relu", {"x": X, "alpha": np.float32(0.3)}),
    ("layer_norm", {"x": X, "axes": [2], "epsilon": np.float32(0.1)}),
    ("linear", {"x": X, "weight": X[0], "bias": X[0, :, 0].copy()}),
    ("log", {"x": np.abs(X), "epsilon": np.float32(0.5)}),
    ("matmul", {"x": X, "y": X, "transpose_y": True}),
    ("mod", {"x": WHOLE, "y": np.int32(5)}),
    ("mod", {"x": X, "y": np.float32(0.7)}),
    ("pad", {"x": PLANE, "pad": [1, 2, 0, 1], "mode": "reflect"}),
    ("pad", {"x": X, "pad": [0, 0, 1, 2, 0, 0], "mode": "constant", "constant_val": np.float32(3)}),
    ("pow", {"x": np.abs(X), "y": np.float32(1.5)}),
    ("range_1d", {"end": 9, "start": 1, "step": 3}),
    ("real_div", {"x": X, "y": np.float32(3)}),
    ("reduce_log_sum_exp", {"x": X, "axes": [1], "keep_dims": True}),
    ("reduce_mean", {"x": X, "axes": [0, 2]}),
    ("reduce_argmax", {"x": X, "axis": 1}),
    ("reduce_l2_norm", {"x": X, "axes": [1]}),
    ("reshape", {"x": X, "shape": [4, -1]}),
    ("reverse", {"x": X, "axes": [1]}),
    ("round", {"x": np.array([0.5, 1.5, 2.5, -0.5], np.float32)}),
    ("rsqrt", {"x": np.abs(X), "epsilon": np.float32(0.5)}),
    ("inverse", {"x": X + 3, "epsilon": np.float32(0.5)}),
    ("select", {"cond": X > 0, "a": X, "b": -X}),
    ("sigmoid", {"x": X}),
    ("sigmoid_hard", {"x": X, "alpha": np.float32(0.3), "beta": np.float32(0.4)}),
    ("slice_by_index", {"x": X, "begin": [0, 1, 1], "end": [2, 3, 4], "stride": [1, 2, 2]}),
    ("slice_by_size", {"x": X, "begin": [0, 1, 1], "size": [2, 2, -1]}),
    ("sliding_windows", {"x": X, "axis": 2, "size": 2, "stride": 2}),
    ("softmax", {"x": X, "axis": 1}),
    ("softplus", {"x": X}),
    ("softsign", {"x": X}),
    ("split", {"x": X, "split_sizes": [1, 3], "axis": 2}),
    ("squeeze", {"x": X[:1], "axes": [0]}),
    ("stack", {"values": (X, -X), "axis": 1}),
    ("thresholded_relu", {"x": X, "alpha": np.float32(0.6)}),
    ("tile", {"x": X, "reps": [2, 1, 2]}),
    ("topk", {"x": X, "k": 2, "axis": 1, "ascending": True}),
    ("transpose", {"x": X, "perm": [2, 0, 1]}),
    ("clamped_relu", {"x": X, "alpha": np.float32(0.2), "beta": np.float32(1)}),
    ("one_hot", {"indices": ROWS, "one_hot_vector_size": 4, "axis": 1}),
    ("fill", {"shape": [2, 3], "value": np.float32(2)}),
    ("non_zero", {"x": X}),
    ("flatten2d", {"x": X, "axis": 2}),
]


@pytest.mark.parametrize(("op", "arguments"), FOLDED, ids=lambda value: str(value)[:20])
def test_operators_equal_coremltools_own_evaluation(op, arguments):
    import coremltools as ct

    with Function({"unused": mb.TensorSpec((1,))}, opset_version=ct.target.iOS17):
        made = getattr(mb, op)(**arguments)
    expected = [variable.val for variable in (made if isinstance(made, (list, tuple)) else [made])]
    if any(value is None for value in expected):
        pytest.skip("coremltools does not evaluate it")
    results = EVALUATORS[op](
        **{k: np.asarray(v) if not isinstance(v, (tuple, str)) else v for k, v in arguments.items()}
    )
    for result, value in zip(results if isinstance(results, (list, tuple)) else [results], expected, strict=True):
        assert np.shape(result) == np.shape(value)
        np.testing.assert_allclose(result, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "x", "y"),
    [("real_div", -7, 2), ("real_div", 7, 2), ("real_div", 4, 0), ("floor_div", 4, 0), ("mod", 4, 0), ("pow", 2, -1)],
)
def test_integer_results_that_apple_leaves_open_are_not_made_up(op, x, y):
    with pytest.raises(Undocumented):
        EVALUATORS[op](x=np.array([x]), y=np.array([y]))


def test_integers_are_divided_where_the_result_is_an_integer():
    assert EVALUATORS["real_div"](x=np.array([-8, 8]), y=np.array([2, -4])).tolist() == [-4, -2]
    assert EVALUATORS["floor_div"](x=np.array([-7, 7]), y=np.array([2, 2])).tolist() == [-4, 3]
    assert EVALUATORS["mod"](x=np.array([-7, 7]), y=np.array([5, -5])).tolist() == [3, -3]


def test_half_precision_is_rounded_after_each_operator():
    x = np.array([1.0, 300.0, 60000.0], np.float16)
    third = run(lambda x: mb.mul(x=mb.mul(x=x, y=np.float16(1 / 3)), y=np.float16(3)), x=x)
    step = (x.astype(np.float32) * np.float32(np.float16(1 / 3))).astype(np.float16)
    assert third.dtype == np.float16
    assert third.tolist() == (step.astype(np.float32) * 3).astype(np.float16).tolist()
    squared = run(lambda x: mb.sqrt(x=mb.mul(x=x, y=x)), x=x)
    assert np.isinf(squared[1:]).all()  # 300 * 300 does not fit fp16, although the root of it would
    assert squared[0] == 1


def test_a_shape_that_is_not_the_declared_one_is_an_error():
    made = function(lambda x: mb.relu(x=x), x=X)
    made.operations[0].outputs[0]._sym_type = types.tensor(types.fp32, (2, 3, 5))
    with pytest.raises(VendorError, match="declared") as caught:
        Interpreter(made, "m").run({"x": X})
    assert caught.value.code == "DK533"


def test_operators_without_an_evaluator_are_named():
    made = function(lambda x: mb.random_normal(shape=[2]), x=X)
    assert lacking(made) == ["random_normal"]
    with pytest.raises(UnavailableError, match="random_normal") as caught:
        Interpreter(made, "m")
    assert caught.value.code == "DK502"


def test_what_apple_does_not_document_is_refused_when_it_is_met():
    boxes, scores = np.zeros((1, 4, 3), np.float32), np.zeros((1, 2, 3), np.float32)

    def suppress(boxes, scores):
        return mb.non_maximum_suppression(boxes=boxes, scores=scores, iou_threshold=0.5, max_boxes=2)[2]

    with pytest.raises(UnavailableError, match="documents no result"):
        run(suppress, boxes=boxes, scores=scores)
    with pytest.raises(UnavailableError, match=r"outside 0\.\.2"):
        run(lambda x, i: mb.gather(x=x, indices=i, axis=1), x=X, i=np.array([-1], np.int32))


def test_loops_and_branches():
    def loop(x):
        def test(i, _):
            return mb.less(x=i, y=np.int32(4))

        def body(i, value):
            return mb.add(x=i, y=np.int32(1)), mb.add(x=value, y=np.float32(1))

        return mb.while_loop(_cond=test, _body=body, loop_vars=(np.int32(0), x))[1]

    assert run(loop, x=X).tolist() == (X + 1 + 1 + 1 + 1).tolist()

    def branch(x):
        large = mb.greater(x=mb.reduce_sum(x=x), y=np.float32(0))
        return mb.cond(pred=large, _true_fn=lambda: mb.relu(x=x), _false_fn=lambda: mb.abs(x=x))

    assert run(branch, x=X - 1).tolist() == np.abs(X - 1).tolist()
    assert run(branch, x=X + 1).tolist() == np.maximum(X + 1, 0).tolist()


def test_lstm_equals_torch():
    torch = pytest.importorskip("torch")
    layer = torch.nn.LSTM(3, 5, bidirectional=True)
    x = np.random.default_rng(0).normal(size=(7, 2, 3)).astype(np.float32)

    def order(name):
        """PyTorch has i, f, z, o; MIL i, f, o, z."""
        i, f, z, o = np.split(getattr(layer, name).detach().numpy(), 4)
        return np.concatenate([i, f, o, z])

    weights = {"weight_ih": order("weight_ih_l0"), "weight_hh": order("weight_hh_l0"),
               "bias": order("bias_ih_l0") + order("bias_hh_l0"), "weight_ih_back": order("weight_ih_l0_reverse"),
               "weight_hh_back": order("weight_hh_l0_reverse"),
               "bias_back": order("bias_ih_l0_reverse") + order("bias_hh_l0_reverse")}  # fmt: skip
    zero = np.zeros((2, 10), np.float32)
    made = run(
        lambda x: mb.lstm(
            x=x, initial_h=zero, initial_c=zero, direction="bidirectional", output_sequence=True, **weights
        )[0],
        x=x,
    )
    np.testing.assert_allclose(made, layer(torch.from_numpy(x))[0].detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_symbolic_size_takes_what_comes():
    import coremltools as ct

    with Function({"x": mb.TensorSpec((get_new_symbol(), 3))}, opset_version=ct.target.iOS17) as made:
        made.set_outputs([mb.reduce_sum(x=made.inputs["x"], axes=[1])])
    Program().add_function("main", made)
    for count in (1, 4):
        feeds = {"x": np.ones((count, 3), np.float32)}
        (result,) = Interpreter(made, "m").run(feeds).values()
        assert result.tolist() == [3.0] * count
