import numpy as np
import pytest

pytest.importorskip("ncnn")
pytest.importorskip("pnnx")

from deploykit.artifact import read_manifest
from deploykit.converters.ncnn.convert import convert_job
from deploykit.converters.ncnn.inspect import describe
from deploykit.converters.ncnn.param import read_param
from deploykit.errors import DataError, InvalidFileError, ModelError, UnavailableError, UsageError, VendorError
from deploykit.isolation import Worker
from deploykit.reference import Reference
from deploykit.runtime import RuntimeOptions, open_runtime

NET = """agraph (float[batch,3,8,8] image) => (float[batch,5] logits, float[batch,5,8,8] maps) {
    [conv] c = Conv <pads = [1,1,1,1]> (image, w)
    [relu] maps = Relu (c)
    [mean] m = GlobalAveragePool (maps)
    [flat] logits = Flatten (m)
}"""


def weights(*shape):
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


@pytest.fixture
def net(onnx_file):
    return onnx_file(NET, w=weights(5, 3, 3, 3))


def convert(model, output, options=None, precision="fp32", dims=None):
    return convert_job(str(model), str(output), options or {}, dims or {}, {}, precision)


def both(model, feeds, tmp_path, **arguments):
    """What the reference gives, and ncnn."""
    made = convert(model, tmp_path / "m.param", **arguments)
    assert not [finding for finding in made["findings"] if finding["severity"] == "error"], made["findings"]
    runtime = open_runtime(tmp_path / "m.param")
    found = runtime.predict(feeds)
    runtime.close()
    return Reference(model).predict(feeds), found


def assert_equal(wanted, found, rtol=1e-5, atol=1e-5):
    assert list(wanted) == list(found)
    for name, array in wanted.items():
        assert array.dtype == found[name].dtype
        np.testing.assert_allclose(found[name], array, rtol, atol, err_msg=name)


def test_blobs_have_the_models_names_and_the_interface_is_the_models(net, tmp_path):
    made = convert(net, tmp_path / "m.param")
    assert made["files"] == ["m.param", "m.bin"]
    blobs = {blob for layer in read_param(tmp_path / "m.param") for blob in layer.outputs}
    assert {"image", "logits", "maps"} <= blobs
    runtime = open_runtime(tmp_path / "m.param")
    assert [spec.as_dict() for spec in runtime.inputs] == made["inputs"]
    assert [spec.as_dict() for spec in runtime.outputs] == made["outputs"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("m.")) == [
        "m.bin", "m.param", "m.param.deploykit.json",
    ]  # fmt: skip


def test_a_batch_goes_through_sample_by_sample(net, tmp_path):
    feeds = {"image": np.random.default_rng(1).normal(size=(3, 3, 8, 8)).astype(np.float32)}
    assert_equal(*both(net, feeds, tmp_path))
    told = [f["message"] for f in convert(net, tmp_path / "n.param")["findings"] if f["code"] == "DK529"]
    assert told == ["the network is of one sample: 'image', 'logits', 'maps' have no batch axis in it"]


def test_inputs_and_outputs_go_by_name_even_where_ncnn_cannot_call_them_so(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[2,3] b, float[2,3] a) => (float[2,3] z, float[2,3] y, float s) {
            y = Sub (a, b) t = Mul (a, a) z = Add (t, b) s = ReduceSum <keepdims = 0> (a)
        }"""
    )
    import onnx

    loaded = onnx.load(model)
    loaded.graph.output[1].name = loaded.graph.node[0].output[0] = "the difference"
    onnx.save(loaded, model)
    feeds = {name: np.random.default_rng(2).normal(size=(2, 3)).astype(np.float32) for name in ("b", "a")}
    assert_equal(*both(model, feeds, tmp_path))
    told = [finding["message"] for finding in convert(model, tmp_path / "n.param")["findings"]]
    assert told == ["'the difference' is called 'out1' in the network: ncnn cannot call it so"]


def test_sizes_that_vary_are_not_written_down(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[N,3,H,W] x) => (float[N,M,4] y) <int64[3] shape = {0, 4, -1}> {
            c = Conv <pads = [1,1,1,1]> (x, w) r = Reshape (c, shape) y = Transpose <perm = [0,2,1]> (r)
        }""",
        w=weights(4, 3, 3, 3),
    )
    made = convert(model, tmp_path / "m.param", dims={"H": [8, 16]})
    assert made["metrics"]["traced"] == {"H": [8, 16], "W": [64, 128]}
    runtime, reference = open_runtime(tmp_path / "m.param"), Reference(model)
    for height, width in ((8, 8), (5, 30), (40, 7)):
        feeds = {"x": weights(2, 3, height, width)}
        assert_equal(reference.predict(feeds), runtime.predict(feeds))


