"""compute_precision=fp16: what is rounded is what the package does, and what must stay fp32 does."""

import numpy as np
import pytest

from deploykit.converters.coreml import TARGET
from deploykit.converters.coreml.inspect import open_package
from deploykit.converters.coreml.simulator.halves import HalfInterpreter, half_constant
from deploykit.data.request import data_request
from deploykit.errors import UsageError
from deploykit.isolation import run_isolated
from deploykit.parity import TOLERANCES
from deploykit.reference import Reference

RNG = np.random.default_rng(3)
HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
# The difference of two large values has few digits in fp16; what is behind it is harmless.
CANCELS = (
    HEAD
    + """g (float[4,8] x) => (float[4,8] y) <float[8,8] w = {MATRIX}, float[1] shift = {3000}> {
    [a] a = MatMul (x, w)
    [b] b = Relu (a)
    [up] c = Add (b, shift)
    [down] d = Sub (c, shift)
    [e] e = MatMul (d, w)
    [f] f = Sigmoid (e)
    [g] h = MatMul (f, w)
    [h] y = Tanh (h)
}""".replace("MATRIX", ",".join(f"{value:.5f}" for value in RNG.normal(size=64) / 4))
)


@pytest.fixture
def halved(pool, save, tmp_path):
    """Converts text with compute_precision=fp16: the job's result, the package, the model."""

    def run(text, samples=None, *, precision="fp32", dims=None, **options):
        path, output = save(text), tmp_path / "half.mlpackage"
        calib = None
        if samples is not None:
            np.savez(tmp_path / "calib.npz", **samples)
            calib = data_request(str(tmp_path / "calib.npz"), "calibration")
        arguments = {
            "model": str(path),
            "output": str(output),
            "options": {"compute_precision": "fp16"} | options,
            "dims": dims or {},
            "profiles": {},
            "precision": precision,
            "calib": calib,
        }
        function = "deploykit.converters.coreml.convert:convert_job"
        result = run_isolated(TARGET.worker, function, arguments, block=TARGET.blocked)
        assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
        return result, output, path

    return run


def units(path, package, feeds, evaluate):
    """The largest difference from onnxruntime's fp32 in units of what the fp16 row allows."""
    limits, worst = TOLERANCES["fp16"], 0.0
    made = evaluate(package, feeds)
    for name, expected in Reference(path).predict(feeds).items():
        assert made[name].dtype == expected.dtype
        allowed = limits.rtol * np.abs(expected) + limits.atol_factor * np.abs(expected).max()
        worst = max(worst, float((np.abs(made[name].astype(np.float64) - expected) / allowed).max()))
    return worst


def kept(result):
    return {f["node"]: f["message"] for f in result["findings"] if f["code"] == "DK540"}


def test_a_planted_loss_stays_fp32_and_is_named(halved, evaluate):
    calib = RNG.normal(size=(24, 4, 8)).astype(np.float32)
    result, package, path = halved(CANCELS, {"x": calib})
    assert {"up", "down"} == set(kept(result))
    assert "rounding it costs" in kept(result)["down"]
    told = next(f["message"] for f in result["findings"] if f["code"] == "DK542")
    assert "times what is allowed" in told
    assert result["precision"] == "fp16"
    facts = result["metrics"]["compute_precision"]
    assert facts["before"] > 1 >= facts["after"]
    assert set(facts["kept_fp32"]) == {"c", "d"}
    fresh = RNG.normal(size=(4, 8)).astype(np.float32)
    assert units(path, package, {"x": fresh}, evaluate) <= 1
    assert result["metrics"]["weights"]["bytes_by_dtype"]["float16"] == 2 * 3 * 64 // 3  # one matrix, stored once


def test_random_data_is_said_first(halved):
    result, _, _ = halved(CANCELS)
    assert result["findings"][0]["code"] == "DK541"
    assert result["findings"][0]["severity"] == "warning"
    assert result["metrics"]["compute_precision"]["data"] == "random"


def test_nothing_stays_fp32_where_nothing_is_lost(halved, evaluate):
    text = CANCELS.replace("3000", "0.5")
    result, package, path = halved(text, {"x": RNG.normal(size=(24, 4, 8)).astype(np.float32)})
    assert kept(result) == {}
    assert result["findings"] == []
    kinds = {v.dtype.__name__ for o in open_package(package).function.operations for v in o.outputs if v.rank == 2}
    assert "fp32" in kinds or "fp16" in kinds
    assert result["metrics"]["operators"]["cast"] == 2
    fresh = RNG.normal(size=(4, 8)).astype(np.float32)
    assert 0 < units(path, package, {"x": fresh}, evaluate) < 1


