"""Saving: same model, same bytes, same outputs; external data written anew beside the model, under its own name."""

import errno
import os
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploykit import graph
from deploykit.graph import writing
from deploykit.reference import Reference

UNARY = ["Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Identity"]
BINARY = ["Add", "Mul", "Sub", "Max"]


@st.composite
def models(draw):
    """Chains and diamonds of element-wise nodes over weights of several shapes, some named, some outside order."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values, nodes, weights = ["x"], [], []
    for at in range(draw(st.integers(1, 8))):
        name = f"v{at}"
        left = draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["unary", "binary", "weight", "matmul", "constant"]))
        if kind == "unary":
            nodes.append(onnx.helper.make_node(draw(st.sampled_from(UNARY)), [left], [name]))
        elif kind == "binary":
            right = draw(st.sampled_from(values))
            nodes.append(onnx.helper.make_node(draw(st.sampled_from(BINARY)), [left, right], [name], name=name))
        elif kind == "constant":
            value = onnx.numpy_helper.from_array(rng.normal(size=(1, 4)).astype(np.float32))
            nodes.append(onnx.helper.make_node("Constant", [], [f"c{at}"], value=value))
            nodes.append(onnx.helper.make_node("Add", [left, f"c{at}"], [name]))
        else:
            shape = draw(st.sampled_from([(4,), (1, 4), (3, 4)])) if kind == "weight" else (4, 4)
            weights.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), f"w{at}"))
            op = "Add" if kind == "weight" else "MatMul"
            nodes.append(onnx.helper.make_node(op, [left, f"w{at}"], [name]))
        values.append(name)
    nodes = draw(st.permutations(nodes))
    spec = [onnx.helper.make_tensor_value_info(name, 1, ["n", 4]) for name in ("x", values[-1])]
    body = onnx.helper.make_graph(nodes, "g", spec[:1], spec[1:], weights)
    return onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=models(), external=st.booleans())
def test_load_and_save_keep_outputs_and_bytes(tmp_path_factory, model, external):
    folder = tmp_path_factory.mktemp("property")
    source, first, second = (folder / f"{name}.onnx" for name in ("source", "first", "second"))
    if external:
        onnx.save(model, source, save_as_external_data=True, location="w.data", size_threshold=0)
    else:
        onnx.save(model, source)
    graph.save(graph.load(source), first)
    graph.save(graph.load(first), second)
    assert first.read_bytes() == second.read_bytes()
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    results = [next(iter(Reference(path).predict({"x": x}).values())) for path in (source, first)]
    np.testing.assert_array_equal(*results)
    shutil.rmtree(folder)


def big_model(folder, name="m.onnx"):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(64, 64)).astype(np.float32)
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[2,64] x) => (float[2,64] y) <float[1] s = {2}> {
            h = MatMul(x, w)  i = MatMul(h, v)  y = Mul(i, s)
        }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(w.T.copy(), "v"))
    onnx.save(model, folder / name, save_as_external_data=True, location="other.bin", size_threshold=0)
    return folder / name, w


@pytest.fixture
def small_limits(monkeypatch):
    """What happens above gigabytes, at kilobytes."""
    monkeypatch.setattr(writing, "KEEP_EXTERNAL", 1000)


def test_small_models_hold_their_weights(tmp_path):
    path, w = big_model(tmp_path)
    out = tmp_path / "out" / "n.onnx"
    out.parent.mkdir()
    assert graph.save(graph.load(path), out) == ("n.onnx",)
    assert [p.name for p in out.parent.iterdir()] == ["n.onnx"]
    shutil.rmtree(out.parent / "x", ignore_errors=True)
    (tmp_path / "other.bin").unlink()
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(Reference(out).predict({"x": x})["y"], x @ w @ w.T * 2, rtol=1e-4)


@pytest.mark.usefixtures("small_limits")
def test_large_models_get_one_data_file_of_their_own_name(tmp_path):
    path, w = big_model(tmp_path)
    out = tmp_path / "out" / "n.onnx"
    out.parent.mkdir()
    assert graph.save(graph.load(path), out) == ("n.onnx", "n.onnx.data")
    described = graph.describe(out)
    assert described.files == ("n.onnx", "n.onnx.data")
    assert described.size_bytes == sum(p.stat().st_size for p in out.parent.iterdir())
    moved = tmp_path / "moved"
    out.parent.rename(moved)
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(Reference(moved / "n.onnx").predict({"x": x})["y"], x @ w @ w.T * 2, rtol=1e-4)


@pytest.mark.usefixtures("small_limits")
def test_the_data_file_does_not_grow(tmp_path):
    path, _ = big_model(tmp_path)
    contents = set()
    for _ in range(3):
        graph.save(graph.load(path), path)
        contents.add((path.read_bytes(), (tmp_path / "m.onnx.data").read_bytes()))
    assert len(contents) == 1
    assert (tmp_path / "m.onnx.data").stat().st_size == 2 * 64 * 64 * 4
    offsets = [t.external_data for t in onnx.load(path, load_external_data=False).graph.initializer if t.external_data]
    assert all(int(entry.value) % 4096 == 0 for data in offsets for entry in data if entry.key == "offset")


@pytest.mark.usefixtures("small_limits")
def test_a_model_stays_usable_after_it_was_saved_over_its_own_data(tmp_path):
    path, w = big_model(tmp_path)
    graph.save(graph.load(path), path)
    model = graph.load(path)  # maps m.onnx.data, unread so far
    model.graph.initializers["w"].const_value = ir.tensor(np.zeros((64, 64), np.float32), name="w")
    first = model.graph.initializers.pop("w")
    model.graph.initializers["w"] = first  # the order of the data changes
    graph.save(model, path)
    np.testing.assert_array_equal(model.graph.initializers["v"].const_value.numpy(), w.T)
    np.testing.assert_array_equal(graph.load(path).graph.initializers["v"].const_value.numpy(), w.T)


def test_saving_leaves_the_model_as_it_was(tmp_path):
    path, _ = big_model(tmp_path)
    model = graph.load(path)
    tensors = [value.const_value for value in model.graph.initializers.values()]
    graph.save(model, tmp_path / "out.onnx")
    assert all(a is b.const_value for a, b in zip(tensors, model.graph.initializers.values(), strict=True))


def test_published_case_of_growing_data(shared: Path, tmp_path):
    source = shared / "cases" / "extdata_append.onnx"
    out = tmp_path / "m.onnx"
    sizes = {(graph.save(graph.load(source), out), out.stat().st_size) for _ in range(3)}
    assert len(sizes) == 1
    feeds = dict(np.load(source.with_name("extdata_append.in0.npz")))
    expected = np.load(source.with_name("extdata_append.out0.npz"))
    np.testing.assert_allclose(Reference(out).predict(feeds)["y"], expected["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("external", [True, False])
def test_a_full_disk_leaves_the_old_files(tmp_path, monkeypatch, external):
    path, _ = big_model(tmp_path)
    if external:
        monkeypatch.setattr(writing, "KEEP_EXTERNAL", 1000)
    out = tmp_path / "out.onnx"
    model = graph.load(path)
    graph.save(model, out)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            graph.save(model, out)
        except OSError as problem:
            code = 0 if problem.errno == errno.EFBIG else 2
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_functions_and_metadata_survive(tmp_path):
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17, "own" : 1], producer_name: "test">
        g (float[2] x) => (float[2] y) { y = own.twice(x) }
        <domain: "own", opset_import: ["" : 17]> twice (a) => (b) { b = Add(a, a) }""")
    model.metadata_props.add(key="k", value="v")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    graph.save(graph.load(path), path)
    saved = onnx.load(path)
    assert (saved.producer_name, saved.metadata_props[0].value) == ("test", "v")
    assert [(f.domain, f.name, [n.op_type for n in f.node]) for f in saved.functions] == [("own", "twice", ["Add"])]
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(Reference(path).predict({"x": x})["y"], x + x)
