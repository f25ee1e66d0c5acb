"""What stays float32: measured on data, told by constants, or never without a reason."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from half_models import FORMATS, halved, misses
from quantize_models import onnx_text

from deploykit.data.request import data_request
from deploykit.progress import silent
from deploykit.quantize.findings import about_half
from deploykit.quantize.half_formats import BFLOAT16, FLOAT16, magnitudes
from deploykit.quantize.half_islands import Evidence
from deploykit.quantize.half_opset import load_for_half
from deploykit.quantize.half_probes import Probes
from deploykit.quantize.measuring import measure_peaks
from deploykit.quantize.settings import Settings

RNG = np.random.default_rng(0)


def measured(path: Path, *feeds: dict[str, np.ndarray]) -> Evidence:
    """What calibration on the feeds finds out, through the same function as the job."""
    folder = path.parent / "samples"
    folder.mkdir()
    for index, feed in enumerate(feeds):
        np.savez(folder / f"{index}.npz", **feed)
    model, _ = load_for_half(path, FLOAT16)
    probes = Probes(model)
    settings = Settings(data=data_request(str(folder), "calibration"))
    peaks, _, _ = measure_peaks(probes.model, path, settings, silent)
    return probes.read(peaks)


def reasons(result) -> dict[str, str]:
    return {name: reason for name, _, reason in result.islands}


OVERFLOWS = {
    "its result": ("[n] y1 = Exp (x)  [out] y = Log (y1)", np.float32([[12.0, 1.0, 2.0, 3.0]]), {"n", "out"}),
    "a power": ("[n] y1 = Pow (x, four)  [out] y = Pow (y1, quarter)", np.float32([[20.0, 1, 2, 3]]), {"n", "out"}),
    "a sum whose parts cancel": ("[n] y = ReduceSum (x)", np.float32([[60000.0, 50000.0, -60000.0, -49000.0]]), {"n"}),
    "the sum of a mean": ("[n] y = ReduceMean (x)", np.full((1, 4), 3e4, np.float32), {"n"}),
    "the squares of a norm": ("[n] y = ReduceL2 (x)", np.full((1, 4), 300.0, np.float32), {"n"}),
    "the variance of a normalization": (
        "[n] y = LayerNormalization (x, ones)", np.float32([[600.0, -600.0, 300.0, 20.0]]), {"n"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OVERFLOWS)
def test_overflow_inside_an_operator_is_measured(tmp_path, what):
    body, x, islands = OVERFLOWS[what]
    constants = {"ones": np.ones(4, np.float32), "four": np.float32([4]), "quarter": np.float32([0.25])}
    text = f"g (float[n,4] x) => (float[a,b] y) {{ {body} }}"
    path = onnx_text(text, tmp_path / "m.onnx", **{k: v for k, v in constants.items() if k in body})
    evidence = measured(path, {"x": x})
    wrong, result = misses(path, {"x": x}, evidence=evidence)
    assert not wrong
    assert set(reasons(result)) == islands
    _, small = misses(path, {"x": x / 100}, evidence=measured_again(path, {"x": x / 100}))
    assert not small.islands


def measured_again(path: Path, feed: dict[str, np.ndarray]) -> Evidence:
    copy = path.parent / "again" / path.name
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    return measured(copy, feed)


def test_a_divisor_that_half_rounds_to_nothing_stays_float_with_what_makes_it(tmp_path):
    text = """g (float[n,4] x) => (float[n,4] y) {
        [square] s = Mul (x, x)
        [mean] m = ReduceMean <axes=[1]> (s)
        [guard] v = Add (m, eps)
        [root] r = Sqrt (v)
        [divide] y = Div (x, r)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", eps=np.float32([1e-12]))
    tiny = {"x": np.float32([[1e-4, 2e-4, -1e-4, 3e-4], [1.0, 2.0, -1.0, 0.5]])}
    wrong, result = misses(path, tiny, evidence=measured(path, tiny))
    assert not wrong
    assert {"square", "mean", "guard", "root"} <= set(reasons(result))


def test_a_tiny_guard_matters_only_where_the_data_needs_it(tmp_path):
    text = "g (float[n,4] x) => (float[n,4] y) { [guard] v = Add (x, eps)  [divide] y = Reciprocal (v) }"
    path = onnx_text(text, tmp_path / "m.onnx", eps=np.float32([1e-9]))
    _, blind = misses(path, {"x": np.ones((1, 4), np.float32)})
    assert set(reasons(blind)) == {"guard", "divide"}
    large = {"x": np.float32([[1.0, 2.0, 3.0, 4.0]])}
    _, seen = misses(path, large, evidence=measured(path, large))
    assert not seen.islands


def test_values_inside_bodies_are_measured(tmp_path):
    text = """g (float[2] x, bool c, int64 n) => (float[2] y) {
        a = If (c) <
            then_branch = t () => (float[2] ty) { [square] s = Mul (x, x)  [root] ty = Sqrt (s) },
            else_branch = e () => (float[2] ey) { ey = Abs (x) }
        >
        y, all = Loop (n, , a) <
            body = b (int64 i, bool go, float[2] state) => (bool on, float[2] next, float[2] out) {
                on = Identity (go)
                [inner] big = Exp (state)
                [back] next = Log (big)
                out = Identity (next)
            }
        >
    }"""
    path = onnx_text(text, tmp_path / "m.onnx")
    feeds = {"x": np.float32([1000.0, 30.0]), "c": np.array(True), "n": np.array(2)}
    quiet = {"x": np.float32([20.0, 3.0]), "c": np.array(False), "n": np.array(2)}
    evidence = measured(path, quiet)
    assert evidence.peaks["big"] == pytest.approx(np.exp(20.0), rel=1e-5)
    assert "s" not in evidence.peaks  # the branch did not run
    loud = measured_again(path, {**feeds, "n": np.array(0)})
    assert loud.peaks["s"] == pytest.approx(1e6)
    _, result = misses(path, quiet, evidence=evidence)
    assert {"inner", "back"} <= set(reasons(result))


def test_probes_leave_the_model_and_its_results_alone(tmp_path):
    text = "g (float[n,4] x) => (float[n,1] y) { m = ReduceMean <axes=[1]> (x)  y = Div (m, two) }"
    path = onnx_text(text, tmp_path / "m.onnx", two=np.float32([2]))
    model, _ = load_for_half(path, FLOAT16)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    probes = Probes(model)
    assert len(list(probes.model.graph)) > len(list(model.graph))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    ("call", "bounds"),
    [
        ("Clip (x, low, high)", {"low": np.float32(-3.4e38), "high": np.float32(3.4e38)}),
        ("Min (x, high)", {"high": np.float32([3.4e38])}),
        ("Max (x, low)", {"low": np.float32([-3.4e38])}),
    ],
)
def test_a_bound_that_no_value_reaches_is_no_island(tmp_path, form, call, bounds):
    path = onnx_text(f"g (float[n,4] x) => (float[n,4] y) {{ y = {call} }}", tmp_path / "m.onnx", **bounds)
    wrong, result = misses(path, {"x": np.float32([[-1, 0, 60000.0, -6e4]])}, form)
    assert not wrong
    assert not result.islands


