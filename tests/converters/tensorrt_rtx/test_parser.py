"""What the vendor's log amounts to: nothing that was asked for may get lost in it."""

from __future__ import annotations

import pytest
from onnx import parser as text

trt = pytest.importorskip("tensorrt_rtx")

from deploykit.converters.tensorrt.engine import node_in, reason_of  # noqa: E402 - after the skip
from deploykit.converters.tensorrt_rtx.parser import VendorLog  # noqa: E402


def test_a_setting_that_is_dropped_is_an_error_though_the_plan_is_built():
    log = VendorLog()
    config = trt.Builder(log).create_builder_config()
    start = len(log.kept.messages)
    config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS  # logged as a warning only
    (found,) = log.findings(start)
    assert (found.code, found.severity) == ("DK523", "error")
    assert "setHardwareCompatibilityLevel" in found.message


def test_a_rejected_parameter_is_an_error():
    log = VendorLog()
    config = trt.Builder(log).create_builder_config()
    start = len(log.kept.messages)
    config.runtime_platform = trt.RuntimePlatform.WINDOWS_AMD64
    assert {finding.severity for finding in log.findings(start)} == {"error"}


def test_other_warnings_are_notes_said_once():
    log = VendorLog()
    for _ in range(2):
        log.log(trt.ILogger.Severity.WARNING, "Make sure output i has Int64 binding.")
    log.log(trt.ILogger.Severity.VERBOSE, "ignored chatter")
    log.log(trt.ILogger.Severity.INFO, "Local timing cache in use.")
    assert [(f.code, f.severity) for f in log.findings()] == [("DK524", "note")]


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("Cannot compile operation 'Gemm_4' for Turing (SM75): FP32 GEMM is not supported.", "Gemm_4"),
        ("API Usage Error (ITopKLayer top: top: K exceeds the maximum value allowed (3840).", "top"),
        ("Network has dynamic or shape inputs, but no optimization profile has been defined.", None),
    ],
)
def test_the_layer_is_read_from_the_builders_text(text, node):
    assert node_in(text) == node


def test_what_the_parser_makes_of_uint8_is_int8():
    """The proof of the rule on uint8: the type of the parsed layer, since no engine runs here."""
    model = text.parse_model("""<ir_version: 10, opset_import: ["": 20]>
    agraph (float[1,4] x) => (float[1,4] y) <float s = {0.1}, uint8 z = {0}>
    { q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z) }""")
    log = VendorLog()
    network = trt.Builder(log).create_network(0)
    assert trt.OnnxParser(network, log).parse(model.SerializeToString())
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    made = [layer.get_output(0).dtype for layer in layers if layer.type == trt.LayerType.QUANTIZE]
    assert made == [trt.DataType.INT8]


def test_a_reason_leaves_out_sources_and_the_missing_driver():
    said = (
        "Invalid Node - n\nITensor::getDimensions: Error Code 4: (n: input has type Int32. In checkType at "
        "/_src/optimizer/common/nodeBase.cpp:456)\n[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime "
        "(cudaError 35: CUDA driver version is insufficient for CUDA runtime version)"
    )
    told = reason_of("DequantizeLinear", said, "f")
    assert told.endswith("(n: input has type Int32)")
    assert "cuda" not in told.lower()
