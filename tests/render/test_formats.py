"""Every format of a report: golden texts for people, schemas and parsers for machines, hostile names everywhere."""

from __future__ import annotations

import html.parser
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from deploykit import render
from deploykit.artifact import Artifact, TensorSpec
from deploykit.errors import InvalidFileError, UsageError, VendorError
from deploykit.render.failure import render_error
from deploykit.report import Finding, Report, failure, note, warning
from deploykit.version import __version__

HOSTILE = "</td><script>alert(1)</script>\x1b[31m|`*_\u202e\x00"


def row(target: str, precision: str, *, status: str = "passed", execution: str = "real", **measured) -> dict:
    blank = dict.fromkeys(
        ("accuracy", "accuracy_drop", "int8_macs_share", "size_bytes", "p50_ms", "p99_ms", "throughput_per_s", "parity")
    )
    where = f"deploykit-out/{target}/{precision}/model"
    return {
        **blank,
        "target": target,
        "precision": precision,
        "status": status,
        "execution": execution,
        "artifact": where,
        **measured,
    }


def parity(sqnr_db: float | None) -> dict:
    output = {"name": "logits", "max_abs": 0.1875, "max_rel": 0.031, "sqnr_db": sqnr_db, "cosine": 0.999962}
    return {"parent": {"outputs": [{**output, "exact": sqnr_db is None, "passed": True}], "samples": 16}}


def run_report() -> Report:
    rows = [
        row("onnxruntime", "fp32", accuracy=98.61, accuracy_drop=0.0, size_bytes=354_000, p50_ms=0.021, p99_ms=0.044,
            throughput_per_s=43_210.0, parity=parity(None)),
        row("onnxruntime", "int8", accuracy=98.33, accuracy_drop=0.28, size_bytes=101_000, p50_ms=0.014, p99_ms=0.03,
            throughput_per_s=61_000.0, parity=parity(41.7), int8_macs_share=1.0),
        row("openvino", "int8", status="failed", accuracy=97.2, accuracy_drop=1.41, size_bytes=190_000, p50_ms=0.05,
            p99_ms=0.09, throughput_per_s=19_000.0, parity=parity(21.0), int8_macs_share=0.97),
        row("tensorrt-rtx", "int8", execution="none", size_bytes=1_830_000),
        row("coreml", "fp16", status="skipped", execution="none", artifact=None),
    ]  # fmt: skip
    metrics = {
        "rows": rows,
        "source": {"metric": "top1", "accuracy": 98.61},
        "best": "deploykit-out/onnxruntime/int8/model",
        "verdict": "INT8 on onnxruntime: x1.50",
        "steps": [{"step": "export", "status": "cached", "seconds": 0.0, "reason": ""}],
    }
    artifact = Artifact(
        Path("deploykit-out/onnxruntime/fp32/model.onnx"),
        "onnx",
        inputs=(TensorSpec("image", "float32", ("batch", 1, 8, 8)),),
        outputs=(TensorSpec("logits", "float32", ("batch", 10)),),
        sha256="ab" * 32,
        size_bytes=354_000,
        opset=20,
    )
    refused = [
        warning(
            "DK520", "a dimension has no upper bound", node=f"reshape_{i}", op="Reshape", target="coreml", hint="--dim"
        )
        for i in range(7)
    ]
    findings = [
        note("DK502", "Core ML runs on Apple systems only", target="coreml"),
        *refused,
        failure("DK820", "openvino int8 loses 1.41 points of accuracy, and 0.5 are allowed", target="openvino"),
    ]
    return Report("run", artifacts=[artifact], findings=findings, metrics=metrics, seconds=41.25)


def validate_report() -> Report:
    outputs = [
        {"name": "logits", "max_abs": 0.1875, "max_rel": 0.031, "sqnr_db": 41.72, "cosine": 0.999962, "exact": False,
         "passed": True},
        {"name": "state", "max_abs": 0.0, "max_rel": 0.0, "sqnr_db": None, "cosine": 1.0, "exact": True,
         "passed": True},
        {"name": "broken", "max_abs": float("nan"), "max_rel": None, "sqnr_db": 1.7, "cosine": None, "exact": False,
         "passed": False},
    ]  # fmt: skip
    metrics = {
        "outputs": outputs,
        "samples": 16,
        "execution": "real",
        "accuracy": {"metric": "top1", "reference": 98.6},
    }
    found = failure("DK401", "output 'broken' has NaN", tensor="broken")
    said = note("DK320", "no data was given: inputs are random:0", hint="--data FILE compares on real inputs")
    return Report("validate", findings=[found, said], metrics=metrics, seconds=2.25)