OVERFLOWS = (
    HEAD
    + """g (float[2,6] x) => (float[2,6] y) <float[1] big = {200000}, float[1] small = {0.00001}> {
    [up] a = Mul (x, big)
    [down] b = Mul (a, small)
    [end] y = Relu (b)
}"""
)


def test_what_overflows_stays_fp32(halved, evaluate):
    result, package, path = halved(OVERFLOWS, {"x": RNG.normal(size=(8, 2, 6)).astype(np.float32)})
    assert {"up", "down"} == set(kept(result))
    assert "fp16 ends at 65504" in kept(result)["up"]
    feeds = {"x": RNG.normal(size=(2, 6)).astype(np.float32)}
    assert units(path, package, feeds, evaluate) < 1


NORMALIZES = (
    HEAD
    + """g (float[2,6] x) => (float[2,6] y) <float[1] eps = {1e-12}, int64[1] last = {-1}> {
    [square] a = Mul (x, x)
    [sum] s = ReduceSum (a, last)
    [guard] g = Add (s, eps)
    [root] r = Sqrt (g)
    [over] y = Div (x, r)
}"""
)


def test_an_epsilon_that_vanishes_keeps_the_division_in_fp32(halved, evaluate):
    """No sample has a row of zeros, and one may come: 0 / 0 is NaN."""
    result, package, _ = halved(NORMALIZES, {"x": RNG.normal(size=(8, 2, 6)).astype(np.float32)})
    assert {"guard", "root", "over"} <= set(kept(result))
    zeros = np.zeros((2, 6), np.float32)
    np.testing.assert_array_equal(evaluate(package, {"x": zeros})["y"], zeros)


LAYER_NORM = (
    '<ir_version: 9, opset_import: ["" : 18]>'
    "g (float[2,6] x) => (float[2,6] y) <float[6] s = {1,1,1,1,1,1}> "
    "{ [norm] y = LayerNormalization <epsilon: float = 1e-12> (x, s) }"
)


def test_an_epsilon_of_a_norm_never_becomes_0(halved, evaluate):
    result, package, _ = halved(LAYER_NORM, {"x": RNG.normal(size=(8, 2, 6)).astype(np.float32)})
    assert kept(result) == {}
    made = evaluate(package, {"x": np.full((2, 6), 3, np.float32)})["y"]
    np.testing.assert_array_equal(made, np.zeros((2, 6), np.float32))


POSITIONS = (
    HEAD
    + """g (float[3,4] x, int64[2] n) => (float[2,4] y) <float[1] half = {0.5}, float[1] two = {2}> {
    [in] a = Cast <to: int = 1> (n)
    [mul] b = Mul (a, half)
    [floor] c = Floor (b)
    [out] i = Cast <to: int = 7> (c)
    [pick] y = Gather (x, i)
}"""
)


def test_floats_that_become_indices_stay_fp32(halved):
    samples = {"x": RNG.normal(size=(4, 3, 4)).astype(np.float32), "n": RNG.integers(0, 5, (4, 2))}
    result, _, _ = halved(POSITIONS, samples)
    assert {"mul", "floor"} <= set(kept(result))
    assert "2048" in kept(result)["mul"]


def test_what_is_measured_is_what_the_package_does(halved, evaluate):
    """Rounding in the fp32 program against the fp16 package, to the bit; casts are where they cost nothing."""
    result, package, path = halved(CANCELS, {"x": RNG.normal(size=(24, 4, 8)).astype(np.float32)})
    from deploykit.converters.coreml.precision import candidates

    known = candidates(open_package(package).function)  # fp16 operations take no fp32 any more
    assert set(result["metrics"]["compute_precision"]["kept_fp32"]) == {"c", "d"}
    assert {name for name, item in known.items() if item.kind in ("add", "sub")} == {"c", "d"}
    plain = package.with_name("plain.mlpackage")
    arguments = {
        "model": str(path), "output": str(plain), "options": {}, "dims": {}, "profiles": {}, "precision": "fp32",
    }  # fmt: skip
    function = "deploykit.converters.coreml.convert:convert_job"
    run_isolated(TARGET.worker, function, arguments, block=TARGET.blocked)
    interpreter = HalfInterpreter(open_package(plain).function, "plain")
    every = candidates(interpreter.function)
    interpreter.choose({i.operation: i.parameters for name, i in every.items() if name not in ("c", "d")})
    x = RNG.normal(size=(4, 8)).astype(np.float32)
    np.testing.assert_array_equal(interpreter.run({"x": x})["y"], evaluate(package, {"x": x})["y"])
    interpreter.choose({})
    assert not np.array_equal(interpreter.run({"x": x})["y"], evaluate(package, {"x": x})["y"])


