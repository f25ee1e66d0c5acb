from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from quantize_models import onnx_text, ranges_of, run

from deploykit import graph
from deploykit.data import Sample
from deploykit.errors import DataError, GateError
from deploykit.quantize.calibration import Calibration, tapped_session
from deploykit.quantize.plan import observable
from deploykit.quantize.prepare import load_float
from deploykit.quantize.taps import sources_of
from deploykit.quantize.thresholds import METHODS

if TYPE_CHECKING:
    from deploykit.progress import Progress

RNG = np.random.default_rng(0)
SEQUENCE = """g (float[1,seq,4] x, float[1,0,4] past) => (float y) {
    a = MatMul (x, w)
    b = Relu (a)
    c = Concat <axis=1> (past, b)
    d = MatMul (c, w)
    y = ReduceMean <keepdims=0> (d)
}"""


@pytest.fixture
def model(tmp_path):
    path = onnx_text(SEQUENCE, tmp_path / "m.onnx", w=RNG.normal(size=(4, 4)).astype(np.float32))
    return load_float(path)[0]


def feeds(*lengths: int) -> list[dict[str, np.ndarray]]:
    past = np.zeros((1, 0, 4), np.float32)
    return [{"x": RNG.normal(size=(1, n, 4)).astype(np.float32), "past": past} for n in lengths]


@pytest.mark.parametrize("method", METHODS)
def test_lengths_may_differ_and_tensors_may_be_empty_or_scalar(model, method):
    data = feeds(3, 7, 12)
    found = ranges_of(model, data, method)
    assert found.tensors["x"].minimum == min(float(feed["x"].min()) for feed in data)
    assert found.tensors["x"].maximum == max(float(feed["x"].max()) for feed in data)
    assert found.tensors["b"].minimum >= 0
    assert not found.tensors["past"].fired
    assert found.unseen(observable(model)) == {"past"}


def test_progress_has_a_true_total(model):
    steps: list[Progress] = []
    names = observable(model)
    samples = [Sample(feed, None, str(i)) for i, feed in enumerate(feeds(2, 3, 4))]
    with tapped_session(model, names) as session:
        Calibration(session, names, lambda: samples, total=3, carry={}, on_progress=steps.append).run("mse")
    assert [step.done for step in steps] == [1, 2, 3]
    assert {step.total for step in steps} == {3}


def test_tapping_leaves_the_model_as_it_was(model):
    before = [output.name for output in model.graph.outputs]
    with tapped_session(model, observable(model)) as session:
        assert len(session.get_outputs()) > 1
    assert [output.name for output in model.graph.outputs] == before


def test_no_sample_is_refused(model):
    names = observable(model)
    with tapped_session(model, names) as session, pytest.raises(DataError, match="no sample") as caught:
        Calibration(session, names, list, total=0, carry={}).run("minmax")
    assert caught.value.code == "DK363"


def test_a_view_has_the_range_of_what_it_shows(tmp_path):
    text = """g (float[2,3] x) => (float[6,3] y) {
        a = Relu (x)  t = Transpose <perm=[1, 0]> (a)  shape = Constant <value = int64[2] {6, 1}> ()
        r = Reshape (t, shape)  y = MatMul (r, w)
    }"""
    model = load_float(onnx_text(text, tmp_path / "m.onnx", w=np.ones((1, 3), np.float32)))[0]
    names = ["x", "a", "t", "r", "y"]
    sources = sources_of(model, names)
    assert sources == {"x": "x", "a": "a", "t": "a", "r": "a", "y": "y"}
    samples = [Sample({"x": RNG.normal(size=(2, 3)).astype(np.float32)}, None, "s")]
    with tapped_session(model, list(sources.values())) as session:
        assert {output.name for output in session.get_outputs()} == {"a", "y"}
        found = Calibration(session, names, lambda: samples, total=1, carry={}, sources=sources).run("minmax")
    assert found["r"] == found["t"] == found["a"]
    assert found["a"].maximum == samples[0].feeds["x"].max()


def test_an_outlier_in_the_last_sample_widens_what_was_counted(model):
    data = feeds(3, 7, 12)
    data[-1]["x"][0, 0, 0] = 1000.0
    forward, backward = (ranges_of(model, order, "mse").tensors for order in (data, data[::-1]))
    for name, found in forward.items():
        assert found.interval(symmetric=True) == backward[name].interval(symmetric=True) if found.fired else True
    assert forward["x"].maximum == 1000.0


def test_one_calibration_gives_the_ranges_of_every_method(model):
    data = feeds(30, 20, 10)
    names = observable(model)
    samples = [Sample(feed, None, str(i)) for i, feed in enumerate(data)]
    with tapped_session(model, names) as session:
        seen = Calibration(session, names, lambda: samples, total=3, carry={})
        seen.collect()
    for method in METHODS:
        assert seen.ranges(method) == ranges_of(model, data, method).tensors


def test_moving_average_is_the_mean_of_the_extremes_of_few_samples(model):
    data = feeds(3, 7, 12, 5)
    found = ranges_of(model, data, "moving-average").tensors["x"].interval(symmetric=False)
    assert found.low == pytest.approx(np.mean([feed["x"].min() for feed in data]))
    assert found.high == pytest.approx(np.mean([feed["x"].max() for feed in data]))