def test_a_bound_that_values_must_reach_is_an_island(tmp_path):
    path = onnx_text(
        "g (float[2] x) => (float[2] y) { a = Max (x, c)  y = Div (a, c) }", tmp_path / "m.onnx", c=np.float32([1e6])
    )
    wrong, result = misses(path, {"x": np.float32([1, 2])})
    assert not wrong
    assert [op for _, op, _ in result.islands] == ["Max", "Div"]


def test_attributes_that_half_cannot_hold(tmp_path):
    text = """g (float[2] x) => (float[4] y) {
        [pad] p = Pad <mode="constant", pads=[1,1], value=1000000.0> (x)
        [divide] y = Div (p, million)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", opset=10, million=np.float32([1e6]))
    wrong, result = misses(path, {"x": np.float32([1e4, 2e4])})
    assert not wrong
    assert set(reasons(result)) == {"pad", "divide"}


def test_bfloat16_needs_no_islands_for_large_values(tmp_path):
    path = onnx_text(
        "g (float[2] x) => (float[2] y) { a = Mul (x, c)  y = Div (a, c) }", tmp_path / "m.onnx", c=np.float32([1e30])
    )
    wrong, result = misses(path, {"x": np.float32([1, 2])}, BFLOAT16)
    assert not wrong
    assert not result.islands


@pytest.mark.parametrize("weight", [1.2e4, 3e4, 6.5e4])
def test_weights_between_ten_thousand_and_the_limit_are_exact(tmp_path, weight):
    """Others clip them to 1e4 without a word (CATALOG 2d)."""
    values = np.float32([[weight, 1.0], [-weight, 0.5]])
    path = onnx_text("g (float[n,2] x) => (float[n,2] y) { y = MatMul (x, w) }", tmp_path / "m.onnx", w=values)
    _, model, result = halved(path)
    assert not result.islands
    assert np.array_equal(model.graph.initializers["w"].const_value.numpy(), values.astype(np.float16))


def test_magnitudes_of_a_weight():
    found = magnitudes(np.float32([0, 1e-9, -3.0, np.inf, np.nan, 1e-3]), FLOAT16)
    assert (found.largest, found.smallest) == (3.0, np.float32(1e-9))
    assert found.lost == 1 / 6
    assert magnitudes(np.float32([1e-9]), BFLOAT16).lost == 0


def test_without_the_measurement_the_same_model_fails(tmp_path):
    path = onnx_text("g (float[2] x) => (float[2] y) { a = Exp (x)  y = Log (a) }", tmp_path / "m.onnx")
    feeds = {"x": np.float32([12.0, 1.0])}
    wrong, result = misses(path, feeds)
    assert wrong == ["y"]  # not in onnxruntime, whose session keeps the value in float32 between the nodes
    assert not result.islands


def test_inputs_and_outputs_beyond_the_limit_keep_their_dtype(tmp_path):
    text = """g (float[n,4] big, float[n,4] small) => (float[n,4] same, float[n,4] y, float[n,4] z) {
        same = Identity (big)
        y = Mul (big, small)
        s = Div (y, million)
        z = Relu (s)
    }"""
    path = onnx_text(text, tmp_path / "m.onnx", million=np.float32([1e6] * 4))
    feeds = {"big": np.float32([[1e6, -2e6, 3e5, 8e4]]), "small": np.float32([[1, 2, 3, 4]])}
    wrong, result = misses(path, feeds, evidence=measured(path, feeds))
    assert wrong == []
    assert result.wide == {"big": 2e6, "same": 2e6, "y": 4e6}
    _, model, _ = halved(path, evidence=Evidence(result.wide))
    assert [value.dtype for value in model.graph.inputs] == [ir.DataType.FLOAT, ir.DataType.FLOAT16]
    assert [value.dtype for value in model.graph.outputs] == [ir.DataType.FLOAT, ir.DataType.FLOAT, ir.DataType.FLOAT16]
    (said, *_) = about_half(result, FLOAT16)
    assert (said.code, said.tensor) == ("DK370", "big")
    assert halved(path, evidence=Evidence(result.wide), keep_io=True)[2].wide == {}
