"""Weights in integers and INT8 by NNCF, on request: what the IR holds, what it computes, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from deploykit.converters.openvino.convert import convert_job
from deploykit.converters.openvino.inspect import describe
from deploykit.data.request import data_request
from deploykit.errors import DataError, MissingDependencyError, UsageError
from deploykit.isolation import Worker
from deploykit.reference import Reference
from deploykit.runtime import open_runtime

pytest.importorskip("nncf")

NET = """agraph (float[N,3,16,16] x) => (float[N,10] y) {
    [conv] c = Conv <pads = [1,1,1,1]> (x, w)
    [relu] r = Relu (c)
    [mean] m = GlobalAveragePool (r)
    [flat] f = Flatten (m)
    [dense] y = MatMul (f, v)
}"""


def arrays(seed=3, channels=64):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(channels, 3, 3, 3)).astype(np.float32),
        "v": rng.normal(size=(channels, 10)).astype(np.float32),
    }


@pytest.fixture
def net(onnx_file):
    return onnx_file(NET, **arrays())


@pytest.fixture
def samples(tmp_path):
    x = np.random.default_rng(1).normal(size=(24, 3, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=x)
    return tmp_path / "calib.npz"


def convert(model, output, calib=None, precision="fp32", **options):
    request = None if calib is None else data_request(str(calib), "calibration")
    return convert_job(str(model), str(output), options, {}, {}, precision, calib=request)


def sqnr(model, artifact, count=4):
    x = np.random.default_rng(2).normal(size=(count, 3, 16, 16)).astype(np.float32)
    expected, found = Reference(model).predict({"x": x})["y"], open_runtime(artifact).predict({"x": x})["y"]
    return 10 * np.log10(np.sum(expected**2) / np.sum((expected - found) ** 2))


@pytest.mark.parametrize(
    ("weights", "kind", "precision", "least"),
    [
        ("int8", "uint8", "int8-weights", 35),
        ("int8_sym", "int8", "int8-weights", 35),
        ("int4_sym", "int4", "int4-weights", 15),
        ("int4_asym", "uint4", "int4-weights", 15),
        ("fp16", "float16", "fp16", 60),
    ],
)
def test_weights_are_stored_as_asked_and_compute_nearly_the_same(net, tmp_path, weights, kind, precision, least):
    made = convert(net, tmp_path / "m.xml", weights=weights)
    facts = describe(tmp_path / "m.xml")
    assert facts["parameters_by_dtype"][kind] >= 640
    assert made["precision"] == precision
    assert made["metrics"]["weights"][kind] >= 640 // (2 if "4" in kind else 1)
    assert sqnr(net, tmp_path / "m.xml") > least


def test_calibration_data_brings_four_bits_nearer(net, samples, tmp_path):
    for name, calib in (("plain", None), ("fitted", samples)):
        convert(net, tmp_path / f"{name}.xml", calib, weights="int4_sym")
    plain, fitted = (sqnr(net, tmp_path / f"{name}.xml") for name in ("plain", "fitted"))
    assert fitted > plain


def test_a_model_without_products_has_nothing_for_four_bits(onnx_file, tmp_path):
    model = onnx_file("agraph (float[N,3,8,8] x) => (float[N,64,6,6] y) { y = Conv (x, w) }", w=arrays()["w"])
    found = [f for f in convert(model, tmp_path / "m.xml", weights="int4_sym")["findings"] if f["severity"] == "error"]
    assert [f["code"] for f in found] == ["DK585"]


def test_int8_by_nncf_runs_in_integer_kernels_and_keeps_the_gate(net, samples, tmp_path):
    made = convert(net, tmp_path / "m.xml", samples, quantizer="nncf")
    assert (made["precision"], made["findings"]) == ("int8", [])
    assert made["versions"]["nncf"]
    runtime = open_runtime(tmp_path / "m.xml")
    kernels = runtime.kernels({"x": np.ones((1, 3, 16, 16), np.float32)})
    assert any(kernel.precision == "int8" and kernel.op == "Convolution" for kernel in kernels)
    assert sqnr(net, tmp_path / "m.xml") > 20


def test_bytes_by_nncf_are_the_same_in_another_process(net, samples, tmp_path):
    request = data_request(str(samples), "calibration")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        worker = Worker("openvino")
        arguments = {
            "model": str(net),
            "options": {"quantizer": "nncf"},
            "dims": {},
            "profiles": {},
            "precision": "fp32",
        }
        worker.call(
            "deploykit.converters.openvino.convert:convert_job",
            {**arguments, "output": str(tmp_path / name / "m.xml"), "calib": request},
        )
        worker.close()
    for file in ("m.xml", "m.bin"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_nncf_brings_neither_pytorch_nor_telemetry(net, tmp_path):
    script = f"""
import sys
from deploykit.converters.openvino.convert import convert_job
convert_job({str(net)!r}, {str(tmp_path / "m.xml")!r}, {{"weights": "int8"}}, {{}}, {{}}, "fp32")
from nncf.telemetry.wrapper import NNCFTelemetry, telemetry
print([name for name in ("torch", "tensorflow") if sys.modules.get(name)])
print(isinstance(telemetry, NNCFTelemetry))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_an_empty_calibration_set_is_refused_before_nncf_sees_it(net, tmp_path):
    empty = tmp_path / "none"
    empty.mkdir()
    with pytest.raises(DataError) as caught:
        convert(net, tmp_path / "m.xml", empty, quantizer="nncf")
    assert caught.value.code.startswith("DK3")
    assert "Statistics" not in caught.value.message
    assert not list(tmp_path.glob("m.*"))