def check_report() -> Report:
    targets = [
        {"name": "openvino", "version": None, "source": "OpenVINO front-end", "supported": 8, "conditional": 1,
         "unsupported": 0, "unknown": 0, "nodes": 9, "macs_share": 1.0, "partitions": 1, "verdict": "runs whole"},
        {"name": "coreml", "version": "iOS17", "source": "lowerings", "supported": 8, "conditional": 0,
         "unsupported": 1, "unknown": 0, "nodes": 9, "macs_share": 0.875, "partitions": None,
         "verdict": "does not run"},
    ]  # fmt: skip
    refused = Finding("DK526", "error", "no lowering for Det", "compute it before the model", "coreml", "det_1", "Det")
    return Report("check", findings=[refused], metrics={"targets": targets})


def bench_report() -> Report:
    rows = [
        {"artifact": "model.onnx", "runtime": "onnxruntime 1.32.0", "execution": "real", "p50_ms": 1.5, "p95_ms": 1.75,
         "p99_ms": 2.0, "throughput_per_s": 640.25, "rss_mb": {"peak": 81.3}, "load_s": 0.1, "accuracy": None},
        {"artifact": "model.int8.onnx", "runtime": "onnxruntime 1.32.0", "execution": "real", "p50_ms": 1.55,
         "p95_ms": 1.8, "p99_ms": 2.1, "throughput_per_s": 612.0, "rss_mb": {"peak": 80}, "load_s": 0.11,
         "accuracy": {"metric": "top1", "value": 98.33}},
    ]  # fmt: skip
    return Report("bench", metrics={"rows": rows, "verdict": "INT8 is not faster here (x0.97): keep FP32"}, seconds=6.5)


REPORTS = {"run": run_report, "validate": validate_report, "check": check_report, "bench": bench_report}


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("format", ["table", "markdown", "junit"])
def test_reports_for_people_letter_by_letter(golden, name: str, format: str) -> None:
    suffix = {"table": "txt", "markdown": "md", "junit": "xml"}[format]
    golden(f"reports/{name}.{suffix}", render.render(REPORTS[name](), format))


@pytest.mark.parametrize("name", REPORTS)
def test_a_narrow_terminal_keeps_names_whole_and_drops_columns(name: str) -> None:
    from rich.console import Console

    from deploykit.render import terminal

    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(terminal.compose(REPORTS[name](), 80))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("name", REPORTS)
def test_json_is_the_contract(name: str) -> None:
    document = json.loads(render.render(REPORTS[name](), "json"))
    assert document["schema"] == "deploykit.report/1"
    assert document["deploykit"] == __version__
    assert set(document) == {
        "schema", "deploykit", "command", "status", "exit_code", "artifacts", "artifact", "findings", "metrics",
        "seconds",
    }  # fmt: skip


def test_json_has_null_for_what_json_cannot_hold() -> None:
    text = render.render(validate_report(), "json")
    assert "NaN" not in text.replace("has NaN", "")
    assert json.loads(text)["metrics"]["outputs"][2]["max_abs"] is None


