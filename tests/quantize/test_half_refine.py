"""The nodes that half precision costs most are found by measuring, and as few as are needed stay float32."""

import numpy as np
import onnx
import pytest
from half_models import FORMATS, halved, run_half
from quantize_models import onnx_text, run

from deploykit import graph, half_search
from deploykit.data import Sample
from deploykit.data.request import data_request
from deploykit.half_search import Loss
from deploykit.parity import TOLERANCES
from deploykit.progress import silent
from deploykit.quantize.half_job import quantize_bfloat16, quantize_half
from deploykit.quantize.half_opset import load_for_half
from deploykit.quantize.half_switches import Switches
from deploykit.quantize.settings import Settings

RNG = np.random.default_rng(0)
JOBS = {"fp16": quantize_half, "bf16": quantize_bfloat16}
# What is left of the difference of two large values has few digits in half; the rest of the chain is harmless.
CANCELS = """g (float[n,8] x) => (float[n,8] y) {
    [a] a = MatMul (x, w)
    [b] b = Relu (a)
    [up] c = Add (b, shift)
    [down] d = Sub (c, shift)
    [e] e = MatMul (d, w)
    [f] f = Sigmoid (e)
    [g] g = MatMul (f, w)
    [h] y = Tanh (g)
}"""


def planted(tmp_path, shift: float):
    weight = (RNG.normal(size=(8, 8)) / 4).astype(np.float32)
    path = onnx_text(CANCELS, tmp_path / "m.onnx", w=weight, shift=np.float32([shift]))
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(20, 4, 8)).astype(np.float32))
    return path, Settings(data=data_request(str(tmp_path / "x.npz"), "calibration"))


@pytest.mark.parametrize("precision", FORMATS)
def test_a_planted_loss_is_found_and_left_in_float(tmp_path, precision):
    path, settings = planted(tmp_path, 3000.0)
    facts = JOBS[precision](path, tmp_path / "out.onnx", settings, silent)
    found = {f["node"]: f["message"] for f in facts["findings"] if f["code"] == "DK370"}
    assert {"up", "down"} == set(found)
    told = next(f["message"] for f in facts["findings"] if f["code"] == "DK318")
    assert "times what is allowed" in told
    out = tmp_path / "out.onnx"
    onnx.checker.check_model(str(out), full_check=True)
    x = np.load(tmp_path / "x.npz")["x"][0]
    model = graph.load(out)
    half = run_half(out, model, {"x": x}, FORMATS[precision])["y"].astype(np.float64)
    loss = Loss([run(path, {"x": x})], TOLERANCES[precision])
    assert loss.of([{"y": half}], [0])[0] <= 1.0


def test_nothing_is_left_in_float_where_nothing_is_lost(tmp_path):
    path, settings = planted(tmp_path, 0.5)
    facts = quantize_half(path, tmp_path / "out.onnx", settings, silent)
    assert {f["code"] for f in facts["findings"]}.isdisjoint({"DK318", "DK370"})
    assert facts["metrics"]["float_nodes"] == 0


def test_a_loss_that_no_few_nodes_carry_is_said(tmp_path):
    """Eight times the same cancellation in a row: a quarter of the nodes is not enough."""
    rows = ["a0 = Identity (x)"]
    for index in range(8):
        rows += [f"[up{index}] u{index} = Add (a{index}, shift)", f"[down{index}] a{index + 1} = Sub (u{index}, shift)"]
    text = f"g (float[n,8] x) => (float[n,8] y) {{ {' '.join(rows)} y = Tanh (a8) }}"
    path = onnx_text(text, tmp_path / "m.onnx", shift=np.float32([3000.0]))
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(20, 4, 8)).astype(np.float32))
    settings = Settings(data=data_request(str(tmp_path / "x.npz"), "calibration"))
    facts = quantize_half(path, tmp_path / "out.onnx", settings, silent)
    told = next(f for f in facts["findings"] if f["code"] == "DK318")
    assert told["severity"] == "warning"
    assert "evaluations" in told["message"]


@pytest.mark.parametrize("precision", FORMATS)
def test_switches_do_what_conversion_does(tmp_path, precision):
    """Every node on is the converted model, every node off the float model, to the bit."""
    path, _ = planted(tmp_path, 3.0)
    form = FORMATS[precision]
    model, _ = load_for_half(path, form)
    switches = Switches(model, form, [node.name for node in model.graph], {})
    x = RNG.normal(size=(4, 8)).astype(np.float32)
    sample = Sample({"x": x}, None, "one")
    assert np.array_equal(switches.run([sample], ())[0]["y"], run(path, {"x": x}, optimize=False)["y"])
    out, half, _ = halved(path, form)
    converted = run_half(out, half, {"x": x}, form)["y"].astype(np.float32)
    assert np.array_equal(switches.run([sample], switches.nodes)[0]["y"], converted)
    assert not np.array_equal(switches.run([sample], ["down"])[0]["y"], converted)


def test_loss_is_in_units_of_the_tolerance():
    reference = [{"y": np.float32([1.0, -2.0])}]
    loss = Loss(reference, TOLERANCES["fp16"])
    limit = 1e-2 * 1.0 + 2e-3 * 2.0
    largest, mean = loss.of([{"y": np.float32([1.0 + limit, -2.0])}], [0])
    assert largest == pytest.approx(1.0, rel=1e-4)
    assert mean == pytest.approx(np.sqrt(0.5), rel=1e-4)
    assert loss.of([{"y": np.float32([np.nan, -2.0])}], [0])[0] == np.inf


def test_another_number_of_results_is_beyond_any_tolerance():
    loss = Loss([{"y": np.zeros((3, 4), np.float32)}], TOLERANCES["fp16"])
    largest, mean = loss.of([{"y": np.zeros((2, 4), np.float32)}], [0])
    assert largest == np.inf
    assert mean == pytest.approx(1e6)


def test_outputs_that_are_no_float_tensors_are_not_judged():
    loss = Loss([{"y": np.float32([1.0]), "k": np.int64([3]), "s": ["a", "b"]}], TOLERANCES["fp16"])
    assert loss.of([{"y": np.float32([1.0]), "k": np.int64([4]), "s": []}], [0]) == (0.0, 0.0)


@pytest.mark.parametrize(("shift", "few"), [(0.01, True), (3000.0, False)])
def test_few_samples_of_a_slow_model_judge_only_where_all_is_well(tmp_path, monkeypatch, shift, few):
    path, settings = planted(tmp_path, shift)
    monkeypatch.setattr(half_search, "SLOW_SECONDS", -1.0)
    judges = []
    run_search = half_search.Search.run

    def counted(search):
        judges.append(len(search._samples))
        return run_search(search)

    monkeypatch.setattr(half_search.Search, "run", counted)
    facts = quantize_half(path, tmp_path / "out.onnx", settings, silent)
    assert (judges == [half_search.FIRST]) == few
    assert (facts["metrics"]["float_nodes"] == 0) == few
