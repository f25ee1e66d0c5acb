import shutil

import numpy as np
import onnx
import pytest

pytest.importorskip("tvm")

import deploykit
from deploykit.converters.tvm import trailer
from deploykit.converters.tvm.convert import convert_job
from deploykit.converters.tvm.inspect import describe
from deploykit.converters.tvm.taps import open_taps
from deploykit.errors import DataError, InvalidFileError, UnavailableError, UsageError
from deploykit.isolation import run_isolated, workers
from deploykit.reference import Reference
from deploykit.runtime import RuntimeOptions, open_runtime

NET = """agraph (float[batch,3,9,8] image) => (float[batch,5] logits, float[batch,5,9,8] again) {
    [conv] c = Conv <pads = [1,1,1,1]> (image, w)
    [relu] r = Relu (c)
    [mean] m = GlobalAveragePool (r)
    [flat] logits = Flatten (m)
    [same] again = Abs (r)
}"""


@pytest.fixture(scope="module", autouse=True)
def _workers():
    with workers():
        yield


def weights(*shape, seed=5):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.fixture
def net(onnx_file):
    return onnx_file(NET, w=weights(5, 3, 3, 3))


def convert(model, output, options=None, dims=None, profiles=None, precision="fp32"):
    return convert_job(str(model), str(output), options or {}, dims or {}, profiles or {}, precision)


def both(model, feeds, tmp_path, **arguments):
    """What the reference gives, and TVM."""
    made = convert(model, tmp_path / "m.so", **arguments)
    assert not [finding for finding in made["findings"] if finding["severity"] == "error"], made["findings"]
    runtime = open_runtime(tmp_path / "m.so")
    found = runtime.predict(feeds)
    runtime.close()
    return Reference(model).predict(feeds), found


def assert_equal(wanted, found, rtol=1e-5, atol=1e-5):
    assert list(wanted) == list(found)
    for name, array in wanted.items():
        assert (array.dtype, array.shape) == (found[name].dtype, found[name].shape)
        np.testing.assert_allclose(found[name], array, rtol, atol, err_msg=name)


def test_names_order_types_and_symbols_are_those_of_the_onnx_file(net, tmp_path):
    convert(net, tmp_path / "m.so")
    runtime = open_runtime(tmp_path / "m.so")
    assert [(s.name, s.dtype, s.shape) for s in runtime.inputs] == [("image", "float32", ("batch", 3, 9, 8))]
    assert [spec.name for spec in runtime.outputs] == ["logits", "again"]
    for batch in (1, 4):
        feeds = {"image": weights(batch, 3, 9, 8, seed=batch)}
        assert_equal(Reference(net).predict(feeds), runtime.predict(feeds))
    with pytest.raises(DataError, match=r"takes float32 \[batch, 3, 9, 8\]") as refused:
        runtime.predict({"image": weights(1, 3, 8, 8)})
    assert refused.value.code == "DK548"


def test_a_dimension_with_one_size_is_fixed(net, tmp_path):
    made = convert(net, tmp_path / "m.so", dims={"batch": [2, 2]})
    assert made["inputs"][0]["shape"] == [2, 3, 9, 8]


def test_two_processes_write_the_same_bytes(net, tmp_path):
    texts = []
    for place in "ab":
        (tmp_path / place).mkdir()
        output = tmp_path / place / "m.so"
        arguments = {"model": str(net), "output": str(output), "options": {}, "dims": {}, "profiles": {}}
        run_isolated(f"tvm-{place}", "deploykit.converters.tvm.convert:convert_job", {**arguments, "precision": "fp32"})
        texts.append(output.read_bytes())
    assert texts[0] == texts[1]
    assert str(tmp_path).encode() not in texts[0]


def test_a_library_is_loaded_with_its_own_manifest_only_and_inspected_without(net, tmp_path):
    convert(net, tmp_path / "m.so")
    shutil.copy(tmp_path / "m.so", tmp_path / "alone.so")
    for named in (False, True):
        if named:  # by the manifest of other bytes
            shutil.copy(tmp_path / "m.so.deploykit.json", tmp_path / "alone.so.deploykit.json")
        with (tmp_path / "alone.so").open("r+b") as stream:
            stream.seek(200)
            stream.write(b"\0\1")
        with pytest.raises(UsageError, match="machine code") as refused:
            open_runtime(tmp_path / "alone.so")
        assert refused.value.code == "DK580"
        assert describe(tmp_path / "alone.so")["inputs"][0]["name"] == "image"


def test_what_is_no_library_or_damaged_is_refused(net, tmp_path):
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(InvalidFileError, match="no shared library"):
        describe(tmp_path / "text.so")
    convert(net, tmp_path / "m.so")
    content = (tmp_path / "m.so").read_bytes()
    (tmp_path / "m.so").write_bytes(content[:-24] + b"\xff" * 8 + content[-16:])
    with pytest.raises(InvalidFileError, match="damaged"):
        trailer.read(tmp_path / "m.so")


def test_inspect_tells_functions_and_the_processor(net, tmp_path):
    convert(net, tmp_path / "m.so", {"target": "llvm -mcpu=x86-64-v3"})
    facts = describe(tmp_path / "m.so")
    assert facts["built_for"]["cpu"] == "x86-64-v3"
    assert "avx2" in facts["built_for"]["features"]
    assert facts["dynamic_dims"] == ["batch"]
    assert sum(facts["operators"].values()) == facts["nodes"] > 0


