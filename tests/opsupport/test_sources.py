"""Who is believed about a node: fakes of the engine and the tables say what they like."""

import dataclasses

import onnx_ir as ir
import pytest
from onnx import parser

from deploykit import lazy
from deploykit.opsupport import Status, conditional, sources, supported, unknown, unsupported
from deploykit.opsupport.facts import facts_of
from deploykit.opsupport.sources import Shelf, settle
from deploykit.target import get_target

YES, NO = supported("engine"), unsupported("no such kernel", remedy="use another", source="engine")
SILENT = unknown("not reached", remedy="solve the others first", source="engine")
TABLE_YES, TABLE_NO = supported("table"), unsupported("not listed", remedy="use another", source="table")
MAYBE = conditional("if it is small", remedy="make it small", source="table")


def test_best_source_that_speaks_is_believed():
    assert settle([("engine", YES), ("table", TABLE_YES)]) == sources.Settled(YES, "engine")
    assert settle([("engine", SILENT), ("table", TABLE_NO)]) == sources.Settled(TABLE_NO, "table")
    assert settle([("engine", NO), ("table", TABLE_NO)]).others == ()


@pytest.mark.parametrize(("engine", "table"), [(YES, TABLE_NO), (NO, TABLE_YES), (NO, MAYBE)])
def test_sources_that_say_the_opposite_are_both_kept(engine, table):
    said = settle([("engine", engine), ("measurement", SILENT), ("table", table)])
    assert said.verdict is engine
    assert said.others == (table,)


def test_condition_is_no_opposite_of_support():
    assert settle([("engine", YES), ("table", MAYBE)]).others == ()


def test_node_refused_because_of_another_is_not_disputed():
    follows = dataclasses.replace(NO, follows="before")
    assert settle([("engine", follows), ("table", TABLE_YES)]).others == ()


def test_node_that_no_source_speaks_about_is_unknown():
    assert settle([]).verdict.status is Status.UNKNOWN
    said = settle([("engine", SILENT), ("table", unknown("not listed", remedy="probe it"))])
    assert said.verdict is SILENT
    assert said.kind == ""


@dataclasses.dataclass
class Fake:
    """A measured or operator table that says the same of every node."""

    source: str = "a fake table"
    says: object = supported()
    falls_back: bool = False
    version: str = "1.2"
    errs: str | None = None

    def judge(self, node):
        return self.says

    def wrong(self, node):
        return self.errs


@pytest.fixture
def shelf(monkeypatch):
    """Makes a shelf of openvino with fakes on it."""

    def make(*, table=None, measured=None, installed="1.2.0-5"):
        monkeypatch.setattr(sources, "table_for", lambda target, version: (table, None))
        monkeypatch.setattr(sources, "load_measured", lambda engine: measured)
        monkeypatch.setattr(lazy, "version_of", lambda name: installed)
        target = dataclasses.replace(get_target("openvino"), measured="openvino")
        return Shelf(target, None)

    return make


TEXT = """<ir_version: 10, opset_import: ["": 20]>
g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> { [folded] d = Neg (c) [real] y = Add (x, d) }"""


@pytest.fixture
def nodes():
    return {facts.name: facts for facts in facts_of(ir.from_proto(parser.parse_model(TEXT)))}


def test_measured_table_comes_before_the_written_one(shelf, nodes):
    said = shelf(table=Fake("written"), measured=Fake("measured", NO)).say(nodes["real"], calls=False)
    assert [(kind, verdict.source) for kind, verdict in said] == [("measurement", "engine"), ("table", "written")]


def test_verdict_without_a_source_gets_the_name_of_its_table(shelf, nodes):
    ((_, said),) = shelf(table=Fake("written")).say(nodes["real"], calls=False)
    assert said.source == "written"


@pytest.mark.parametrize("installed", ["1.2", "1.2.0", "1.2-nightly"])
def test_values_known_to_be_wrong_override_the_engine_of_that_version(shelf, nodes, installed):
    measured = Fake("measured on 1.2", errs="its results are off by one")
    heard = shelf(measured=measured, installed=installed).heard(YES, nodes["real"])
    (kind, said), second = heard
    assert kind == "measurement"
    assert second == ("engine", YES)
    assert settle(heard).others == (YES,)
    assert said.status is Status.UNSUPPORTED
    assert said.reason == "its results are off by one"
    assert said.source == "measured on 1.2"


@pytest.mark.parametrize("installed", ["1.3", "1.20", None])
def test_another_version_of_the_engine_speaks_for_itself(shelf, nodes, installed):
    found = shelf(measured=Fake(errs="its results are off by one"), installed=installed)
    assert found.heard(YES, nodes["real"]) == [("engine", YES)]


def test_refusal_of_the_engine_stays_its_own(shelf, nodes):
    assert shelf(measured=Fake(errs="wrong")).heard(NO, nodes["real"]) == [("engine", NO)]


def test_call_of_a_function_is_judged_by_its_body(shelf, nodes):
    ((_, said),) = shelf(table=Fake(says=TABLE_NO)).say(nodes["real"], calls=True)
    assert said.status is Status.SUPPORTED


def test_quantized_weights_are_no_constants_to_the_runtime():
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[2] x) => (float[2] y) <int8[2] w = {1, 2}, float s = {0.5}> {
        [kept] d = DequantizeLinear (w, s) y = Add (x, d)
    }"""
    kept, _ = facts_of(ir.from_proto(parser.parse_model(text)))
    assert kept.outputs[0].foldable
    assert not sources.is_constant(kept)


def test_runtime_folds_constants_before_its_provider_is_asked(shelf, nodes):
    found = shelf(table=Fake(says=TABLE_NO, falls_back=True))
    assert [verdict.status for _, verdict in found.say(nodes["folded"], calls=False)] == [Status.SUPPORTED]
    assert [verdict.status for _, verdict in found.say(nodes["real"], calls=False)] == [Status.UNSUPPORTED]


def test_tables_are_silent_about_an_opset_that_is_newer_than_they_are():
    text = '<ir_version: 9, opset_import: ["" : 99]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
    (node,) = facts_of(ir.from_proto(parser.parse_model(text)))
    said = settle(Shelf(get_target("tensorrt"), "11.1").say(node, calls=False)).verdict
    assert said.status is Status.UNKNOWN
    assert "opset 99 is newer" in said.reason
