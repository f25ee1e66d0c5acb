"""check with several sources: what tables say beside the engines, what is left to another engine, who is believed."""

import dataclasses

import onnx
import pytest
from onnx import parser

import deploykit
from deploykit import lazy
from deploykit.errors import ExitCode, VendorError
from deploykit.isolation import workers
from deploykit.opsupport import engines, sources, unknown, unsupported
from deploykit.opsupport.sources import Shelf

HEADER = '<ir_version: 9, opset_import: ["": 17, "my.ops": 1]>\n'
# The NNAPI provider has no Erf: the model falls into two pieces around it.
AROUND = (
    HEADER
    + """g (float[1,8] x) => (float[1,8] y) <float[8,8] w = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,
    1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}> {
    [first] a = Relu (x)
    [work] b = MatMul (a, w)
    [odd] c = Erf (b)
    [last] d = Relu (c)
    [end] y = Add (d, b)
}"""
)
PLAIN = HEADER + "g (float[2] x) => (float[2] y) { [one] a = Relu (x) [two] y = Abs (a) }"
NOWHERE = HEADER + "g (float[2] x) => (float[2] y) { [odd] y = my.ops.Odd (x) }"


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as running:
        yield running


@pytest.fixture
def model(tmp_path):
    def write(text):
        onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
        return tmp_path / "model.onnx"

    return write


def told(report, *codes):
    return [(f.code, f.severity, f.target, f.node) for f in report.findings if f.code in codes]


def test_provider_leaves_what_it_lacks_and_runs_the_rest_in_pieces(model):
    report = deploykit.check(model(AROUND), targets=["onnxruntime@nnapi"])
    (row,) = report.metrics["targets"]
    assert (row["verdict"], row["partitions"], row["unsupported"]) == ("runs in 2 partitions", 2, 1)
    assert row["macs_share"] == 1
    assert report.exit_code == ExitCode.OK
    assert told(report, "DK201", "DK212", "DK218") == [
        ("DK212", "warning", "onnxruntime", None),
        ("DK218", "note", "onnxruntime", "odd"),
    ]
    report.tighten()
    assert report.exit_code == ExitCode.GATE_FAILED


def test_model_of_parts_that_nothing_joins_runs_whole(model):
    text = HEADER + "g (float[2] x, float[2] z) => (float[2] y, float[2] w) { y = Relu (x) w = Abs (z) }"
    targets = ["onnxruntime", "onnxruntime@cuda", "openvino", "coreml", "tensorrt"]
    report = deploykit.check(model(text), targets=targets)
    assert [(row["verdict"], row["partitions"]) for row in report.metrics["targets"]] == [("runs whole", 1)] * 5


def test_dimension_that_its_bounds_fix_is_fixed_for_tables(model):
    path = model(PLAIN.replace("float[2]", "float[N,4]"))
    (open_,) = deploykit.check(path, targets=["onnxruntime@qnn"]).metrics["targets"]
    assert (open_["verdict"], open_["unsupported"]) == ("runs elsewhere", 2)
    (fixed,) = deploykit.check(path, targets=["onnxruntime@qnn"], dims=["N=8"]).metrics["targets"]
    assert (fixed["verdict"], fixed["unsupported"]) == ("runs whole", 0)


@pytest.mark.parametrize(("ir_version", "verdicts"), [(10, ["runs elsewhere", "runs whole"]), (3, ["runs whole"] * 2)])
def test_default_that_a_caller_may_replace_is_no_constant_for_onnx_runtime(model, ir_version, verdicts):
    """TensorRT's parser builds it in; before IR version 4 initializers had to be inputs, and none was replaceable."""
    head = HEADER.replace("ir_version: 9", f"ir_version: {ir_version}")
    text = head + "g (float[4] x, int64[1] s) => (float[4] y) <int64[1] s = {4}> { y = Reshape (x, s) }"
    report = deploykit.check(model(text), targets=["onnxruntime@qnn", "tensorrt"])
    assert [row["verdict"] for row in report.metrics["targets"]] == verdicts


def test_what_neither_engine_takes_stops_the_model(model):
    report = deploykit.check(model(NOWHERE), targets=["onnxruntime@nnapi", "onnxruntime-web@webgpu"])
    assert [row["verdict"] for row in report.metrics["targets"]] == ["does not run", "does not run"]
    assert told(report, "DK201") == [
        ("DK201", "error", "onnxruntime", "odd"),
        ("DK201", "error", "onnxruntime-web", "odd"),
    ]


def test_target_asked_about_in_several_versions_is_named_with_each(model):
    report = deploykit.check(model(AROUND), targets=["onnxruntime", "onnxruntime@nnapi", "openvino"])
    assert {f.target for f in report.findings} == {"onnxruntime@nnapi"}
    assert [row["version"] for row in report.metrics["targets"]] == ["cpu", "nnapi", None]


