import dataclasses
import json
import zipfile

import numpy as np
import onnx
import pytest
from onnx import parser

from deploykit import check, graph
from deploykit.errors import OutputError, UsageError
from deploykit.isolation import workers
from deploykit.opsupport import checker, saving, unsupported
from deploykit.opsupport.saving import check_folder, safe_name

MODEL = """<ir_version: 10, opset_import: ["": 20]>
agraph (float[n,3,3] file, float[n,3,3] x) => (float[n] a, float[n] b, float[n,3,3] c) {
    a = Det (file)
    t = Sub (x, file)
    b = Det (t)
    c = Relu (t)
}"""
HOSTILE = ["../../escape/é ü", "sub", "/layer/CON", "relu"]


@pytest.fixture
def model(tmp_path):
    made = parser.parse_model(MODEL)
    for node, name in zip(made.graph.node, HOSTILE, strict=True):
        node.name = name
    onnx.save(made, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture(scope="module")
def openvino():
    pytest.importorskip("openvino")
    with workers():
        yield "openvino"


def index_of(folder):
    return json.loads((folder / "nodes.json").read_text())["nodes"]


def test_each_refused_node_is_a_model_that_is_refused_for_the_same_reason(model, tmp_path, openvino):
    report = check(model, targets=[openvino], save_nodes=tmp_path / "nodes")
    saved = index_of(tmp_path / "nodes")
    assert report.metrics["saved_nodes"] == saved
    assert [entry["node"] for entry in saved] == [HOSTILE[0], HOSTILE[2]]
    refusals = {f.node: f.message for f in report.findings if f.code == "DK201"}
    for entry in saved:
        file = tmp_path / "nodes" / entry["files"][0]
        assert file.parent == tmp_path / "nodes" / "openvino"
        onnx.checker.check_model(file)
        assert entry["alone"] is True
        assert entry["command"] == f"deploykit check {entry['files'][0]} --target openvino"
        again = check(file, targets=[openvino])
        (finding,) = [f for f in again.findings if f.code == "DK201"]
        assert (finding.node, finding.message) == (entry["node"], refusals[entry["node"]])
    (told,) = [f for f in report.findings if f.code == "DK229"]
    assert "2 refused nodes written to" in told.message


def test_inputs_and_outputs_belong_to_the_written_model(model, tmp_path, openvino):
    check(model, targets=[openvino], dims={"n": [3, 3]}, save_nodes=tmp_path / "nodes")
    for entry in index_of(tmp_path / "nodes"):
        file, inputs, outputs = (tmp_path / "nodes" / name for name in entry["files"])
        (spec,), (made,) = graph.interface(graph.load(file))
        assert spec.shape == ("n", 3, 3)
        array = np.load(inputs)[spec.name]
        assert (array.dtype.name, array.shape) == (spec.dtype, (3, 3, 3))
        np.testing.assert_allclose(np.load(outputs)[made.name], np.linalg.det(array), rtol=1e-4)


def test_the_readme_names_node_reason_and_command(model, tmp_path, openvino):
    check(model, targets=[openvino], save_nodes=tmp_path / "nodes")
    text = (tmp_path / "nodes" / "README.txt").read_text()
    assert "node '/layer/CON' (Det)" in text
    assert "openvino refuses it: OpenVINO has no conversion for the operator Det" in text
    assert "deploykit check openvino/" in text


def test_nothing_leaves_the_folder(model, tmp_path, openvino):
    before = set(tmp_path.rglob("*"))
    check(model, targets=[openvino], save_nodes=tmp_path / "nodes")
    made = set(tmp_path.rglob("*")) - before
    assert all(path.is_relative_to(tmp_path / "nodes") for path in made)
    assert not [path for path in made if path.name.endswith((".tmp", ".part"))]


def test_a_folder_with_something_in_it_needs_force_and_strangers_are_never_lost(model, tmp_path, openvino):
    folder = tmp_path / "nodes"
    folder.mkdir()
    check(model, targets=[openvino], save_nodes=folder)  # empty is as good as new
    with pytest.raises(OutputError, match="exists") as caught:
        check(model, targets=[openvino], save_nodes=folder)
    assert caught.value.code == "DK120"
    first = index_of(folder)
    check(model, targets=[openvino], save_nodes=folder, force=True)
    assert index_of(folder) == first
    (folder / "openvino" / "mine.txt").write_text("precious")
    with pytest.raises(OutputError, match=r"holds 'openvino/mine.txt'"):
        check(model, targets=[openvino], save_nodes=folder, force=True)
    assert (folder / "openvino" / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"schema": "deploykit.nodes/1", "nodes": 3}'])
def test_an_index_of_somebody_else_protects_nothing(content, tmp_path):
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "nodes.json").write_text(content)
    with pytest.raises(OutputError, match=r"holds 'nodes\.json'"):
        check_folder(tmp_path / "nodes", force=True)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "nodes").write_text("x")
    with pytest.raises(OutputError, match="not a folder"):
        check_folder(tmp_path / "nodes", force=True)


