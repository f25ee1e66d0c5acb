import sys

import numpy as np
import onnx
import pytest

pytest.importorskip("MNN")

from deploykit.converters.mnn.convert import convert_job
from deploykit.converters.mnn.inspect import describe
from deploykit.converters.vendor_process import run_program
from deploykit.errors import (
    DataError,
    DeploykitError,
    GateError,
    InvalidFileError,
    UnavailableError,
    UsageError,
    VendorError,
)
from deploykit.isolation import Worker
from deploykit.reference import Reference
from deploykit.runtime import RuntimeOptions, open_runtime

NET = """agraph (float[batch,3,8,8] image) => (float[batch,5] logits, float[batch,5,8,8] again) {
    [conv] c = Conv <pads = [1,1,1,1]> (image, w)
    [relu] r = Relu (c)
    [mean] m = GlobalAveragePool (r)
    [flat] logits = Flatten (m)
    [same] again = Identity (r)
}"""


def weights(*shape):
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


@pytest.fixture
def net(onnx_file):
    return onnx_file(NET, w=weights(5, 3, 3, 3))


def convert(model, output, options=None, precision="fp32", dims=None):
    return convert_job(str(model), str(output), options or {}, dims or {}, {}, precision)


def both(model, feeds, tmp_path, **arguments):
    """What the reference gives, and MNN."""
    made = convert(model, tmp_path / "m.mnn", **arguments)
    assert not [finding for finding in made["findings"] if finding["severity"] == "error"], made["findings"]
    runtime = open_runtime(tmp_path / "m.mnn")
    found = runtime.predict(feeds)
    runtime.close()
    return Reference(model).predict(feeds), found


def assert_equal(wanted, found, rtol=1e-5, atol=1e-5):
    assert list(wanted) == list(found)
    for name, array in wanted.items():
        assert array.dtype == found[name].dtype
        np.testing.assert_allclose(found[name], array, rtol, atol, err_msg=name)


def test_names_order_types_and_symbols_are_those_of_the_onnx_file(net, tmp_path):
    made = convert(net, tmp_path / "m.mnn")
    assert made["files"] == ["m.mnn"]
    assert made["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 3, 8, 8]}]
    runtime = open_runtime(tmp_path / "m.mnn")
    assert [spec.as_dict() for spec in runtime.inputs] == made["inputs"]
    assert [spec.as_dict() for spec in runtime.outputs] == made["outputs"]


def test_inputs_that_the_file_wants_in_groups_of_channels_are_given_so(net, tmp_path):
    feeds = {"image": np.random.default_rng(1).normal(size=(3, 3, 8, 8)).astype(np.float32)}
    assert_equal(*both(net, feeds, tmp_path))
    assert describe(tmp_path / "m.mnn")["layouts"] == {"image": "NC4HW4"}


def test_inputs_and_outputs_go_by_name(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[2,3] b, float[2,3] a, float[2] no) => (float[2,3] z, float[2,3] y, float[2,3] b2, float s) {
            y = Sub (a, b) t = Mul (a, a) z = Add (t, b) b2 = Identity (b) s = ReduceSum <keepdims = 0> (a)
        }"""
    )
    rng = np.random.default_rng(2)
    feeds = {name: rng.normal(size=(2, 3)).astype(np.float32) for name in ("b", "a")} | {"no": np.ones(2, "f")}
    assert_equal(*both(model, feeds, tmp_path))


INTEGERS = """agraph (int64[2,3] x, bool[2,3] m, uint8[2,3] u) => (int64[2,3] y, bool[2,3] n, float[2,3] f) {
    y = Add (x, x) n = Not (m) f = Cast <to = 1> (u)
}"""


def test_integers_and_booleans_are_cast_at_the_door(onnx_file, tmp_path):
    model = onnx_file(INTEGERS)
    feeds = {
        "x": np.array([[1, 2, 3], [-4, 5, 2**30 - 1]]),
        "m": np.array([[True, False, True]] * 2),
        "u": np.array([[0, 1, 255]] * 2, np.uint8),
    }
    assert_equal(*both(model, feeds, tmp_path))
    told = {finding["tensor"]: finding for finding in convert(model, tmp_path / "n.mnn")["findings"]}
    assert told["x"]["code"] == "DK529"
    assert "int64 in the model and int32 in MNN" in told["x"]["message"]
    with pytest.raises(DataError, match=r"0\.\.2147483648") as caught:
        open_runtime(tmp_path / "m.mnn").predict({**feeds, "x": np.array([[0, 0, 2**31]] * 2)})
    assert caught.value.code == "DK548"


@pytest.mark.parametrize("kind", ["double", "string", "uint32"])
def test_types_that_mnn_has_no_tensors_of_are_refused(onnx_file, tmp_path, kind):
    made = convert(onnx_file(f"agraph ({kind}[2] x) => ({kind}[2] y) {{ y = Identity (x) }}"), tmp_path / "m.mnn")
    assert {(finding["code"], finding["severity"], finding["tensor"]) for finding in made["findings"]} == {
        ("DK529", "error", "x"),
        ("DK529", "error", "y"),
    }


def test_every_node_that_the_converter_lacks_is_named(onnx_file, tmp_path):
    model = onnx_file("agraph (float[2] x) => (float[2] y) { [one] a = Mish (x) [two] b = Mish (a) [ok] y = Relu (b) }")
    made = convert(model, tmp_path / "m.mnn")
    assert [(f["code"], f["severity"], f["node"], f["op"]) for f in made["findings"]] == [
        ("DK526", "error", "one", "Mish"),
        ("DK526", "error", "two", "Mish"),
    ]


def test_a_constant_of_one_element_before_a_convolution_has_no_axes(onnx_file, tmp_path):
    # MNN 3.6.1 lays the sum out as the constant is: up to 2.0 off where the result is in [0, 2].
    model = onnx_file(
        """agraph (float[N,16,12,1] x) => (float[N,16,12] y) <float[1,1,1] one = {1.0}, int64[1] axis = {3}> {
            c = Conv (x, w) s = Squeeze (c, axis) t = Tanh (s) y = Add (one, t)
        }""",
        w=weights(16, 16, 1, 1),
    )
    assert_equal(*both(model, {"x": weights(2, 16, 12, 1)}, tmp_path))


def test_operators_that_mnn_computes_otherwise_are_written_with_others(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[N,9] x) => (float[N,9] g, float[N,9] t, float[N,9] r, float[N,9] s) {
            g = Gelu (x) t = Gelu <approximate = "tanh"> (x) r = Round (x) s = Softplus (x)
        }"""
    )
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, -2.7, 3.1, 200.0]], np.float32)
    assert_equal(*both(model, {"x": x}, tmp_path), rtol=1e-6, atol=1e-6)


