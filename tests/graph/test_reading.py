"""Damaged and hostile model files: every refusal says what is wrong, and where."""

import resource
import time
import zlib

import numpy as np
import onnx
import onnx.parser
import pytest

from deploykit import graph
from deploykit.errors import DeploykitError, ModelError

TEXT = """
    <ir_version: 9, opset_import: ["" : 17]>
    agraph (float[n,4] x) => (float[n,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
        h = MatMul(x, w)
        y = Relu(h)
    }"""


def written(tmp_path, text_or_model, name="m.onnx"):
    model = onnx.parser.parse_model(text_or_model) if isinstance(text_or_model, str) else text_or_model
    path = tmp_path / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def refused(path):
    with pytest.raises(ModelError) as caught:
        graph.load(path)
    with pytest.raises(ModelError) as again:
        graph.check_file(path)
    assert again.value.message == caught.value.message
    assert path.name in caught.value.message
    return caught.value


def test_truncation_is_noticed_at_every_length(tmp_path):
    content = onnx.parser.parse_model(TEXT).SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(1, len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(DeploykitError):
            graph.load(path)


def test_truncation_in_the_weights_is_called_damage(tmp_path):
    model = onnx.parser.parse_model(TEXT)
    content = model.SerializeToString()
    error = refused(written(tmp_path, content[: content.index(b"w") + 10]))
    assert error.code == "DK111"
    assert "cut off" in error.message


@pytest.mark.parametrize("seed", range(5))
def test_flipped_bytes_never_raise_anything_else(tmp_path, seed):
    content = bytearray(onnx.parser.parse_model(TEXT).SerializeToString())
    rng = np.random.default_rng(seed)
    path = tmp_path / "m.onnx"
    for _ in range(200):
        damaged = bytearray(content)
        for at in rng.integers(0, len(content), 3):
            damaged[at] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            graph.describe(path)
        except DeploykitError as problem:
            assert problem.message  # noqa: PT017 - refusal is allowed, another exception is not


@pytest.mark.parametrize(
    ("message", "missing"),
    [(onnx.ModelProto(ir_version=8), "graph"), (onnx.ModelProto(graph=onnx.GraphProto(name="g")), "IR version")],
)
def test_fragments_are_not_models(tmp_path, message, missing):
    error = refused(written(tmp_path, message))
    assert error.code == "DK112"
    assert missing in error.message


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def test_millions_of_empty_nodes_are_not_unpacked(tmp_path):
    nodes = b"\x0a\x00" * 5_000_000
    content = onnx.ModelProto(ir_version=8).SerializeToString() + b"\x3a" + varint(len(nodes)) + nodes
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = refused(written(tmp_path, content))
    assert error.code == "DK119"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB; unpacked it takes gigabytes


def test_deep_nesting_is_refused_quickly(tmp_path):
    inner = onnx.GraphProto(name="g")
    content = inner.SerializeToString()
    for _ in range(5000):
        for tag in (b"\x32", b"\x2a", b"\x0a"):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            content = tag + varint(len(content)) + content
    model = onnx.ModelProto(ir_version=8).SerializeToString()
    started = time.monotonic()
    error = refused(written(tmp_path, model + b"\x3a" + varint(len(content)) + content))
    assert error.code == "DK111"
    assert time.monotonic() - started < 2


def test_a_compressed_model_is_not_taken_for_damage(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(zlib.compress(onnx.parser.parse_model(TEXT).SerializeToString()))
    with pytest.raises(ModelError):
        graph.load(path)


def test_unsorted_nodes_are_sorted(tmp_path):
    model = onnx.parser.parse_model(TEXT)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    loaded = graph.load(written(tmp_path, model))
    assert [node.op_type for node in loaded.graph] == ["MatMul", "Relu"]


def test_dimensions_of_zero_stay_zero(tmp_path):
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[1,0,4] x) => (float[1,0,4] y) { y = Relu(x) }'
    model = graph.load(written(tmp_path, text))
    graph.save(model, tmp_path / "out.onnx")
    assert graph.describe(tmp_path / "out.onnx").inputs[0].shape == (1, 0, 4)


def test_paths_with_spaces_scripts_and_length(tmp_path):
    folder = tmp_path / "dir with space" / "模型 модель"
    folder.mkdir(parents=True)
    for name in ("größe.onnx", "x" * 245 + ".onnx"):
        path = written(folder, TEXT, name)
        graph.save(graph.load(path), path)
        assert graph.describe(path).opset == 17
        assert sorted(p.name for p in folder.iterdir()) == [name]
        path.unlink()


@pytest.mark.serial
def test_check_file_is_quick(tmp_path):
    rng = np.random.default_rng(0)
    weights = [onnx.numpy_helper.from_array(rng.random((1 << 20), np.float32), f"w{i}") for i in range(25)]
    value = onnx.helper.make_tensor_value_info("w0", 1, [1 << 20])
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [value], weights))
    path = written(tmp_path, model)
    started = time.monotonic()
    graph.check_file(path)
    assert time.monotonic() - started < 1


def test_a_model_without_an_output_is_refused(tmp_path):
    model = onnx.parser.parse_model(TEXT)
    del model.graph.output[:]
    assert "has no output" in refused(written(tmp_path, model)).message


def test_a_type_that_does_not_exist_is_named(tmp_path):
    model = onnx.parser.parse_model(TEXT)
    model.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(ModelError) as caught:
        graph.load(written(tmp_path, model))
    error = caught.value
    assert error.code == "DK112"
    assert "99 is not a valid DataType" in error.message