@pytest.mark.parametrize(
    ("op", "axes", "out"), [("ReduceMax", "{3}", 3), ("ReduceMin", "{1,2}", 2), ("ReduceMax", "{2,3}", 2)]
)
def test_maxima_over_axes_are_pools(onnx_file, tmp_path, op, axes, out):
    count, few = axes.count(",") + 1, ",".join("abcd"[:out])
    model = onnx_file(
        f"""agraph (float[N,5,6,7] x) => (float[{few}] y, float[a,b,c,d] z) <int64[{count}] axes = {axes}> {{
            y = {op} <keepdims = 0> (x, axes) z = {op} (x, axes)
        }}"""
    )
    assert_equal(*both(model, {"x": weights(2, 5, 6, 7)}, tmp_path))


def test_nodes_that_have_pytorchs_words_are_named_too(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[1,5] x, float[1,5] z) => (float[1,5] y) {
            [same] e = Equal (x, z) [number] c = Cast <to = 1> (e) [sum] y = Add (c, x)
        }"""
    )
    made = convert(model, tmp_path / "m.param")
    assert {(f["code"], f["node"], f["op"]) for f in made["findings"] if f["severity"] == "error"} == {
        ("DK526", "same", "Equal"),
        ("DK526", "number", "Cast"),
    }


def test_bounds_at_infinity_bound_nothing(onnx_file, tmp_path):
    model = onnx_file(
        "agraph (float[N,5] x) => (float[N,5] y) { a = Max (low, x) b = Min (a, high) y = Relu (b) }",
        low=np.float32(-np.inf),
        high=np.array([np.inf], np.float32),
    )
    assert_equal(*both(model, {"x": weights(2, 5)}, tmp_path))


def test_half_precision_is_that_of_the_files(onnx_file, tmp_path):
    full = onnx_file(NET, w=weights(5, 3, 3, 3))
    half = onnx_file(NET.replace("float[", "float16["), "half.onnx", w=weights(5, 3, 3, 3).astype(np.float16))
    feeds = {"image": weights(2, 3, 8, 8)}
    wanted, found = both(full, feeds, tmp_path, options={"weights": "fp16"})
    assert describe(tmp_path / "m.param")["precision"] == "fp16"
    assert 0 < np.abs(wanted["maps"] - found["maps"]).max() < 1e-2
    small = (tmp_path / "m.bin").stat().st_size
    wanted, found = both(half, {"image": feeds["image"].astype(np.float16)}, tmp_path, precision="fp16")
    assert (tmp_path / "m.bin").stat().st_size == small
    assert_equal(wanted, found, 1e-2, 1e-2)


def test_every_node_that_is_left_untranslated_is_named(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[1,4,8] x) => (float[1,4,8] y) {
            [first] a = Hardmax (x) [ok] r = Relu (a) [second] y = Hardmax (r)
        }"""
    )
    made = convert(model, tmp_path / "m.param")
    assert [(f["code"], f["severity"], f["node"], f["op"]) for f in made["findings"]] == [
        ("DK526", "error", "first", "Hardmax"),
        ("DK526", "error", "second", "Hardmax"),
    ]
    assert not (tmp_path / "m.param").exists()


@pytest.mark.parametrize(
    ("text", "tensor", "words"),
    [
        ("(float[2] x, float s) => (float[2] y) { y = Mul (x, s) }", "s", "is a scalar"),
        ("(bool[2] x) => (bool[2] y) { y = Not (x) }", "x", "of which ncnn has no tensors"),
        ("(float[2,5] x) => (int64[2,1] y) { y = ArgMax <axis = 1> (x) }", "y", "ncnn gives float32"),
        ("(float[1,2,3,4,5,2] x) => (float[1,2,3,4,5,2] y) { y = Relu (x) }", "x", "has 6 axes"),
        ("(float[1,2,3,4,5] x) => (float[1,2,5,4,3] y) { y = Transpose <perm=[0,1,4,3,2]> (x) }", "x", "has 5 axes"),
    ],
)
def test_interfaces_that_ncnn_cannot_have_are_refused(onnx_file, tmp_path, text, tensor, words):
    found = convert(onnx_file(f"agraph {text}"), tmp_path / "m.param")["findings"]
    told = [f["message"] for f in found if f["severity"] == "error" and f["code"] == "DK529" and f["tensor"] == tensor]
    assert len(told) == 1
    assert words in told[0]
    assert not (tmp_path / "m.param").exists()