def test_a_convolution_keeps_its_digits(onnx_file, tmp_path):
    # With its usual Winograd tiles MNN is 4e-4 of the largest value off.
    model = onnx_file(
        "agraph (float[1,64,40,40] x) => (float[1,64,40,40] y) { y = Conv <pads = [1,1,1,1]> (x, w) }",
        w=weights(64, 64, 3, 3),
    )
    wanted, found = both(model, {"x": weights(1, 64, 40, 40)}, tmp_path)
    assert np.abs(wanted["y"] - found["y"]).max() < 2e-6 * np.abs(wanted["y"]).max()


def test_control_flow_runs_the_branch_that_is_taken(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[2] x, bool c) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = Relu (x) },
                        else_branch = e () => (float[2] b) { b = Neg (x) }>
        }"""
    )
    x = np.array([-1, 2], np.float32)
    assert_equal(*both(model, {"x": x, "c": np.array(True)}, tmp_path))
    found = open_runtime(tmp_path / "m.mnn").predict({"x": x, "c": np.array(False)})
    assert found["y"].tolist() == [1, -2]


def test_bytes_are_the_same_whatever_the_process_did_before(net, onnx_file, tmp_path):
    other = onnx_file("agraph (float[2] x) => (float[2] y) { y = Relu (x) }", "other.onnx")
    for name, models in {"first": [net], "second": [other, net]}.items():
        worker = Worker("mnn")
        for model in models:
            (tmp_path / name).mkdir(exist_ok=True)
            arguments = {"model": str(model), "output": str(tmp_path / name / f"{model.stem}.mnn")}
            worker.call(
                "deploykit.converters.mnn.convert:convert_job",
                {**arguments, "options": {}, "dims": {}, "profiles": {}, "precision": "fp32"},
            )
        worker.close()
    content = (tmp_path / "first" / "model.mnn").read_bytes()
    assert content == (tmp_path / "second" / "model.mnn").read_bytes()
    assert str(tmp_path).encode() not in content


@pytest.mark.parametrize(
    ("kind", "precision", "smaller", "tolerance"),
    [("fp16", "fp16", 1.9, 2e-3), ("int8", "int8-weights", 3.2, 2e-2), ("int4", "int4-weights", 5, 0.3)],
)
def test_weights_are_stored_as_asked_for(onnx_file, tmp_path, kind, precision, smaller, tolerance):
    model = onnx_file(
        "agraph (float[N,64,4,4] x) => (float[N,128,4,4] y) { y = Conv <pads = [1,1,1,1]> (x, w) }",
        w=weights(128, 64, 3, 3),
    )
    convert(model, tmp_path / "full.mnn")
    wanted, found = both(model, {"x": weights(1, 64, 4, 4)}, tmp_path, options={"weights": kind})
    assert describe(tmp_path / "m.mnn")["precision"] == precision
    assert (tmp_path / "full.mnn").stat().st_size > smaller * (tmp_path / "m.mnn").stat().st_size
    difference = np.abs(wanted["y"] - found["y"]).max() / np.abs(wanted["y"]).max()
    assert 0 < difference < tolerance


def test_weights_that_are_integers_in_the_model_stay_on_their_grid(onnx_file, tmp_path):
    rng = np.random.default_rng(3)
    grid = rng.integers(-127, 128, (64, 32, 3, 3)).astype(np.int8)
    grid[:, 0, 0, 0] = 127  # as quantizers scale a channel: by its largest weight
    model = onnx_file(
        """agraph (float[N,32,4,4] x) => (float[N,64,4,4] y) {
            w = DequantizeLinear <axis = 0> (q, s) y = Conv <pads = [1,1,1,1]> (x, w)
        }""",
        q=grid,
        s=rng.uniform(0.01, 0.02, 64).astype(np.float32),
    )
    wanted, found = both(model, {"x": weights(2, 32, 4, 4)}, tmp_path, precision="int8-weights")
    assert np.abs(wanted["y"] - found["y"]).max() < 1e-5 * np.abs(wanted["y"]).max()
    assert (tmp_path / "m.mnn").stat().st_size < 2 * 64 * 32 * 9


def test_int4_weights_of_the_model_are_stored_in_more_bits(net, tmp_path):
    made = convert(net, tmp_path / "m.mnn", precision="int4-weights")
    assert made["precision"] == describe(tmp_path / "m.mnn")["precision"] == "int8-weights"
    assert [(finding["code"], finding["severity"]) for finding in made["findings"]] == [("DK576", "note")]


def test_half_precision_stays_outside_and_in_the_file(onnx_file, tmp_path):
    model = onnx_file(
        "agraph (float16[N,8] x) => (float16[N,64] y) { y = MatMul (x, w) }", w=weights(8, 64).astype(np.float16)
    )
    wanted, found = both(model, {"x": weights(2, 8).astype(np.float16)}, tmp_path, precision="fp16")
    assert found["y"].dtype == np.float16
    np.testing.assert_allclose(found["y"], wanted["y"], 2e-3, 2e-3)


@pytest.mark.parametrize(
    "options",
    [{"weights": "int2"}, {"weights": "int4", "block": "0"}, {"block": "32"}, {"weights": "int8", "hqq": "y"}],
)
def test_wrong_options_are_refused_before_anything_is_converted(net, tmp_path, options):
    with pytest.raises(UsageError) as caught:
        convert(net, tmp_path / "m.mnn", options)
    assert caught.value.code == "DK527"
    assert not (tmp_path / "m.mnn").exists()


def test_a_model_that_the_format_cannot_hold_is_refused(net, tmp_path, monkeypatch):
    monkeypatch.setattr("deploykit.converters.mnn.convert._LARGEST", 5 * 27 * 4 - 1)
    with pytest.raises(GateError, match=r"the weights of model\.onnx take") as caught:
        convert(net, tmp_path / "m.mnn")
    assert caught.value.code == "DK575"
    assert not (tmp_path / "m.mnn").exists()


def test_a_dimension_with_one_size_is_fixed(net, tmp_path):
    made = convert(net, tmp_path / "m.mnn", dims={"batch": [4, 4]})
    assert made["inputs"][0]["shape"] == [4, 3, 8, 8]


def test_what_ends_the_converters_process_is_a_vendors_error_with_its_log(net, tmp_path, monkeypatch):
    def crash(arguments):
        return run_program([sys.executable, "-c", "import os; print('a bad node', flush=True); os.abort()"], tmp_path)

    monkeypatch.setattr("deploykit.converters.mnn.convert.call_converter", crash)
    with pytest.raises(VendorError, match=r"does not convert model\.onnx: it crashed with SIGABRT") as caught:
        convert(net, tmp_path / "m.mnn")
    assert list(caught.value.log) == ["a bad node"]


def test_a_file_that_is_cut_off_is_one_clear_error(net, tmp_path):
    convert(net, tmp_path / "m.mnn")
    content = (tmp_path / "m.mnn").read_bytes()
    for length in (3, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.mnn").write_bytes(content[:length])
        with pytest.raises(InvalidFileError) as caught:
            describe(tmp_path / "cut.mnn")
        assert caught.value.code == "DK528"


def test_a_file_that_ends_mnns_process_is_one_clear_error(net, tmp_path):
    convert(net, tmp_path / "m.mnn")
    content = (tmp_path / "m.mnn").read_bytes()
    found = set()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        damaged = np.frombuffer(content, np.uint8).copy()
        damaged[rng.integers(8, len(content), 40)] = rng.integers(256, size=40)
        (tmp_path / "bad.mnn").write_bytes(damaged.tobytes())
        try:
            describe(tmp_path / "bad.mnn")
        except DeploykitError as problem:
            found.add(problem.code)
    assert found == {"DK528"}


def test_inspect_tells_what_is_in_a_model_made_elsewhere(onnx_file, net, tmp_path):
    convert(net, tmp_path / "m.mnn")
    file = tmp_path / "m.mnn"
    content = file.read_bytes()
    tag = content.index(b'{"deploykit"')
    file.write_bytes(content[:tag] + b"MNN " + content[tag + 4 :])
    facts = describe(file)
    assert (facts["precision"], facts["inputs"][0]["name"]) == ("unknown", "image")
    assert facts["operators"]["Convolution"] == 1


def test_other_devices_are_refused(net, tmp_path):
    convert(net, tmp_path / "m.mnn")
    with pytest.raises(UnavailableError):
        open_runtime(tmp_path / "m.mnn", RuntimeOptions(device="gpu"))


def test_tensors_inside_are_given_on_request(net, tmp_path):
    convert(net, tmp_path / "m.mnn")
    runtime = open_runtime(tmp_path / "m.mnn", RuntimeOptions(taps=("m", "nothing")))
    found = runtime.predict({"image": weights(1, 3, 8, 8)})
    assert runtime.taps == ("m",)
    np.testing.assert_allclose(found["m"].reshape(1, 5), found["logits"])


def test_external_weights_are_read(net, onnx_file, tmp_path):
    model = onnx.load(net)
    (tmp_path / "far").mkdir()
    onnx.save(model, tmp_path / "far" / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    feeds = {"image": weights(1, 3, 8, 8)}
    assert_equal(*both(tmp_path / "far" / "m.onnx", feeds, tmp_path))


def test_standard_output_stays_free_for_what_deploykit_says(net, tmp_path):
    convert(net, tmp_path / "m.mnn")
    script = f"""