def test_nothing_refused_is_nothing_written(model, tmp_path):
    report = check(model, targets=["onnxruntime"], save_nodes=tmp_path / "nodes")
    assert not (tmp_path / "nodes").exists()
    assert report.metrics["saved_nodes"] == []
    assert any(f.code == "DK229" and "no node is refused" in f.message for f in report.findings)


def test_a_refusal_that_depends_on_the_surroundings_says_so(model, tmp_path, openvino):
    (summary,) = checker.check_model(model, [openvino])
    around = unsupported("the rank of its input is lost before it", remedy="r", source="a test")
    nodes = [dataclasses.replace(node, verdict=around) for node in summary.nodes if node.node == "relu"]
    claimed = dataclasses.replace(summary, nodes=tuple(nodes))
    (entry,), _ = saving.save_nodes(model, [claimed], [openvino], tmp_path / "nodes")
    assert (entry.node, entry.alone) == ("relu", False)
    assert entry.command == f"deploykit check {model} --target openvino"
    assert "Alone it is not refused: what is around it decides" in (tmp_path / "nodes" / "README.txt").read_text()


def test_a_node_that_cannot_be_taken_out_is_named(tmp_path):
    text = """<ir_version: 10, opset_import: ["": 20, "my.ops": 3]>
    agraph (float[2,3] x) => (float[2,3] y) { [odd] t = my.ops.Odd (x) [after] y = my.ops.Even (t) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    report = check(tmp_path / "m.onnx", targets=["onnxruntime"], save_nodes=tmp_path / "nodes")
    (missing,) = [f for f in report.findings if f.code == "DK230"]
    assert (missing.node, missing.severity) == ("after", "warning")
    assert [entry["node"] for entry in report.metrics["saved_nodes"]] == ["odd"]
    assert "my.ops" in index_of(tmp_path / "nodes")[0]["reference"]


def test_what_is_not_written_to_a_file_cannot_be_saved_from_it(model, tmp_path):
    with pytest.raises(UsageError, match="--save-nodes needs the rewritten model"):
        check(model, targets=["openvino"], fix=True, dry_run=True, save_nodes=tmp_path / "nodes")


def test_file_names_are_safe_and_each_its_own():
    taken = set()
    names = [
        "conv",
        "Conv",
        "conv",
        "../../x",
        "/x",
        "CON",
        "nul.a",
        "é",
        "",
        " ",
        ".",
        "-rf",
        "a" * 300,
        "b\0c",
        "ok-1.2_3",
    ]
    made = [safe_name(name, taken) for name in names]
    assert len({name.lower() for name in made}) == len(made)
    assert (made[0], made[-1]) == ("conv", "ok-1.2_3")
    for name in made:
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
        assert name[0] not in ".-_"
        assert len(name) < 120


def test_the_same_model_gives_the_same_bytes(model, tmp_path, openvino):
    for folder in ("one", "two"):
        check(model, targets=[openvino], save_nodes=tmp_path / folder)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert any(zipfile.is_zipfile(tmp_path / "one" / file) for file in files)


def test_an_interrupt_leaves_nothing(model, tmp_path, openvino, monkeypatch):
    summaries = checker.check_model(model, [openvino])

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(saving, "_describe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saving.save_nodes(model, summaries, [openvino], tmp_path / "nodes")
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx"}