def test_packages_are_the_same_bytes_each_time(halved, tmp_path):
    samples = {"x": RNG.normal(size=(24, 4, 8)).astype(np.float32)}
    made = []
    for _ in range(2):
        _, package, _ = halved(CANCELS, samples)
        made.append({str(f.relative_to(package)): f.read_bytes() for f in package.rglob("*") if f.is_file()})
        package.rename(tmp_path / f"old{len(made)}")
    assert made[0] == made[1]


def test_the_interface_is_fp16_on_request(halved, evaluate):
    samples = {"x": RNG.normal(size=(24, 4, 8)).astype(np.float32)}
    result, package, path = halved(CANCELS, samples, io_precision="fp16")
    assert [result[kind][0]["dtype"] for kind in ("inputs", "outputs")] == ["float16", "float16"]
    assert {f["tensor"] for f in result["findings"] if f["code"] == "DK529"} == {"x", "y"}
    x = RNG.normal(size=(4, 8)).astype(np.float16)
    made = evaluate(package, {"x": x})["y"]
    assert made.dtype == np.float16
    np.testing.assert_allclose(made, Reference(path).predict({"x": x.astype(np.float32)})["y"], rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize(
    ("options", "precision", "words"),
    [
        ({"compute_precision": "int8"}, "fp32", "none of fp32, fp16"),
        ({"compute_precision": "fp32"}, "fp16", "holds fp16 already"),
        ({"compute_precision": "fp32", "io_precision": "fp16"}, "fp32", "goes with compute_precision=fp16"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, precision, words, halved):
    with pytest.raises(UsageError, match=words) as problem:
        halved(CANCELS, precision=precision, **options)
    assert problem.value.code == "DK527"


def test_calibration_data_without_use_is_refused(halved):
    samples = {"x": RNG.normal(size=(2, 4, 8)).astype(np.float32)}
    with pytest.raises(UsageError, match="nothing becomes fp16"):
        halved(CANCELS, samples, compute_precision="fp32")


LOOP = (
    HEAD
    + """g (float[2,6] x, int64[1] n) => (float[2,6] y) <float[6] w = {0.5,0.25,0.75,1.0,0.1,0.9}, bool go = {1}> {
    count = Squeeze (n)
    y = Loop (count, go, x) <body = body (int64 i, bool c, float[2,6] s) => (bool d, float[2,6] t) {
        d = Identity (c)
        p = Mul (s, w)
        t = Tanh (p)
    }>
}"""
)


def test_bodies_of_loops_are_fp16_too(halved, evaluate):
    samples = {"x": RNG.normal(size=(8, 2, 6)).astype(np.float32), "n": np.full((8, 1), 3)}
    result, package, path = halved(LOOP, samples)
    feeds = {"x": RNG.normal(size=(2, 6)).astype(np.float32), "n": np.array([3])}
    expected = Reference(path).predict(feeds)["y"]
    made = evaluate(package, {"x": feeds["x"], "n": feeds["n"].astype(np.int32)})["y"]
    assert 0 < np.abs(made - expected).max() < 2e-3
    assert result["metrics"]["compute_precision"]["fp16"] >= 2


def test_a_quantized_model_computes_the_rest_in_fp16(halved, evaluate):
    values = ",".join(str(v) for v in RNG.integers(-100, 100, 48))
    text = (
        HEAD
        + """g (float[3,8] x) => (float[3,6] y)
        <int8[8,6] w = {VALUES}, float[6] s = {0.01,0.02,0.01,0.03,0.01,0.02}, float a = {0.02}, int8 z = {0}> {
        q = QuantizeLinear (x, a, z)
        d = DequantizeLinear (q, a, z)
        m = DequantizeLinear <axis: int = 1> (w, s)
        p = MatMul (d, m)
        y = Tanh (p)
    }""".replace("VALUES", values)
    )
    result, package, path = halved(text, {"x": RNG.normal(size=(8, 3, 8)).astype(np.float32)}, precision="int8")
    assert result["precision"] == "int8"
    kinds = result["metrics"]["operators"]
    assert {"quantize", "dequantize", "constexpr_affine_dequantize"} <= set(kinds)
    assert units(path, package, {"x": RNG.normal(size=(3, 8)).astype(np.float32)}, evaluate) < 1


def test_constants_in_fp16():
    assert half_constant(np.float32(1e-12)) == np.float16(6e-8)
    assert half_constant(np.float32(-1e-12)) == np.float16(-6e-8)
    assert half_constant(np.float32(0)) == 0
    np.testing.assert_array_equal(half_constant(np.float32([1e-12, 1])), np.float16([0, 1]))  # weights just round