def test_a_library_for_another_processor_is_not_loaded(net, tmp_path, monkeypatch):
    convert(net, tmp_path / "m.so")
    from deploykit.converters.tvm import processor

    monkeypatch.setattr(processor, "features", lambda target: [] if "mcpu" in target else ["sse2"])
    with pytest.raises(UnavailableError, match="lacks") as refused:
        open_runtime(tmp_path / "m.so")
    assert refused.value.code == "DK591"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "cuda"}, "not llvm"),
        ({"target": "llvm -mcpu=abacus"}, "knows no processor"),
        ({"target": "llvm -O3"}, "none of -mcpu"),
        ({"fuse": "maybe"}, "neither true nor false"),
    ],
)
def test_a_bad_option_is_refused(net, tmp_path, options, said):
    with pytest.raises(UsageError, match=said) as refused:
        convert(net, tmp_path / "m.so", options)
    assert refused.value.code == "DK527"


def test_without_a_linker_it_says_what_to_install(net, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UnavailableError, match="no-such-compiler") as refused:
        convert(net, tmp_path / "m.so")
    assert refused.value.code == "DK581"


def test_every_operator_that_the_importer_lacks_is_named(onnx_file, tmp_path):
    model = onnx_file("""agraph (float[2,4] x) => (float[2,4] y) {
        [one] a = Celu (x)
        [two] b = Relu (a)
        [three] y = Celu <alpha = 2.0> (b)
    }""")
    made = convert(model, tmp_path / "m.so")
    assert [(f["code"], f["node"], f["op"]) for f in made["findings"]] == [
        ("DK526", "one", "Celu"),
        ("DK526", "three", "Celu"),
    ]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_is_written_out(onnx_file, tmp_path, direction):
    count = 2 if direction == "bidirectional" else 1
    model = onnx_file(
        f"""agraph (float[6,batch,3] x) =>
            (float[6,{count},batch,4] y, float[{count},batch,4] h, float[{count},batch,4] c) {{
            [lstm] y, h, c = LSTM <hidden_size = 4, direction = "{direction}"> (x, w, r, b)
        }}""",
        w=weights(count, 16, 3),
        r=weights(count, 16, 4),
        b=weights(count, 32),
    )
    assert_equal(*both(model, {"x": weights(6, 2, 3, seed=9)}, tmp_path))


def test_negative_indices_count_from_the_end(onnx_file, tmp_path):
    model = onnx_file("agraph (int64[3] i) => (float[3,2] y) { [take] y = Gather <axis = 0> (t, i) }", t=weights(5, 2))
    assert_equal(*both(model, {"i": np.array([-1, 0, -5])}, tmp_path))


def test_numbers_without_axes_and_integers_keep_their_types(onnx_file, tmp_path):
    model = onnx_file("""agraph (float[2,3] x, int64 n, bool[2,1] keep) => (float[2,3] y, int64 m, bool[2,1] not_) {
        [cast] f = Cast <to = 1> (n)
        [mul] y = Mul (x, f)
        [add] m = Add (n, n)
        [flip] not_ = Not (keep)
    }""")
    feeds = {"x": weights(2, 3), "n": np.array(7), "keep": np.array([[True], [False]])}
    assert_equal(*both(model, feeds, tmp_path))


def test_int8_is_computed_as_written(int8_conv, tmp_path):
    feeds = {"x": weights(2, 4, 8, 8)}
    wanted, found = both(int8_conv, feeds, tmp_path, precision="int8")
    # A sum in another order may round to the neighbouring step of 0.03.
    assert np.abs(wanted["y"] - found["y"]).max() <= 0.03 + 1e-6


def test_inner_tensors_are_read_and_replaced(net, tmp_path):
    convert(net, tmp_path / "m.so", {"fuse": "false"})
    feeds = {"image": weights(2, 3, 9, 8)}
    taps = open_taps(tmp_path / "m.so", RuntimeOptions())
    assert {"c", "r"} <= set(taps.find(["c", "r", "nothing"]))
    found = taps.read(feeds, ["c", "r", "logits"])
    np.testing.assert_array_equal(found["r"], np.maximum(found["c"], 0))
    np.testing.assert_allclose(found["logits"], found["r"].mean((2, 3)), 1e-5, 1e-5)
    ones = np.ones_like(found["r"])
    np.testing.assert_allclose(taps.read(feeds, ["logits"], {"r": ones})["logits"], 1.0)


def test_locate_names_the_node_that_differs(net, tmp_path):
    convert(net, tmp_path / "m.so", {"fuse": "false"})
    other = onnx.load(net)
    other.graph.node.insert(1, onnx.helper.make_node("Clip", ["c", "low", "high"], ["c2"], "clipped"))
    other.graph.node[2].input[0] = "c2"
    for name, value in (("low", -9.0), ("high", 1.0)):
        other.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(value), name))
    onnx.save(other, tmp_path / "other.onnx")
    report = deploykit.validate(tmp_path / "other.onnx", tmp_path / "m.so", locate=True, samples=2)
    assert report.failed
    assert report.metrics["first_divergence"]["tensor"] == "r"


def test_per_operator_times_name_nodes(net, tmp_path):
    convert(net, tmp_path / "m.so", {"fuse": "false"})
    kernels = open_runtime(tmp_path / "m.so").kernels({"image": weights(1, 3, 9, 8)})
    assert "conv" in {node for kernel in kernels for node in kernel.nodes}
    assert all(kernel.microseconds > 0 for kernel in kernels)
