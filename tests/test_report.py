"""Reports: exit codes follow from findings, and the JSON is JSON."""

import json
import math

import pytest

from deploykit.artifact import Artifact
from deploykit.errors import ExitCode, GateError, ModelError, UnavailableError, VendorError
from deploykit.report import SCHEMA, Finding, Report, failure, finding_of, finite, merge_exit, note, warning


def test_status_and_exit_code_follow_from_findings():
    report = Report("check")
    report.add(note("DK1", "n"), warning("DK2", "w"))
    assert (report.status, report.exit_code) == ("passed", ExitCode.OK)
    report.tighten()
    assert (report.status, report.exit_code) == ("failed", ExitCode.GATE_FAILED)
    assert [finding.severity for finding in report.findings] == ["note", "error"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (GateError("g"), "failed", 1),
        (ModelError("m"), "error", 2),
        (UnavailableError("u"), "error", 3),
        (VendorError("v"), "error", 4),
    ],
)
def test_errors_decide(error, status, code):
    report = Report("convert", error=error, forced_exit=ExitCode.OK)
    assert (report.status, int(report.exit_code)) == (status, code)


def test_a_bundle_is_passed_with_exit_3():
    report = Report("convert", forced_exit=ExitCode.UNAVAILABLE)
    assert (report.status, int(report.exit_code)) == ("passed", 3)


def test_json_document(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"x")
    report = Report("quantize", artifacts=[Artifact.of(path, "onnx")], seconds=1.23456789)
    report.add(failure("DK400", "too far", node="n", tensor="t"))
    report.metrics = {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": (-math.inf, None)}}
    report.error = VendorError("crash", log=["last"], reproduce="python x", file="f.xml", context=["more"])
    document = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert document["schema"] == SCHEMA == "deploykit.report/1"
    assert document["metrics"] == {"a": None, "b": [None, 1.5], "c": {"d": [None, None]}}
    assert document["artifact"] == document["artifacts"][0]
    place = {"target", "node", "op", "tensor", "scope"}
    assert set(document["findings"][0]) == {"code", "severity", "message", "hint"} | place
    assert document["findings"][1]["message"] == "crash (f.xml)\nmore"
    assert document["vendor"] == {"log": ["last"], "reproduce": "python x"}
    assert document["seconds"] == 1.2346
    assert Report("x").as_dict()["artifact"] is None


def test_findings_round_trip():
    finding = warning("DK1", "m", hint="h", target="t", node="n", op="o", tensor="x")
    assert Finding.from_dict(json.loads(json.dumps(finding.as_dict()))) == finding
    assert finding_of(ModelError("broken m.onnx", file="m.onnx")).message == "broken m.onnx"


def test_finite_leaves_the_rest():
    value = {"i": 1, "s": "x", "b": True, "n": None, "f": 0.5}
    assert finite(value) == value


@pytest.mark.parametrize(
    ("codes", "worst"),
    [([], 0), ([0, 1], 1), ([1, 3], 3), ([3, 4], 4), ([4, 2], 2), ([2, 70], 70), ([70, 130, 0], 130)],
)
def test_exit_codes_merge_by_precedence(codes, worst):
    assert merge_exit(codes) == worst


@pytest.mark.parametrize(("code", "status"), [(1, "failed"), (2, "error"), (4, "error"), (70, "error"), (130, "error")])
def test_a_run_in_which_a_step_could_not_work_is_an_error(code, status):
    report = Report("run", [], [failure("DK305", "no data")], forced_exit=ExitCode(code))
    assert (report.status, report.as_dict()["exit_code"]) == (status, code)
