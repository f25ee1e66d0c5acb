"""Comparison and evaluation over samples, with small runtimes written here and with real engines."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from deploykit import comparison
from deploykit.artifact import TensorSpec
from deploykit.data.samples import Sample
from deploykit.errors import DataError, GateError, UnavailableError
from deploykit.isolation import run_isolated
from deploykit.parity import TOLERANCES
from deploykit.runtime import Kernel, Runtime
from deploykit.target import get_target, unavailable

X = TensorSpec("x", "float32", ("n", 3))


class Engine(Runtime):
    """Computes with a python function; counts its calls."""

    def __init__(self, function, inputs=(X,), execution="real"):
        self.engine = "python"
        self.execution = execution
        self.inputs = inputs
        self.outputs = ()
        self.seen = []
        self._function = function

    def predict(self, feeds):
        self.seen.append(dict(feeds))
        return self._function(feeds)


def samples(count=4, labels=None):
    rng = np.random.default_rng(0)
    return [
        Sample({"x": rng.standard_normal((1, 3)).astype(np.float32)}, labels[i] if labels else None, f"sample {i}")
        for i in range(count)
    ]


def double(feeds):
    return {"y": feeds["x"] * 2}


FP32 = TOLERANCES["fp32"]


def test_equal_sides_pass_and_name_their_engines():
    result = comparison.compare(Engine(double), Engine(double, execution="simulated"), samples(), tolerance=FP32)
    assert result["samples"] == 4
    assert [(row["name"], row["exact"], row["passed"]) for row in result["outputs"]] == [("y", True, True)]
    assert (result["execution"], result["engines"]) == ("simulated", {"reference": "python", "candidate": "python"})
    assert result["findings"] == []
    assert result["accuracy"] is None


def test_a_plain_function_can_be_either_side():
    result = comparison.compare(double, Engine(lambda f: {"y": f["x"] * 2.001}), samples(), tolerance=FP32)
    assert not result["outputs"][0]["passed"]
    assert result["findings"][0]["code"] == "DK401"


def test_missing_and_additional_outputs_fail():
    result = comparison.compare(double, lambda f: {"z": f["x"] * 2}, samples(), tolerance=FP32)
    assert [(f["code"], f["severity"], f["tensor"]) for f in result["findings"]] == [
        ("DK403", "error", "y"),
        ("DK403", "error", "z"),
    ]


def test_no_samples_is_a_failure():
    (finding,) = comparison.compare(double, double, [], tolerance=FP32)["findings"]
    assert (finding["code"], finding["severity"]) == ("DK401", "error")


def test_each_side_gets_its_own_dtype_and_only_its_inputs():
    half = Engine(lambda f: {"y": f["x"] * 2}, inputs=(TensorSpec("x", "float16", ("n", 3)),))
    feeds = [Sample({"x": np.ones((1, 3), np.float32), "unused": np.zeros(1)}, None, "s")]
    result = comparison.compare(double, half, feeds, tolerance=TOLERANCES["fp16"])
    assert half.seen[0]["x"].dtype == np.float16
    assert list(half.seen[0]) == ["x"]
    assert result["outputs"][0]["passed"]
    assert [f["code"] for f in result["findings"]] == ["DK405"]


def test_an_input_that_only_one_side_has_is_named():
    other = Engine(double, inputs=(TensorSpec("image", "float32", ("n", 3)),))
    with pytest.raises(DataError, match="'image'"):
        comparison.compare(double, other, samples(), tolerance=FP32)


def test_a_sample_that_only_the_candidate_refuses_fails_the_gate():
    def broken(feeds):
        raise RuntimeError("kernel failed")

    with pytest.raises(GateError, match=r"candidate .* sample 0 \(x float32 \[1, 3\]\): kernel failed") as caught:
        comparison.compare(double, Engine(broken), samples(), tolerance=FP32)
    assert caught.value.code == "DK409"


def test_an_error_of_a_function_names_the_sample_and_its_shapes():
    def broken(feeds):
        raise RuntimeError("kernel failed")

    with pytest.raises(RuntimeError, match="kernel failed") as caught:
        comparison.compare(double, broken, samples(), tolerance=FP32)
    assert caught.value.__notes__ == ["the candidate (broken) was given sample 0: x float32 [1, 3]"]


def test_a_sample_that_the_reference_refuses_is_the_datas_fault():
    def broken(feeds):
        raise RuntimeError("cannot broadcast")

    with pytest.raises(DataError, match=r"sample 0 \(x float32 \[1, 3\]\): cannot broadcast") as caught:
        comparison.compare(Engine(broken), double, samples(), tolerance=FP32)
    assert caught.value.code == "DK408"


def counter(step):
    def function(feeds):
        state = feeds["s"] + step
        return {"y": feeds["x"] + state, "sN": state}

    inputs = (TensorSpec("x", "float32", (1,)), TensorSpec("s", "float32", (1,)))
    return Engine(function, inputs)


def test_each_side_carries_its_own_state():
    first, second = counter(1), counter(2)
    stream = [Sample({"x": np.zeros(1, np.float32), "s": np.zeros(1, np.float32)}, None, "start")]
    stream += [Sample({"x": np.zeros(1, np.float32)}, None, f"frame {i}") for i in range(3)]
    stream += [Sample({"x": np.zeros(1, np.float32), "s": np.zeros(1, np.float32)}, None, "reset")]
    result = comparison.compare(first, second, stream, tolerance=FP32, carry={"s": "sN"})
    assert [float(feeds["s"][0]) for feeds in first.seen] == [0, 1, 2, 3, 0]
    assert [float(feeds["s"][0]) for feeds in second.seen] == [0, 2, 4, 6, 0]
    assert not result["outputs"][0]["passed"]


def test_accuracy_of_both_sides_on_the_same_labels():
    shifted = [0, 1, 2, 0]
    wrong = Engine(lambda f: {"y": -f["x"]})
    result = comparison.compare(double, wrong, samples(labels=shifted), tolerance=FP32, metric="top1")
    accuracy = result["accuracy"]
    expected = 100 * np.mean([s.feeds["x"].argmax() == s.label for s in samples(labels=shifted)])
    assert (accuracy["metric"], accuracy["unit"], accuracy["samples"]) == ("top1", "%", 4)
    assert accuracy["reference"] == expected
    assert accuracy["drop"] == accuracy["reference"] - accuracy["candidate"]


def test_int8_share_counts_multiply_accumulates():
    kernels = [
        Kernel("a", "Conv", "int8", macs=900),
        Kernel("b", "Gemm", "fp32", macs=100),
        Kernel("c", "Relu", "int8"),
    ]
    assert comparison.int8_share(kernels) == pytest.approx(0.9)
    assert comparison.int8_share(None) is None
    assert comparison.int8_share([Kernel("c", "Relu", "fp32")]) is None


def request(source=None, samples=None, purpose="parity", **more):
    facts = {"source": source, "samples": samples, "seed": 0, "label": None, "dims": {}, "contract": None}
    return {**facts, "purpose": purpose, **more}


def model_file(path, text):
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}'), path)
    return str(path)


STOCHASTIC = """agraph (float[2,3] x) => (float[2,3] y) {
    noise = RandomNormalLike (x)
    y = Add (x, noise)
}"""
TRAINING_DROPOUT = """agraph (float[2,3] x) => (float[2,3] y) <float r = {0.5}, bool training = {1}> {
    y = Dropout (x, r, training)
}"""
INFERENCE_DROPOUT = TRAINING_DROPOUT.replace("{1}", "{0}")


@pytest.mark.parametrize(("text", "random"), [(STOCHASTIC, 1), (TRAINING_DROPOUT, 1), (INFERENCE_DROPOUT, 0)])
def test_stochastic_graphs_are_reported_and_not_compared(tmp_path, text, random):
    file = model_file(tmp_path / "m.onnx", text)
    result = comparison.compare_job(file, file, request(samples=2))
    assert [f["code"] for f in result["findings"]].count("DK404") == random
    assert result["execution"] == ("none" if random else "real")
    assert bool(result["outputs"]) != bool(random)


def test_digits_through_the_job(shared_model):
    model, data = shared_model("digits/digits_cnn.onnx"), shared_model("digits/digits_cnn_test.npz")
    result = run_isolated(
        "compare",
        "deploykit.comparison:compare_job",
        {"reference": str(model), "candidate": str(model), "data": request(str(data)), "metric": "top1"},
    )
    assert result["samples"] == 450
    assert result["row"] == "fp32"
    assert result["outputs"][0]["passed"]
    # 447 of 450, as the model's page says.
    assert result["accuracy"]["reference"] == pytest.approx(100 * 447 / 450)
    assert result["accuracy"]["candidate"] == pytest.approx(100 * 447 / 450)


def test_an_engine_that_is_not_here_is_exit_3(tmp_path):
    if unavailable(get_target("coreml")) is None:
        pytest.skip("it runs on this machine")
    file = tmp_path / "m.mlpackage"
    file.mkdir()
    with pytest.raises(UnavailableError) as caught:
        comparison.require_runnable(file)
    assert caught.value.code == "DK502"
