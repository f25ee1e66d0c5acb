import numpy as np
import onnx
import pytest
from quantize_models import onnx_text, run, sqnr_db

from deploykit import graph
from deploykit.quantize.prepare import load_float
from deploykit.quantize.weight_only import quantize_weights

RNG = np.random.default_rng(0)
TEXT = """g (float[n,32] x, float[32,4] k) => (float[n,4] y, float[n,4] z) {
    [big] a = MatMul (x, w)
    [tied] b = Gemm <transB=1> (a, w)
    [small] y = MatMul (b, s)
    [computed] z = MatMul (x, k)
}"""


@pytest.fixture
def model(tmp_path):
    weights = {"w": RNG.normal(size=(32, 32)), "s": RNG.normal(size=(32, 4))}
    path = onnx_text(TEXT, tmp_path / "m.onnx", **{name: array.astype(np.float32) for name, array in weights.items()})
    return path, load_float(path)[0]


def test_weights_become_int8_and_results_stay_close(model, tmp_path):
    path, loaded = model
    done, left = quantize_weights(loaded)
    assert done == ["big", "tied", "small"]
    assert [(item.name, "no weight" in item.reason) for item in left] == [("computed", True)]
    graph.save(loaded, tmp_path / "q.onnx")
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    feeds = {"x": RNG.normal(size=(3, 32)).astype(np.float32), "k": RNG.normal(size=(32, 4)).astype(np.float32)}
    reference, found = run(path, feeds), run(tmp_path / "q.onnx", feeds)
    assert sqnr_db(reference["y"], found["y"]) > 35
    assert np.allclose(reference["z"], found["z"], rtol=1e-5, atol=1e-5)
    types = {tensor.const_value.dtype.name for tensor in loaded.graph.initializers.values()}
    assert types == {"INT8", "FLOAT"}
    assert "w" not in loaded.graph.initializers


def test_exclusion(model):
    _, loaded = model
    done, left = quantize_weights(loaded, exclude=("Gemm", "small"))
    assert done == ["big"]
    assert {item.name for item in left if item.reason == "excluded"} == {"tied", "small"}