def test_providers_of_one_runtime_ask_its_engine_once(model, monkeypatch):
    asked = []
    ask = engines.run_isolated
    monkeypatch.setattr(engines, "run_isolated", lambda name, *a, **k: asked.append(name) or ask(name, *a, **k))
    deploykit.check(model(PLAIN), targets=["onnxruntime", "onnxruntime@cuda", "onnxruntime@dml", "onnxruntime@qnn"])
    assert asked == ["onnxruntime"]


@dataclasses.dataclass
class Fake:
    """An operator table that says one thing of all nodes."""

    says: object
    source: str = "a made-up table"
    falls_back: bool = False

    def judge(self, node):
        return self.says


@pytest.fixture
def table(monkeypatch):
    """Makes every target's table say one thing, and leaves measured tables away."""

    def put(verdict):
        monkeypatch.setattr(sources, "table_for", lambda target, version: (Fake(verdict), None))
        monkeypatch.setattr(sources, "load_measured", lambda engine: None)

    return put


def test_dispute_shows_both_sides_and_the_engine_is_believed(model, table):
    table(unsupported("nobody wrote it down", remedy="-"))
    report = deploykit.check(model(PLAIN), targets=["onnxruntime"])
    assert report.metrics["targets"][0]["verdict"] == "runs whole"
    assert told(report, "DK217") == [
        ("DK217", "note", "onnxruntime", "one"),
        ("DK217", "note", "onnxruntime", "two"),
    ]
    assert "a made-up table that it does not run (nobody wrote it down)" in report.findings[0].message


def test_node_that_no_source_knows_is_counted_apart_and_fails_only_when_strict(model, table):
    table(unknown("never heard of it", remedy="try it"))
    report = deploykit.check(model(PLAIN), targets=["tensorrt"])
    (row,) = report.metrics["targets"]
    assert (row["unknown"], row["supported"], row["unsupported"], row["verdict"]) == (2, 0, 0, "unknown")
    assert told(report, "DK210") == [("DK210", "warning", "tensorrt", "one")]
    assert report.exit_code == ExitCode.OK
    report.tighten()
    assert report.exit_code == ExitCode.GATE_FAILED


def test_table_speaks_for_what_the_engine_did_not_get_to(model, table):
    table(unsupported("it is not listed", remedy="-"))
    text = HEADER + "g (float[2] x) => (float[2] y) { [odd] a = my.ops.Odd (x) [behind] y = Relu (a) }"
    report = deploykit.check(model(text), targets=["tensorrt-rtx"])
    assert report.metrics["targets"][0]["unknown"] == 0
    (behind,) = [f for f in report.findings if f.node == "behind"]
    assert "it is not listed (says a made-up table)" in behind.message


def test_engine_that_is_not_here_is_told_with_what_brings_it(model, table, monkeypatch):
    table(unsupported("it is not listed", remedy="-"))
    monkeypatch.setattr(lazy, "installed", lambda package: package != "openvino")
    report = deploykit.check(model(PLAIN), targets=["openvino"])
    assert report.exit_code == ExitCode.GATE_FAILED
    (said,) = [f for f in report.findings if f.code == "DK208"]
    assert said.severity == "note"
    assert said.hint == "pip install 'deploykit[openvino]'"
    assert "a made-up table speaks in its place" in said.message


def test_engine_that_crashes_is_a_vendor_failure_where_it_is_the_only_one(model, monkeypatch):
    def crash(name, *args, **kwargs):
        raise VendorError(f"{name} crashed with SIGSEGV", code="DK511")

    monkeypatch.setattr(engines, "run_isolated", crash)
    with pytest.raises(VendorError):
        deploykit.check(model(PLAIN), targets=["openvino"])
    report = deploykit.check(model(PLAIN), targets=["openvino", "tensorrt"])
    assert [row["verdict"] for row in report.metrics["targets"]] == ["unknown", "runs whole"]
    assert told(report, "DK208") == [("DK208", "warning", "openvino", None)]


def test_all_with_a_release_of_its_own_name_asks_both(model):
    report = deploykit.check(model(NOWHERE), targets=["all", "tensorrt@8.5"])
    versions = [row["version"] for row in report.metrics["targets"] if row["name"] == "tensorrt"]
    assert versions == ["8.5", "11.1"]
    assert report.exit_code == ExitCode.GATE_FAILED


def test_target_named_twice_is_asked_about_once(model):
    report = deploykit.check(model(PLAIN), targets=["onnxruntime@cpu", "onnxruntime", "openvino", "openvino"])
    assert [row["name"] for row in report.metrics["targets"]] == ["onnxruntime", "openvino"]


def test_every_other_engine_of_a_target_leaves_nodes_or_stands_alone():
    from deploykit.target import get_target

    target = get_target("onnxruntime")
    assert not Shelf(target, "cpu").falls_back
    assert all(Shelf(target, version).falls_back for version in target.versions[1:])
    assert not Shelf(get_target("onnxruntime-web"), "webgl").falls_back
