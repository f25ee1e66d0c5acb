"""`deploykit check` at the shell: exit codes, formats on stdout, report files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import onnx
import pytest
from onnx import parser

AROUND = """<ir_version: 9, opset_import: ["": 17]>
g (float[1,8] x) => (float[1,8] y) { [first] a = Relu (x) [odd] b = Erf (a) [last] y = Relu (b) }"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("check")
    onnx.save(parser.parse_model(AROUND), made / "model.onnx")
    return made


def test_partitions_are_a_warning_that_strict_turns_into_a_failure(deploykit_cli, folder):
    call = ("check", "model.onnx", "--target", "onnxruntime@nnapi")
    done = deploykit_cli(*call, cwd=folder)
    assert done.code == 0
    assert "onnxruntime@nnapi: runs in 2 partitions" in done.stdout
    assert "warning[DK212]" in done.stdout
    strict = deploykit_cli(*call, "--strict", "--json", cwd=folder)
    assert strict.code == 1
    assert [finding["code"] for finding in strict.json["findings"] if finding["severity"] == "error"] == ["DK212"]


def test_formats_go_to_stdout_and_to_report_files(deploykit_cli, folder):
    call = ("check", "model.onnx", "--target", "onnxruntime@nnapi,onnxruntime-web@webgl")
    sarif = deploykit_cli(*call, "--format", "sarif", "--report", "report.xml", "--force", cwd=folder)
    (run,) = json.loads(sarif.stdout)["runs"]
    places = {result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]}
    assert places == {"model.onnx"}
    assert run["invocations"][0]["exitCode"] == sarif.code == 1  # WebGL has no Erf
    suite = ET.parse(folder / "report.xml").getroot()
    assert {case.attrib["name"]: case.find("failure") is not None for case in suite} == {
        "onnxruntime": False,
        "onnxruntime-web": True,
    }
