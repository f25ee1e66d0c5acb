"""Where a finding lies, in every format: node, module, file."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

from deploykit import render
from deploykit.report import Report, failure

SCOPE = "encoder.layers.3.attention (MultiHeadAttention)"


def report_of(*nodes: str, scope: str | None = SCOPE) -> Report:
    report = Report("check", metrics={"targets": [], "model": "models/my net.onnx"})
    report.add(*(failure("DK201", f"{n} no", target="openvino", node=n, op="Loop", scope=scope) for n in nodes))
    return report


def test_json_has_the_module_of_a_finding() -> None:
    (finding,) = json.loads(render.render(report_of("n"), "json"))["findings"]
    assert finding["scope"] == SCOPE
    (finding,) = json.loads(render.render(report_of("n", scope=None), "json"))["findings"]
    assert finding["scope"] is None


def test_people_read_it_beside_the_node() -> None:
    for format in ("table", "markdown", "html", "junit"):
        text = render.render(report_of("n"), format).replace("\\_", "_")
        assert "(Loop) in encoder.layers.3.attention (MultiHeadAttention)" in " ".join(text.split()), format
    assert " in " not in ET.fromstring(render.render(report_of("n", scope=None), "junit")).findtext("testcase/failure")


def test_sarif_has_it_as_a_logical_location_in_the_model_file() -> None:
    (run,) = json.loads(render.render(report_of("n"), "sarif"))["runs"]
    (location,) = run["results"][0]["locations"]
    node, module = location["logicalLocations"]
    assert node["fullyQualifiedName"] == f"openvino: node 'n' (Loop) in {SCOPE}"
    assert module == {"fullyQualifiedName": SCOPE, "kind": "module"}
    # GitHub shows no result without a file and a line.
    place = location["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("models/my%20net.onnx", 1)


def test_each_place_is_a_result_of_its_own_in_code_scanning() -> None:
    (run,) = json.loads(render.render(report_of("a", "b"), "sarif"))["runs"]
    marks = [result["partialFingerprints"]["primaryLocationLineHash"] for result in run["results"]]
    assert len(set(marks)) == 2
    (again,) = json.loads(render.render(report_of("a", "b"), "sarif"))["runs"]
    assert [result["partialFingerprints"]["primaryLocationLineHash"] for result in again["results"]] == marks
