"""Tensors of hostile and damaged files: external data stays in its folder, declared sizes are checked first."""

import os
import resource
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from deploykit import graph
from deploykit.errors import ModelError
from deploykit.reference import Reference

SECRET = np.arange(16, dtype=np.float32)


def model_with_external(location, *, shape=(4, 4), offset=None, length=None, dtype=onnx.TensorProto.FLOAT):
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        agraph (float[2,4] x) => (float[2,4] y) { y = MatMul(x, w) }""")
    tensor = model.graph.initializer.add(name="w", data_type=dtype, dims=shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return model


def refused(path):
    with pytest.raises(ModelError) as caught:
        graph.check_file(path)
    with pytest.raises(ModelError):
        graph.load(path)
    assert "'w'" in caught.value.message or "node 'c'" in caught.value.message
    assert path.name in caught.value.message
    assert caught.value.tensor == "w"
    return caught.value


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "sub/../../secret.bin",
        "..\\secret.bin",
        "sub\\..\\..\\secret.bin",
        "{absolute}",
        "C:\\secret.bin",
        "C:secret.bin",
        "\\\\host\\share\\secret.bin",
        "",
        " ",
        "w\0.bin",
    ],
)
def test_locations_outside_are_refused(tmp_path, location):
    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    path = folder / "m.onnx"
    location = location.format(absolute=tmp_path / "secret.bin")
    path.write_bytes(model_with_external(location).SerializeToString())
    error = refused(path)
    assert error.code == "DK113"
    assert repr(location) in error.message


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_links_leading_out_are_refused(tmp_path, kind):
    secret = tmp_path / "outside" / "secret.bin"
    secret.parent.mkdir()
    secret.write_bytes(SECRET.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    if kind == "file":
        (folder / "w.bin").symlink_to(secret)
    else:
        (folder / "sub").symlink_to(secret.parent)
    path = folder / "m.onnx"
    location = "w.bin" if kind == "file" else "sub/secret.bin"
    path.write_bytes(model_with_external(location).SerializeToString())
    error = refused(path)
    assert error.code == "DK113"
    assert "link" in error.message


@pytest.mark.parametrize("place", ["constant", "subgraph", "function", "sparse"])
def test_no_place_in_the_model_escapes_the_check(tmp_path, place):
    hostile = model_with_external("../secret.bin").graph.initializer[0]
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        agraph (float[2,4] x, bool c) => (float[2,4] y) {
            k = Constant <value = float[1] {1}> ()
            i = If (c) <
                then_branch = a () => (float[2,4] t) { t = Identity(x) },
                else_branch = b () => (float[2,4] e) { e = Identity(x) }>
            f = own.f(i)
            y = Add(f, k)
        }
        <domain: "own", opset_import: ["" : 17]>
        f (a) => (b) { q = Constant <value = float[1] {1}> ()  b = Add(a, q) }""")
    model.graph.node[0].name = model.functions[0].node[0].name = "c"
    if place == "constant":
        model.graph.node[0].attribute[0].t.CopyFrom(hostile)
    elif place == "subgraph":
        model.graph.node[1].attribute[0].g.initializer.add().CopyFrom(hostile)
    elif place == "function":
        model.functions[0].node[0].attribute[0].t.CopyFrom(hostile)
    else:
        sparse = model.graph.sparse_initializer.add(dims=[16])
        sparse.values.CopyFrom(hostile)
        sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.arange(16)))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    error = refused(path)
    assert error.code == "DK113"


def test_plain_nested_and_linked_data_is_read(tmp_path):
    weights = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "данные.bin").write_bytes(bytes(8) + weights.tobytes())
    (tmp_path / "link.bin").symlink_to("sub/данные.bin")
    for location in ("sub/данные.bin", "./link.bin"):
        path = tmp_path / "m.onnx"
        path.write_bytes(model_with_external(location, offset=8, length=64).SerializeToString())
        np.testing.assert_array_equal(graph.load(path).graph.initializers["w"].const_value.numpy(), weights)


def test_hugging_face_cache_layout_is_accepted_and_runs(tmp_path):
    weights = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    root = tmp_path / "models--org--name"
    snapshot = root / "snapshots" / "abc123" / "onnx"
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "blobs" / "11").write_bytes(model_with_external("model.onnx_data", length=64).SerializeToString())
    (root / "blobs" / "22").write_bytes(weights.tobytes())
    (snapshot / "model.onnx").symlink_to("../../../blobs/11")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/22")
    path = snapshot / "model.onnx"
    model = graph.load(path)
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), weights)
    out = tmp_path / "saved.onnx"
    graph.save(model, out)
    x = np.ones((2, 4), np.float32)
    for file in (path, out):
        np.testing.assert_allclose(Reference(file).predict({"x": x})["y"], x @ weights, rtol=1e-6)
    assert graph.describe(path).files == ("model.onnx", "model.onnx_data")


