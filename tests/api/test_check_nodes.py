"""check on nodes one by one: --probe, --save-nodes and module scopes, from the command line to the report."""

import json

import onnx
import pytest
from onnx import parser

from deploykit import check
from deploykit.errors import UsageError
from deploykit.isolation import workers

MODEL = """<ir_version: 10, opset_import: ["": 20]>
agraph (float[n,3,3] x) => (float[n] a, float[n,3,3] b) { [det] a = Det (x) [relu] b = Relu (x) }"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers():
        yield


@pytest.fixture
def model(tmp_path):
    made = parser.parse_model(MODEL)
    for node, (names, classes) in zip(
        made.graph.node,
        [
            ("['', 'head', 'head.det', 'det']", "['m.Net', 'm.Head', 'm.Volume', 'aten.det']"),
            ("['', 'r']", "['m.Net', 'x']"),
        ],
        strict=True,
    ):
        for key, value in (("name_scopes", names), ("class_hierarchy", classes)):
            node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    onnx.save(made, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_a_finding_names_the_module_that_the_node_came_from(model):
    pytest.importorskip("openvino")
    (refused,) = [f for f in check(model, targets=["openvino"]).findings if f.code == "DK201"]
    assert (refused.node, refused.scope) == ("det", "head.det (Volume)")


def test_the_command_line_shows_it_and_takes_the_options(model, deploykit_cli, tmp_path):
    pytest.importorskip("openvino")
    done = deploykit_cli("check", model, "--target", "openvino", "--probe", "--save-nodes", "nodes", cwd=tmp_path)
    assert done.code == 1
    assert "node 'det' (Det) in head.det (Volume)" in done.stdout
    assert "1 refused node written to nodes" in done.stdout
    (entry,) = json.loads((tmp_path / "nodes" / "nodes.json").read_text())["nodes"]
    assert (entry["scope"], entry["alone"]) == ("head.det (Volume)", True)
    assert "in head.det (Volume)" in (tmp_path / "nodes" / "README.txt").read_text()
    again = deploykit_cli("check", model, "--target", "openvino", "--save-nodes", "nodes", "--json", cwd=tmp_path)
    assert (again.code, again.json["findings"][0]["code"]) == (2, "DK120")


def test_a_saved_node_keeps_its_module(model, tmp_path):
    pytest.importorskip("openvino")
    check(model, targets=["openvino"], save_nodes=tmp_path / "nodes")
    report = check(tmp_path / "nodes" / "openvino" / "det.onnx", targets=["openvino"])
    assert [f.scope for f in report.findings if f.code == "DK201"] == ["head.det (Volume)"]


def test_probe_says_where_there_is_nothing_to_probe_with(model):
    report = check(model, targets=["tvm"], probe=True)
    row = report.metrics["targets"][0]
    told = [f for f in report.findings if f.code == "DK228"]
    assert bool(told) is bool(row["conditional"] + row["unknown"])
    for finding in told:
        assert "deploykit has no engine of" in finding.message


def test_probe_settles_what_only_a_table_says(tmp_path):
    """Every node gets a verdict when each unknown one is tried: none is left unknown that the engine takes."""
    pytest.importorskip("coremltools")
    text = """<ir_version: 10, opset_import: ["": 20]>
    agraph (bool c, float[2,3] x) => (float[2,3] y) {
        [choose] y = If (c) <
            then_branch = yes () => (float[2,3] u) { [inner] u = Relu (x) },
            else_branch = no () => (float[2,3] v) { [other] v = Neg (x) }
        >
    }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    before = check(tmp_path / "m.onnx", targets=["coreml"]).metrics["targets"][0]
    after = check(tmp_path / "m.onnx", targets=["coreml"], probe=True).metrics["targets"][0]
    assert after["unknown"] == 0
    assert after["supported"] == 3
    assert after["verdict"] == "runs whole"
    if before["unknown"]:
        assert "probed on Core ML with coremltools" in after["source"]


def test_what_is_not_written_cannot_be_probed(model):
    with pytest.raises(UsageError, match="--probe needs the rewritten model"):
        check(model, targets=["openvino"], fix=True, dry_run=True, probe=True)


def test_after_a_fix_it_is_the_result_that_is_probed_and_saved(model, tmp_path):
    pytest.importorskip("openvino")
    text = """<ir_version: 10, opset_import: ["": 20]>
    agraph (float[n,3,3] x) => (float[n] a, float[n,3,3] b) { [det] a = Det (x) [act] b = HardSwish (x) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    report = check(
        tmp_path / "m.onnx",
        targets=["openvino"],
        fix=True,
        output=tmp_path / "fixed.onnx",
        probe=True,
        save_nodes=tmp_path / "nodes",
    )
    assert [entry["node"] for entry in report.metrics["saved_nodes"]] == ["det"]


def test_one_path_cannot_be_the_model_and_the_folder_of_nodes(model, tmp_path):
    both = tmp_path / "both.onnx"
    with pytest.raises(UsageError, match="both name") as caught:
        check(model, targets=["tensorrt"], fix=True, output=both, save_nodes=both)
    assert caught.value.code == "DK235"
