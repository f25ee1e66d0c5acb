"""Profiles: shares, modules and roll-ups, on made kernels and on real engines."""

from __future__ import annotations

import onnx
import pytest

import deploykit
from deploykit.benchmark.profiling import SEVERAL, UNTOLD, _median, about, module_of, summary
from deploykit.graph.scopes import scope_of_name
from deploykit.runtime import Kernel


def kernel(name, microseconds=1.0, nodes=(), op="Conv"):
    return Kernel(name, op, "fp32", nodes, 0, microseconds)


def found(kernels, **more):
    rows = [{"name": k.name, "op": k.op, "precision": k.precision, "module": module_of(k, {}),
             "microseconds": k.microseconds} for k in kernels]  # fmt: skip
    return {"kernels": rows, "why": None, "unprofiled_ms": 0.01, "calls": 5, "waited_share": 0.0, **more}


def test_shares_sum_to_one_and_are_related_to_a_plain_call():
    profile = summary(found([kernel("a", 2.0), kernel("b", 6.0, op="Gemm"), kernel("loop", None, op="Loop")]))
    assert [(row["name"], row["share"]) for row in profile["kernels"]] == [("b", 0.75), ("a", 0.25), ("loop", None)]
    for key in ("by_op", "by_precision", "by_module"):
        assert sum(row["share"] for row in profile[key]) == pytest.approx(1)
    assert profile["ratio"] == pytest.approx(0.8)
    assert about("x", "t", found([]), profile) == []


def test_a_profile_far_from_the_plain_call_and_none_at_all_are_told():
    far = found([kernel("a", 50.0)])
    (said,) = about("x", "t", far, summary(far))
    assert (said.code, said.severity) == ("DK411", "note")
    assert "x5.00" in said.message
    nothing = {"kernels": None, "why": "the engine tells no profile"}
    assert summary(nothing) is None
    (said,) = about("x", "t", nothing, None)
    assert (said.code, said.message) == ("DK410", "x: no time by operator: the engine tells no profile")


def test_a_profile_of_a_busy_machine_is_told():
    busy = found([kernel("a", 10.0)], waited_share=0.9)
    (said,) = about("x", "t", busy, summary(busy))
    assert said.code == "DK411"
    assert "waited for a processor for 90%" in said.message


def test_times_are_undisturbed_and_of_one_run_where_kernels_differ():
    runs = [[kernel("a", time), kernel("b", 2 * time)] for time in (1.0, 2.0, 90.0, 2.0, 90.0)]
    assert [k.microseconds for k in _median(runs)] == [pytest.approx(1.5), pytest.approx(3.0)]
    assert [k.name for k in _median([[kernel("a", 9.0)], [kernel("b", 1.0), kernel("c", 2.0)]])] == ["b", "c"]
    assert [k.microseconds for k in _median([[kernel("token_1", 9.0)], [kernel("token_2", 2.0)]])] == [2.0]


@pytest.mark.parametrize(
    ("made", "scopes", "module"),
    [
        (kernel("k", nodes=("n1",)), {"n1": "encoder.0 (Block)"}, "encoder.0 (Block)"),
        (kernel("k", nodes=("n1", "n2")), {"n1": "encoder.0.a (Block)", "n2": "encoder.0.b"}, "encoder.0"),
        (kernel("k", nodes=("n1", "n2")), {"n1": "encoder (Block)", "n2": "decoder (Block)"}, SEVERAL),
        (kernel("k", nodes=("/encoder/layers.0/MatMul_1",)), {}, "encoder.layers.0"),
        (kernel("/encoder/Add"), {}, "encoder"),
        (kernel("/encoder/Add"), {"other": "known"}, UNTOLD),
        (kernel("k", nodes=("node_linear",)), {}, UNTOLD),
    ],
)
def test_a_kernel_belongs_to_what_its_nodes_have_in_common(made, scopes, module):
    assert module_of(made, scopes) == module


def test_a_name_alone_tells_a_module_only_where_it_is_a_path():
    assert scope_of_name("/features/features.0/Conv_1") == "features.0"
    assert scope_of_name("conv1") is None
    assert scope_of_name("/Conv") is None
    assert scope_of_name("/a/Conv_reorder") is None


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Two products, in modules that torch's exporter would record."""
    nodes = "h = MatMul (x, w) \n r = Relu (h) \n y = MatMul (r, w)"
    text = f"agraph (float[64,512] x) => (float[64,512] y) <float[512,512] w> {{ {nodes} }}"
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
    weights = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [512, 512], [0.01] * 512 * 512)
    del made.graph.initializer[:]
    made.graph.initializer.append(weights)
    for node, name, scope in zip(made.graph.node, ("m1", "relu", "m2"), ("first", "first", "second"), strict=True):
        node.name = name
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", scope, name]))
        classes = ["Net", "torch.nn.Linear", "op"]
        node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=str(classes))
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(made, path)
    return path


@pytest.mark.serial
def test_per_op_of_two_engines_names_the_modules_of_the_program(model, tmp_path):
    openvino = pytest.importorskip("openvino")
    other = tmp_path / "m.xml"
    openvino.save_model(openvino.convert_model(str(model)), other, compress_to_fp16=False)
    report = deploykit.bench(model, other, seconds=0.2, threads=1, per_op=True)
    assert report.exit_code == 0
    for row in report.metrics["rows"]:
        profile = row["profile"]
        assert sum(one["share"] for one in profile["kernels"] if one["share"] is not None) == pytest.approx(1)
        modules = {one["module"]: one["share"] for one in profile["by_module"]}
        products = {one["module"] for one in profile["kernels"] if one["macs"]}
        assert products == {"first (Linear)", "second (Linear)"}, row["label"]
        # Equal products take about as long: neither has nearly all of the time.
        assert min(modules["first (Linear)"], modules["second (Linear)"]) > 0.1
        assert profile["sum_ms"] > 0
        assert profile["unprofiled_ms"] > 0
        # The profile came last, and has not moved what was measured before it.
        assert row["rss_mb"]["after"] <= row["rss_mb"]["peak"]
    assert {one["precision"] for one in report.metrics["rows"][0]["profile"]["by_precision"]} == {"fp32"}


@pytest.mark.serial
def test_without_per_op_there_is_no_profile(model):
    (row,) = deploykit.bench(model, seconds=0.1).metrics["rows"]
    assert row["profile"] is None
