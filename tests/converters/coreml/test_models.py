"""Published models, converted whole and compared with onnxruntime on random inputs; and those that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from deploykit import graph
from deploykit.converters.coreml.runtime import SimulatedRuntime
from deploykit.data import open_request
from deploykit.reference import Reference

# file: dims. Sizes that vary in the package, and those that the network fixes although its file does not say so.
MODELS = {
    "digits/digits_cnn.onnx": {"N": [1, 4]},
    "jvowels/jvowels_lstm.onnx": {"N": [1, 4], "T": [16, 64]},
    "attacut/attacut-sc.onnx": {"seq_len": [16, 64]},
    "mnist5k/mnist5k_cnn.onnx": {"N": [1, 4]},
    "nsnet2/nsnet2-20ms-baseline.onnx": {"batch_size": [1, 4], "frames": [16, 64]},
    "silero_vad/silero_vad_op18_ifless.onnx": {"batch": [1, 2], "sequence": [512, 576]},
    "magika/model.onnx": {"unk__214": [1, 4]},
    "ppocr_v4/cls.onnx": {"x_dim0": [1, 4], "?": [64, 64]},
    "ppocr_v4/det.onnx": {
        "p2o.DynamicDimension.0": [1, 4], "p2o.DynamicDimension.1": [64, 64], "p2o.DynamicDimension.2": [64, 64],
    },
    "ppocr_v4/rec.onnx": {"p2o.DynamicDimension.0": [1, 4], "?": [48, 48], "p2o.DynamicDimension.1": [64, 64]},
    "dnsmos/sig_bak_ovr.onnx": {"N": [1, 4]},
}  # fmt: skip
LONG = {"magika/model.onnx", "ppocr_v4/det.onnx", "ppocr_v4/rec.onnx", "dnsmos/sig_bak_ovr.onnx", "ppocr_v4/cls.onnx"}
# A probability map: onnxruntime's sigmoid makes 0 of what lies below 1e-7, and noise has no text in it.
PROBABILITIES = {"ppocr_v4/det.onnx"}
REFUSED = {
    "silero_vad/silero_vad.onnx": ("If", {"input_dim0": [1, 4], "input_dim1": [512, 576], "state_dim1": [1, 4]}),
    "sklearn/bc_rf.onnx": ("TreeEnsembleClassifier", {"X_dim0": [1, 4]}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in MODELS]
)
def test_a_published_model_is_right(name, shared_model, build):
    path, dims = shared_model(name), MODELS[name]
    result, package = build(path, dims=dims)
    assert [f["message"] for f in result["findings"] if f["severity"] == "error"] == []
    runtime, reference = SimulatedRuntime(package), Reference(path)
    request = {"source": None, "samples": 2, "seed": 0, "label": None, "dims": dims, "contract": None}
    inputs, _ = graph.interface(graph.load(path))
    for sample in open_request(request | {"purpose": "parity"}, inputs, model=path):
        made = runtime.predict(sample.feeds)
        for output, expected in reference.predict(sample.feeds).items():
            assert made[output].shape == expected.shape
            limit = 1e-5 * (1.0 if name in PROBABILITIES else float(np.abs(expected).max()))
            np.testing.assert_allclose(made[output], expected, rtol=1e-4, atol=limit, err_msg=output)


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_is_refused_names_its_nodes(name, shared_model, build):
    op, dims = REFUSED[name]
    result, package = build(shared_model(name), dims=dims)
    assert op in {f["op"] for f in result["findings"] if f["severity"] == "error"}
    assert not package.exists()