def test_hard_links_of_deduplicated_caches_are_accepted(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "w.bin").write_bytes(SECRET.tobytes())
    folder = tmp_path / "model"
    folder.mkdir()
    os.link(tmp_path / "cache" / "w.bin", folder / "w.bin")
    path = folder / "m.onnx"
    path.write_bytes(model_with_external("w.bin").SerializeToString())
    assert graph.load(path).graph.initializers["w"].const_value.numpy().sum() == SECRET.sum()


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        ({"offset": 60}, "DK115"),
        ({"length": 4096}, "DK115"),
        ({"length": 32}, "DK115"),
        ({"offset": -4}, "DK115"),
        ({"offset": "0x10"}, "DK115"),
        ({"offset": "1_0"}, "DK115"),
        ({"offset": 2**70}, "DK115"),
        ({"length": 10**19}, "DK115"),
        ({"shape": (1 << 20, 1 << 12)}, "DK115"),
        ({"shape": (1 << 40, 1 << 40)}, "DK116"),
        ({"shape": (-1, 4)}, "DK116"),
        ({"dtype": 0}, "DK116"),
        ({"dtype": 99}, "DK116"),
        ({"dtype": onnx.TensorProto.STRING}, "DK115"),
    ],
)
def test_declarations_beyond_the_file_are_refused(tmp_path, declared, code):
    (tmp_path / "w.bin").write_bytes(SECRET.tobytes())
    path = tmp_path / "m.onnx"
    path.write_bytes(model_with_external("w.bin", **declared).SerializeToString())
    assert refused(path).code == code


def test_missing_data_file_is_named(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(model_with_external("weights.bin").SerializeToString())
    error = refused(path)
    assert error.code == "DK114"
    assert "'weights.bin'" in error.message


def test_huge_declarations_take_no_memory(tmp_path):
    """A terabyte declared over a terabyte of hole in a sparse file may load, and stays unread."""
    size = 1 << 40
    data = tmp_path / "w.bin"
    try:
        with data.open("wb") as stream:
            stream.truncate(size)
    except OSError:
        pytest.skip("this file system has no sparse files of that size")
    path = tmp_path / "m.onnx"
    path.write_bytes(model_with_external("w.bin", shape=(size // 16, 4)).SerializeToString())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph.load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


@pytest.mark.parametrize(
    "damage",
    [
        {"raw_data": bytes(60)},
        {"raw_data": bytes(68)},
        {"raw_data": b"", "dims": [1 << 30, 1 << 10]},
        {"float_data": [0.0] * 15},
        {"float_data": []},
        {"raw_data": bytes(64), "dims": [4, -4]},
        {"raw_data": bytes(64), "data_type": 77},
        {"string_data": [b"a"], "data_type": onnx.TensorProto.STRING},
    ],
)
def test_inline_data_against_the_shape_is_refused(tmp_path, damage):
    model = model_with_external("x")
    tensor = model.graph.initializer[0]
    for field in ("data_location", "external_data"):
        tensor.ClearField(field)
    for field, value in damage.items():
        if isinstance(value, list):
            del getattr(tensor, field)[:]
            getattr(tensor, field).extend(value)
        else:
            setattr(tensor, field, value)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert refused(path).code == "DK116"


@pytest.mark.parametrize(
    "dtype", [d for d in onnx.TensorProto.DataType.values() if d not in (0, onnx.TensorProto.STRING)]
)
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("shape", [(3,), (0, 3), ()])
def test_every_dtype_and_representation_is_accepted(tmp_path, dtype, raw, shape):
    name = onnx.TensorProto.DataType.Name(dtype)
    array = np.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(dtype))
    if raw:
        tensor = onnx.numpy_helper.from_array(array, "w")
    else:
        try:
            tensor = onnx.helper.make_tensor("w", dtype, shape, array.flatten())
        except (TypeError, ValueError, KeyError) as problem:
            pytest.skip(f"onnx itself makes no typed {name} tensor: {problem}")
    assert tensor.data_type == dtype
    value = onnx.helper.make_tensor_value_info("w", dtype, shape)
    model = onnx.helper.make_model(
        onnx.helper.make_graph([], "g", [], [value], [tensor]), opset_imports=[onnx.helper.make_opsetid("", 23)]
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    loaded = graph.load(path).graph.initializers["w"].const_value
    np.testing.assert_array_equal(loaded.numpy().astype(np.complex128), array.astype(np.complex128))


@pytest.mark.parametrize("name", ["extdata_dotdot", "extdata_nested_dotdot"])
def test_published_cases_are_refused(shared: Path, name):
    error = refused(shared / "cases" / f"{name}.onnx")
    assert error.code == "DK113"
    assert "secret_outside.bin" in error.message


@pytest.mark.parametrize(
    ("text", "kind", "size"),
    [
        ("(float[1000000,1000000] x) => (float[n] y)", "input 'x'", "3.6 TiB"),
        ("(float[9223372036854775807] x) => (float[n] y)", "input 'x'", "33,554,432.0 TiB"),
        ("(float[n] x) => (float[b,2000000,1000000] y)", "output 'y'", "7.3 TiB"),
    ],
)
def test_inputs_and_outputs_that_no_memory_holds_are_refused_with_their_size(tmp_path, text, kind, size):
    path = tmp_path / "huge.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g {text} {{ y = Relu(x) }}'), path)
    with pytest.raises(ModelError) as caught:
        graph.check_file(path)
    assert caught.value.code == "DK116"
    assert f"{kind} would take {size}" in caught.value.message


def test_large_inputs_and_those_of_unknown_type_are_none_of_it(tmp_path):
    text = "(float[b,1000000,10000] x, string[10] s, int4[3] q) => (float[n] y)"
    path = tmp_path / "large.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text} {{ y = Relu(x) }}'), path)
    graph.check_file(path)