import numpy, pathlib
from deploykit.runtime import RuntimeOptions, open_runtime
runtime = open_runtime(pathlib.Path({str(tmp_path / "m.mnn")!r}), RuntimeOptions())
print(runtime.predict({{"image": numpy.zeros((1, 3, 8, 8), "f")}})["logits"].shape)
"""
    done = run_program([sys.executable, "-c", f"import os; os.dup2(os.open(os.devnull, 1), 2)\n{script}"], tmp_path)
    assert (done.code, done.log) == (0, ("(1, 5)",))


def test_kernels_are_timed_and_named_by_the_tensors_that_they_make(net, onnx_file, tmp_path):
    convert(net, tmp_path / "m.mnn")
    runtime = open_runtime(tmp_path / "m.mnn", RuntimeOptions(threads=1))
    feeds = {"image": weights(2, 3, 8, 8)}
    kernels = runtime.kernels(feeds)
    (convolution,) = (kernel for kernel in kernels if kernel.op == "Convolution")
    assert convolution.macs == pytest.approx(2 * 5 * 3 * 9 * 64, rel=0.01)
    assert convolution.nodes == ("c",)
    assert all(kernel.microseconds > 0 for kernel in kernels)
    branches = onnx_file(
        """agraph (float[2] x, bool c) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = Relu (x) },
                        else_branch = e () => (float[2] b) { b = Neg (x) }>
        }""",
        "branches.onnx",
    )
    convert(branches, tmp_path / "b.mnn")
    assert open_runtime(tmp_path / "b.mnn").kernels({"x": np.ones(2, "f"), "c": np.array(True)}) is None
