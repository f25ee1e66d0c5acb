"""Cases of OpenVINO, Core ML and TensorRT (kinds 6, 7, 8) as `check` and `convert` meet them.

What belongs to simplify and quantize is tested beside those; a refusal is exit 1 (the command line's contract).
"""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import deploykit
from deploykit.errors import ExitCode
from deploykit.isolation import workers

SEQUENCES = {"split_seq": "SplitToSequence", "seq_at": "SequenceAt", "cat_seq": "ConcatFromSequence"}
HEAD = '<ir_version: 9, opset_import: ["" : 17]>\n'


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.fixture
def case(shared, tmp_path):
    """A case's model in a folder of its own, so that everything written beside it is seen."""

    def copied(name):
        folder = tmp_path / "case"
        folder.mkdir()
        return shutil.copy(shared / "cases" / f"{name}.onnx", folder / f"{name}.onnx")

    return copied


def refused(report, target):
    found = (f for f in report.findings if f.target == target and f.code == "DK201")
    return {finding.node: finding for finding in found}


def verdicts(report):
    return {f"{row['name']}@{row['version']}": row["verdict"] for row in report.metrics["targets"]}


@pytest.mark.parametrize("target", ["openvino", "coreml", "tensorrt", "tensorrt-rtx", "ncnn"])
def test_sequences_are_refused_by_node(case, target):
    """6a."""
    report = deploykit.check(case("sequence_ops"), targets=[target])
    assert report.exit_code == ExitCode.GATE_FAILED
    found = refused(report, target)
    assert found.keys() & SEQUENCES.keys()
    for name in found.keys() & SEQUENCES.keys():
        assert found[name].op == SEQUENCES[name]
        assert found[name].severity == "note" or found[name].hint


@pytest.mark.parametrize(
    ("name", "target", "suffix", "nodes"),
    [
        ("sequence_ops", "openvino", ".xml", {"split_seq", "cat_seq"}),
        ("sequence_ops", "coreml", ".mlpackage", {"split_seq", "cat_seq"}),
        ("sequence_ops", "tensorrt-rtx", ".engine", {"split_seq"}),
    ],
)
def test_conversion_names_the_nodes_and_leaves_nothing(case, tmp_path, name, target, suffix, nodes):
    """6a: before the target's compiler starts."""
    report = deploykit.convert(case(name), to=target, output=tmp_path / f"out{suffix}")
    assert report.exit_code == ExitCode.GATE_FAILED
    assert nodes <= {finding.node for finding in report.findings if finding.severity == "error"}
    assert [path.name for path in tmp_path.iterdir()] == ["case"]
    assert len(list((tmp_path / "case").iterdir())) == 1


def test_rank_six_inside_a_graph_is_converted(case, tmp_path):
    """7a: Core ML stops at rank 5, and a window partition needs no more."""
    path, package = case("rank6_window"), tmp_path / "out.mlpackage"
    assert deploykit.check(path, targets=["coreml"]).exit_code == ExitCode.OK
    report = deploykit.convert(path, to="coreml", output=package)
    assert report.exit_code == ExitCode.OK
    assert all(row["exact"] for row in report.metrics["parity"]["parent"]["outputs"])


def test_dimension_without_bounds_is_told_with_the_option_that_gives_them(case):
    """8b: following the hint leaves nothing to say."""
    path = case("dynamic_batch_reshape")
    (found,) = deploykit.check(path, targets=["tensorrt-rtx"]).findings
    assert (found.code, found.tensor) == ("DK520", "x")
    assert "--dim batch=1..64" in found.hint
    assert deploykit.check(path, targets=["tensorrt-rtx"], dims=["batch=1..64"]).findings == []


def test_support_of_an_operator_depends_on_the_version(tmp_path):
    """8e: TensorRT parses NonMaxSuppression since 8.5; TensorRT for RTX takes it and builds no engine of it."""
    text = """g (float[1,10,4] boxes, float[1,1,10] scores) => (int64[n,3] kept)
        <int64[1] most = {3}, float[1] overlap = {0.5}, float[1] least = {0.1}>
        { [nms] kept = NonMaxSuppression (boxes, scores, most, overlap, least) }"""
    onnx.save(parser.parse_model(HEAD + text), tmp_path / "nms.onnx")
    report = deploykit.check(tmp_path / "nms.onnx", targets=["tensorrt@8.5", "tensorrt", "tensorrt-rtx"])
    assert verdicts(report) == {
        "tensorrt@8.5": "runs whole",
        "tensorrt@11.1": "runs whole",
        "tensorrt-rtx@None": "does not run",
    }
    assert refused(report, "tensorrt-rtx")["nms"].hint


def test_zero_points_are_what_tensorrt_takes(case, shared, tmp_path):
    """8a: and an asymmetric model of another tool is refused by the tensor's node, with the way out."""
    data, out = shared / "cases" / "softmax_symmetric_trt.in0.npz", tmp_path / "out.onnx"
    path = case("softmax_symmetric_trt")
    deploykit.quantize(path, output=out, precision="int8", target="tensorrt", calib=str(data))
    points = [
        numpy_helper.to_array(tensor) for tensor in onnx.load(out).graph.initializer if "zero_point" in tensor.name
    ]
    assert points
    assert all(point.dtype == np.int8 and not point.any() for point in points)
    assert deploykit.check(out, targets=["tensorrt"]).exit_code == ExitCode.OK
    text = """g (float[2,4] x) => (float[2,4] y) <float s = {0.1}, uint8 z = {128}>
        { [quantize] q = QuantizeLinear (x, s, z) [back] y = DequantizeLinear (q, s, z) }"""
    onnx.save(parser.parse_model(HEAD + text), tmp_path / "asymmetric.onnx")
    report = deploykit.check(tmp_path / "asymmetric.onnx", targets=["tensorrt"])
    assert report.exit_code == ExitCode.GATE_FAILED
    assert "--fix" in refused(report, "tensorrt")["quantize"].hint


def test_random_graph_is_converted_and_named_and_not_compared(case, tmp_path):
    """3d."""
    report = deploykit.convert(case("random_not_folded"), to="openvino", output=tmp_path / "out.xml")
    assert report.exit_code == ExitCode.OK
    (told,) = [finding for finding in report.findings if finding.severity == "warning"]
    assert "noise (RandomNormal)" in told.message


def test_large_int32_values_survive_core_ml(tmp_path):
    """7c: 70000 does not fit in 16 bits, nor does a row number of 40000 rows."""
    rows = np.stack([np.full(40_000, 70_000), np.arange(40_000)], axis=1).astype(np.int32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["rows", "ids"], ["y"], name="gather")],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT32, (3,))],
        [helper.make_tensor_value_info("y", TensorProto.INT32, (3, 2))],
        [numpy_helper.from_array(rows, "rows")],
    )
    path, data = tmp_path / "gather.onnx", tmp_path / "ids.npz"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    np.savez(data, ids=np.array([[0, 39_999, 32_768]], np.int32))
    report = deploykit.convert(path, to="coreml", output=tmp_path / "out.mlpackage", data=str(data))
    assert report.exit_code == ExitCode.OK
    assert deploykit.validate(path, tmp_path / "out.mlpackage", data=str(data)).exit_code == ExitCode.OK