def test_scalar_integer_and_strided_inputs_are_fed_as_they_are(tmp_path):
    text = """g (float[2,3] x, float s, int64 n) => (float y, float[2,3] z) {
        c = Cast <to=1> (n)  t = Mul (c, s)  y = Identity (t)  z = Add (x, t)
    }"""
    model = load_float(onnx_text(text, tmp_path / "m.onnx"))[0]
    x = np.asfortranarray(RNG.normal(size=(2, 3)).astype(np.float32))
    samples = [Sample({"x": x[:, ::-1], "s": np.array(0.5, np.float32), "n": np.array(3)}, None, "s")]
    names = ["x", "s", "t", "y", "z"]
    with tapped_session(model, names) as session:
        found = Calibration(session, names, lambda: samples, total=1, carry={}).run("auto")
    assert (found["s"].maximum, found["t"].minimum, found["y"].maximum) == (0.5, 1.5, 1.5)
    assert found["z"].maximum == pytest.approx(x.max() + 1.5)
    assert found["x"].maximum == x.max()


def test_text_inputs_are_fed_too(tmp_path):
    text = """g (string[n] words, float[n,2] x) => (float[n,2] y) {
        y = MatMul (x, w)  e = Identity (words)
    }"""
    model = load_float(onnx_text(text, tmp_path / "m.onnx", w=np.eye(2, dtype=np.float32)))[0]
    samples = [Sample({"words": np.array(["a", "b"], object), "x": np.ones((2, 2), np.float32)}, None, "s")]
    with tapped_session(model, ["x", "y"]) as session:
        found = Calibration(session, ["x", "y"], lambda: samples, total=1, carry={}).run("auto")
    assert found["y"].constant


def test_optimised_kernels_give_the_extremes_of_the_unfused_graph(tmp_path):
    weights = {"w": RNG.normal(size=(8, 3, 3, 3)), "v": RNG.normal(size=(8, 8, 1, 1)), "b": RNG.normal(size=8)}
    text = """g (float[n,3,16,16] x) => (float[n,8,16,16] y) {
        a = Conv <pads=[1,1,1,1]> (x, w, b)  r = Relu (a)  c = Conv (r, v)  s = Add (c, r)  y = Relu (s)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", **{name: value.astype(np.float32) for name, value in weights.items()})
    model = load_float(path)[0]
    names = ["x", "a", "r", "c", "s", "y"]
    x = RNG.normal(size=(2, 3, 16, 16)).astype(np.float32)
    proto = onnx.load(path)
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in ("a", "r", "c", "s"))
    onnx.save(proto, path)
    expected = {"x": x, **run(path, {"x": x}, optimize=False)}
    with tapped_session(model, names) as session:
        samples = [Sample({"x": x}, None, "s")]
        found = Calibration(session, names, lambda: samples, total=1, carry={}).run("minmax")
    for name in names:
        assert found[name].minimum == pytest.approx(expected[name].min(), rel=1e-5, abs=1e-5)
        assert found[name].maximum == pytest.approx(expected[name].max(), rel=1e-5)


def test_samples_that_repeat_or_are_zero_are_counted(model):
    data = [*feeds(3, 3), *feeds(4) * 3]
    data += [{**data[0], "x": np.zeros_like(data[0]["x"])}]
    names = observable(model)
    samples = [Sample(feed, None, str(i)) for i, feed in enumerate(data)]
    with tapped_session(model, names) as session:
        seen = Calibration(session, names, lambda: samples, total=len(data), carry={})
        seen.collect()
    assert (seen.count, seen.repeated, seen.zeros) == (6, 2, 1)


def test_state_is_carried_from_call_to_call(tmp_path):
    text = "g (float[1,2] x, float[1,2] h) => (float[1,2] hn) { a = MatMul (x, w)  hn = Add (a, h) }"
    model = load_float(onnx_text(text, tmp_path / "m.onnx", w=np.eye(2, dtype=np.float32)))[0]
    ones = np.ones((1, 2), np.float32)
    samples = [Sample({"x": ones, **({"h": 0 * ones} if i == 0 else {})}, None, str(i)) for i in range(4)]
    names = ["h", "hn"]
    with tapped_session(model, names) as session:
        found = Calibration(session, names, lambda: samples, total=4, carry={"h": "hn"}).run("minmax")
    assert found["hn"].maximum == 4.0
    assert found["h"].maximum == 3.0


def test_a_sample_that_the_model_refuses_is_named(tmp_path):
    text = "g (float[n,2] x, float[m,2] z) => (float[k,2] y) { y = Add (x, z) }"
    model = load_float(onnx_text(text, tmp_path / "m.onnx"))[0]
    bad = Sample({"x": np.ones((2, 2), np.float32), "z": np.ones((3, 2), np.float32)}, None, "sample 7")
    names = observable(model)
    with tapped_session(model, names) as session, pytest.raises(DataError, match="on sample 7") as caught:
        Calibration(session, names, lambda: [bad], total=1, carry={}).run("minmax")
    assert caught.value.code == "DK378"
    assert caught.value.context == ("it was given x float32 [2, 2], z float32 [3, 2]",)


def test_an_operator_that_onnxruntime_lacks_is_a_gate(tmp_path):
    text = '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[2] x) => (float[2] y) { y = my.NoSuch (x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model = graph.load(tmp_path / "m.onnx")
    with pytest.raises(GateError, match="NoSuch") as caught, tapped_session(model, []):
        pass
    assert caught.value.code == "DK201"