def test_sizes_that_the_model_does_not_run_with_are_named(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[1,W] x) => (float[1,5] y) <int64[2] shape = {1, 5}> { y = Reshape (x, shape) }"""
    )
    with pytest.raises(VendorError, match="does not translate") as caught:
        convert(model, tmp_path / "m.param", dims={"W": [6, 7]})
    assert "[1,6]f32 and [1,7]f32" in " ".join(caught.value.context)
    assert "--dim" in caught.value.hint


def test_bytes_are_the_same_in_another_process_and_folder(net, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        worker = Worker("ncnn")
        arguments = {"model": str(net), "output": str(tmp_path / name / "m.param")}
        worker.call(
            "deploykit.converters.ncnn.convert:convert_job",
            {**arguments, "options": {}, "dims": {}, "profiles": {}, "precision": "fp32"},
        )
        worker.close()
    for file in sorted((tmp_path / "first").iterdir()):
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes()


def test_files_under_another_name_keep_their_interface(net, tmp_path):
    made = convert(net, tmp_path / "m.param")
    for suffix in (".param", ".bin", ".param.deploykit.json"):
        (tmp_path / f"m{suffix}").rename(tmp_path / f"other{suffix}")
    assert describe(tmp_path / "other.param")["inputs"] == made["inputs"]


def test_without_its_manifest_a_network_takes_single_samples_under_its_own_names(net, tmp_path):
    convert(net, tmp_path / "m.param")
    (tmp_path / "m.param.deploykit.json").unlink()
    facts = describe(tmp_path / "m.param")
    assert (facts["precision"], facts["batch_axis"]) == ("unknown", {"image": None, "logits": None, "maps": None})
    found = open_runtime(tmp_path / "m.param").predict({"image": weights(1, 3, 8, 8)[0]})
    assert found["logits"].shape == (5,)


def test_inspect_tells_layers_sizes_and_the_batch(net, tmp_path):
    convert(net, tmp_path / "m.param")
    facts = describe(tmp_path / "m.param")
    assert facts["dynamic_dims"] == ["batch"]
    assert facts["operators"]["Convolution"] == 1
    assert facts["batch_axis"] == {"image": 0, "logits": 0, "maps": 0}
    assert facts["size_bytes"] == sum((tmp_path / name).stat().st_size for name in ("m.param", "m.bin"))


def test_damaged_files_are_one_clear_error(net, tmp_path):
    convert(net, tmp_path / "m.param")
    text, bits = (tmp_path / "m.param").read_text(), (tmp_path / "m.bin").read_bytes()
    lines = text.splitlines()
    damaged = {
        "foreign": ("hello\n" * 9, bits),
        "cut off": ("\n".join(lines[:4]), bits),
        "unknown layer": (text.replace("Convolution ", "Convolutron "), bits),
        "no such blob": (text.replace(" image ", " picture ", 1), bits),
        "counts": (text.replace(f"\n{lines[1]}\n", "\n4000000000 4000000000\n"), bits),
        "weights cut off": (text, bits[: len(bits) // 2]),
        "no weights": (text, b""),
    }
    for what, (network, held) in damaged.items():
        (tmp_path / "bad.param").write_text(network)
        (tmp_path / "bad.bin").write_bytes(held)
        with pytest.raises(InvalidFileError) as caught:
            describe(tmp_path / "bad.param")
        assert caught.value.code == "DK528", what
    (tmp_path / "bad.bin").unlink()
    (tmp_path / "bad.param").write_text(text)
    with pytest.raises(ModelError, match=r"bad\.bin is missing"):
        describe(tmp_path / "bad.param")


def test_the_manifest_says_which_blob_is_what(net, tmp_path):
    convert(net, tmp_path / "m.param")
    claim = read_manifest(tmp_path / "m.param")
    assert claim.interface["inputs"] == {"image": {"blob": "image", "batch": 0}}
    assert claim.interface["outputs"]["logits"] == {"blob": "logits", "batch": 0}


def test_inputs_of_different_numbers_of_samples_are_refused(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[N,3,4,4] a, float[N,3,4,4] b) => (float[N,3,4,4] y) {
            r = MaxPool <kernel_shape = [1,1]> (a) y = Add (r, b)
        }"""
    )
    convert(model, tmp_path / "m.param")
    with pytest.raises(DataError, match="different numbers of samples"):
        open_runtime(tmp_path / "m.param").predict({"a": weights(2, 3, 4, 4), "b": weights(3, 3, 4, 4)})


def test_options_and_devices_that_are_not_there_are_refused(net, tmp_path):
    with pytest.raises(UsageError) as caught:
        convert(net, tmp_path / "m.param", {"weights": "int8"})
    assert caught.value.code == "DK527"
    convert(net, tmp_path / "m.param")
    with pytest.raises(UnavailableError):
        open_runtime(tmp_path / "m.param", RuntimeOptions(device="gpu"))