@pytest.mark.parametrize("between", ["", "i = Identity (j)"], ids=["directly", "through an Identity"])
def test_two_convolutions_on_one_concatenation(onnx_file, samples, tmp_path, between):
    rng = np.random.default_rng(4)
    source = "i" if between else "j"
    model = onnx_file(
        f"""agraph (float[N,3,16,16] x) => (float[N,8,16,16] y) {{
            [a] a = Conv <pads = [1,1,1,1]> (x, wa, ba)
            [j] j = Concat <axis = 1> (a, x)
            {between}
            [l] l = Conv <pads = [1,1,1,1]> (j, wl, bl)
            [r] r = Conv <pads = [1,1,1,1]> ({source}, wr, br)
            [y] y = Add (l, r)
        }}""",
        wa=rng.normal(size=(5, 3, 3, 3)).astype(np.float32),
        ba=rng.normal(size=5).astype(np.float32),
        **{f"w{side}": rng.normal(size=(8, 8, 3, 3)).astype(np.float32) for side in "lr"},
        **{f"b{side}": rng.normal(size=8).astype(np.float32) for side in "lr"},
    )
    convert(model, tmp_path / "f.xml")
    convert(model, tmp_path / "m.xml", samples, quantizer="nncf")
    assert (tmp_path / "m.bin").stat().st_size < (tmp_path / "f.bin").stat().st_size
    assert sqnr(model, tmp_path / "m.xml") > 20


@pytest.mark.parametrize(
    ("options", "calib", "said"),
    [
        ({"weights": "int5"}, False, "none of fp16, int8"),
        ({"weights": "int4_sym", "group_size": "48"}, False, "no power of two"),
        ({"weights": "int4_sym", "ratio": "1.5"}, False, "no share"),
        ({"weights": "int8", "group_size": "64"}, False, "belongs to weights=int4_sym"),
        ({"preset": "mixed"}, False, "belongs to quantizer=nncf"),
        ({"quantizer": "nncf"}, False, "measures the range"),
        ({"quantizer": "nncf", "weights": "int8"}, True, "another form"),
        ({}, True, "measures nothing here"),
        ({"weights": "int8"}, True, "measures nothing here"),
    ],
)
def test_options_that_do_nothing_are_refused(net, samples, tmp_path, options, calib, said):
    with pytest.raises(UsageError, match=said):
        convert(net, tmp_path / "m.xml", samples if calib else None, **options)


def test_a_group_size_that_no_layer_has_is_refused_with_the_layer(onnx_file, tmp_path):
    v = np.random.default_rng(5).normal(size=(33, 64)).astype(np.float32)
    model = onnx_file("agraph (float[N,33] x) => (float[N,64] y) { [dense] y = MatMul (x, v) }", v=v)
    with pytest.raises(UsageError, match="group_size 64") as caught:
        convert(model, tmp_path / "m.xml", weights="int4_sym", group_size="64")
    assert caught.value.code == "DK527"


def test_a_quantized_model_is_not_quantized_again(int8_conv, samples, tmp_path):
    with pytest.raises(UsageError, match="is int8 already"):
        convert(int8_conv, tmp_path / "m.xml", samples, precision="int8", quantizer="nncf")


def test_without_nncf_the_extra_is_named(net, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(MissingDependencyError) as caught:
        convert(net, tmp_path / "m.xml", weights="int8")
    assert "deploykit[nncf]" in caught.value.hint
    assert os.environ["NNCF_CI"] == "1"


def test_a_head_of_boxes_and_scores_keeps_its_scores(onnx_file, tmp_path):
    """Boxes of 0..640 beside scores of 0..1 in one tensor: per tensor, a scale of 2.5 would make every score 0."""
    model = onnx_file(
        """agraph (float[N,3,16,16] x) => (float[N,20] y) {
            [c] c = Conv <pads = [1,1,1,1]> (x, w) [m] m = GlobalAveragePool (c) [f] f = Flatten (m)
            [b] b = MatMul (f, v) [s] s = Sigmoid (b) [size] z = Mul (s, k) [t] t = MatMul (f, u) [p] p = Sigmoid (t)
            [cat] y = Concat <axis = 1> (z, p)
        }""",
        **arrays(),
        u=np.random.default_rng(8).normal(size=(64, 10)).astype(np.float32),
        k=np.array(640, np.float32),
    )
    x = np.random.default_rng(1).normal(size=(24, 3, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=x)
    convert(model, tmp_path / "m.xml", tmp_path / "calib.npz", quantizer="nncf")
    expected, found = Reference(model).predict({"x": x})["y"], open_runtime(tmp_path / "m.xml").predict({"x": x})["y"]
    scores, theirs = expected[:, 10:], found[:, 10:]
    # All 0 is 0 dB.
    assert 10 * np.log10(np.sum(scores**2) / np.sum((scores - theirs) ** 2)) > 20