class Page(html.parser.HTMLParser):
    """Collects tags and whatever could load something from outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]


@pytest.mark.parametrize("name", REPORTS)
def test_html_is_self_contained(name: str) -> None:
    text = render.render(REPORTS[name](), "html")
    page = Page(text)
    assert page.links == []
    assert "script" not in page.tags
    assert "url(" not in text
    assert "@import" not in text
    assert page.tags.count("table") >= 1


def test_html_of_a_run_says_what_was_really_run() -> None:
    text = render.render(run_report(), "html")
    assert "2 of 5 artifacts passed" not in text
    assert "3 of 5 artifacts passed; 3 were run on their real engine on this machine" in text
    assert "0 simulated, 1 only built" in text
    assert '<td class="quiet">only built</td>' in text
    assert '<td class="bad">FAILED</td>' in text
    assert text.count("<circle ") == 3


def test_html_groups_a_finding_with_its_places() -> None:
    text = render.render(run_report(), "html")
    assert text.count("a dimension has no upper bound") == 1
    assert text.count("<li><code>coreml: node &#39;reshape_") == 7


@pytest.mark.parametrize("format", render.FORMATS)
def test_hostile_names_mean_nothing(format: str) -> None:
    report = Report("check", findings=[failure("DK526", f"node {HOSTILE}", node=HOSTILE, hint=HOSTILE)])
    report.metrics = {"targets": [], "named": HOSTILE}
    text = render.render(report, format)
    if format != "json" and format != "sarif":
        assert "\x1b" not in text
        assert "\u202e" not in text or format == "junit"
    assert "\x00" not in text
    if format == "html":
        assert "<script>" not in text
    if format == "junit":
        ET.fromstring(text)


@pytest.mark.parametrize("name", REPORTS)
def test_junit_counts_what_it_holds(name: str) -> None:
    report = REPORTS[name]()
    suite = ET.fromstring(render.render(report, "junit"))
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
    assert (suite.attrib["failures"] == "0") == (report.status == "passed")


def test_junit_has_an_error_where_the_work_could_not_be_done() -> None:
    report = Report("convert", error=VendorError("openvino failed"))
    suite = ET.fromstring(render.render(report, "junit"))
    assert (suite.attrib["errors"], suite.attrib["failures"]) == ("1", "0")
    assert suite.find("testcase/error") is not None


def test_sarif_has_one_result_for_each_finding_and_a_rule_for_each_code() -> None:
    report = run_report()
    document = json.loads(render.render(report, "sarif"))
    run = document["runs"][0]
    assert document["version"] == "2.1.0"
    assert len(run["results"]) == len(report.findings)
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == ["DK502", "DK520", "DK820"]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert {result["level"] for result in run["results"]} == {"note", "warning", "error"}


def test_sarif_names_the_file_of_an_error() -> None:
    report = Report("check", error=InvalidFileError("no such model: a b.onnx", file="a b.onnx"))
    result = json.loads(render.render(report, "sarif"))["runs"][0]["results"][0]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b.onnx"


def test_an_unknown_format_gets_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        render.render(Report("check"), "markdwn")
    assert "markdown" in caught.value.hint


@pytest.mark.parametrize("format", render.FORMATS)
def test_an_empty_report_is_no_problem(format: str) -> None:
    assert render.render(Report("doctor"), format).endswith("\n")


def test_an_error_names_place_facts_and_hint() -> None:
    problem = InvalidFileError(
        "sample 3 has shape (224, 224, 3)",
        code="DK312",
        file="calib.npz",
        tensor="image",
        context=["expected float32 [batch, 3, 224, 224]"],
        hint="transpose the array",
    )
    assert render_error(problem) == (
        "error[DK312]: sample 3 has shape (224, 224, 3)\n"
        "  --> calib.npz, tensor 'image'\n"
        "  expected float32 [batch, 3, 224, 224]\n"
        "  hint: transpose the array\n"
        "  see: deploykit explain DK312\n"
    )


def test_an_error_in_colour_has_the_same_text() -> None:
    import re

    problem = UsageError("wrong", hint="right")
    coloured = render_error(problem, colour=True)
    assert coloured != render_error(problem)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render_error(problem)


@pytest.mark.parametrize("format", ["table", "markdown", "html"])
def test_random_data_are_declared_before_the_numbers(format: str) -> None:
    text = render.render(validate_report(), format)
    assert text.index("inputs are random:0") < text.index("41.7")


@pytest.mark.parametrize("format", ["table", "markdown", "html"])
def test_each_place_is_listed_once_with_its_targets(format: str) -> None:
    said = [
        note("DK405", "output is float16", tensor="logits", target=target)
        for target in (None, "onnxruntime", "openvino")
    ]
    text = render.render(Report("convert", findings=said), format)
    assert text.count("logits") == 1
    assert "onnxruntime, openvino: tensor" in text


def test_the_page_opens_with_problems_and_folds_notes() -> None:
    page = render.render(run_report(), "html")
    assert page.index("DK820") < page.index("<summary>1 note</summary>") < page.index("DK502")
