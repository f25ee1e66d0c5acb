"""The comparison behind `check --fix`: what it takes for equal, for a looser bound, and for another interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from deploykit.optimizers.fix_proof import prove_job

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "g (float[n,4] x) => (float[n,4] y) { y = Exp (x) }"


@pytest.fixture
def prove(tmp_path):
    """Compares two models in ONNX text; the result of the job."""

    def run(before: str, after: str, *, opset: int = 17, constants: tuple = ({}, {}), **options: Any) -> dict[str, Any]:
        paths = []
        for name, text, given in zip(("before", "after"), (before, after), constants, strict=True):
            model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')
            model.graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in given.items())
            path: Path = tmp_path / f"{name}.onnx"
            onnx.save(model, path)
            paths.append(str(path))
        facts = {"bound": "fp32", "requantized": [], "retyped": False, "dims": {}, "seed": 0, **options}
        return prove_job(*paths, **facts)

    return run


def errors(result: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in result["findings"] if finding["severity"] == "error"]


def test_equal_models_are_compared_over_their_dimension(prove) -> None:
    result = prove(PLAIN, "g (float[n,4] x) => (float[n,4] y) { a = Neg (x) b = Neg (a) y = Exp (b) }")
    assert (errors(result), result["compared"], result["samples"]) == ([], True, 5)


def test_another_function_is_an_error(prove) -> None:
    result = prove(PLAIN, "g (float[n,4] x) => (float[n,4] y) { y = Tanh (x) }")
    assert result["compared"]
    assert errors(result)


@pytest.mark.parametrize(
    "after",
    [
        "g (float[m,4] x) => (float[m,4] y) { y = Exp (x) }",
        "g (float[2,4] x) => (float[2,4] y) { y = Exp (x) }",
        "g (float[n,4] x) => (float[n,4] z) { z = Exp (x) }",
        "g (double[n,4] x) => (double[n,4] y) { y = Exp (x) }",
    ],
)
def test_another_interface_is_an_error(prove, after) -> None:
    assert "DK633" in errors(prove(PLAIN, after))


def test_another_dtype_passes_where_it_is_meant_and_is_told(prove) -> None:
    before = "g (double[n,4] x) => (double[n,4] y) { y = Exp (x) }"
    result = prove(before, PLAIN, retyped=True)
    assert errors(result) == []
    assert result["interface"] == [["x", "float64", "float32"], ["y", "float64", "float32"]]
    wrong = prove(before, "g (float[n,4] x) => (float[n,4] y) { a = Exp (x) y = Add (a, x) }", retyped=True)
    assert errors(wrong)


STEPS = "g (float[64] x) => (float[64] y) { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }"
FINE = {"s": np.float32(0.03), "z": np.uint8(128)}
COARSE = {"s": np.float32(0.032), "z": np.int8(0)}


def test_values_quantized_anew_are_held_to_the_bound_of_int8(prove) -> None:
    assert errors(prove(STEPS, STEPS, constants=(FINE, COARSE)))
    assert errors(prove(STEPS, STEPS, constants=(FINE, COARSE), bound="int8")) == []
    useless = {"s": np.float32(2), "z": np.int8(0)}
    assert errors(prove(STEPS, STEPS, constants=(FINE, useless), bound="int8"))


def test_quantization_may_go_only_where_it_is_named(prove) -> None:
    before = "g (float[4] x) => (float[4] y) { [dq] d = DequantizeLinear (b, s) [add] y = Add (x, d) }"
    after = "g (float[4] x) => (float[4] y) { [add] y = Add (x, d) }"
    values = np.array([1, -2, 3, 4], np.int32)
    constants = ({"b": values, "s": np.float32(0.5)}, {"d": values.astype(np.float32) / 2})
    assert errors(prove(before, after, constants=constants)) == ["DK634"]
    assert errors(prove(before, after, constants=constants, requantized=["dq"])) == []


def test_a_model_of_a_newer_opset_is_run_in_an_older_one_of_the_same_words(prove) -> None:
    before = "g (float[1,2,4,4] x) => (float[1,2,1,1] y) { y = GlobalLpPool <p=2> (x) }"
    after = """g (float[1,2,4,4] x) => (float[1,2,1,1] y) <int64[2] a = {2, 3}>
        { m = Mul (x, x) s = ReduceSum <keepdims=1> (m, a) y = Sqrt (s) }"""
    result = prove(before, after, opset=22)
    assert (errors(result), result["compared"]) == ([], True)
    assert errors(prove(before, after.replace("Sqrt", "Abs"), opset=22))


def test_a_model_that_nothing_runs_is_proven_by_nobody(prove) -> None:
    odd = "g (bfloat16[1,2,4,4] x) => (bfloat16[1,2,2,2] y) { y = MaxUnpool <kernel_shape=[2,2]> (x, x) }"
    assert not prove(odd, odd, opset=22)["compared"]
