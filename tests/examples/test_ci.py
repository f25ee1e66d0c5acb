"""The CI examples: valid for their services, and every script step executed against a small model."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import onnx
import pytest
import yaml
from onnx import parser

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "examples" / "ci"
GITHUB = yaml.safe_load((CI / "github" / "model.yml").read_text(encoding="utf-8"))
GITLAB = yaml.safe_load((CI / "gitlab" / ".gitlab-ci.yml").read_text(encoding="utf-8"))
# Steps that only the service can take, listed by name: what is here and not executed is meant to be so.
NOT_EXECUTED = {
    "actions/checkout@v5",
    "actions/setup-python@v6",
    "actions/upload-artifact@v4",
    "github/codeql-action/upload-sarif@v4",
}
GOOD = """<ir_version: 10, opset_import: ["": 20]>
agraph (float[batch,8] x) => (float[batch,2] y) <float[8,2] w = {1,2, 3,4, 5,6, 7,8, 1,2, 3,4, 5,6, 7,8}> {
    [product] t = MatMul (x, w)
    [end] y = Relu (t)
}"""
REFUSED = """<ir_version: 10, opset_import: ["": 20]>
agraph (float[batch,3,3] x) => (float[batch] y) { [determinant] y = Det (x) }"""


@dataclasses.dataclass(frozen=True)
class Step:
    """One script of a job, as its service runs it."""

    name: str
    script: str
    when_failed: bool = False


def github_steps(job):
    """`run:` scripts of a GitHub job; its `uses:` are checked against the list."""
    steps = []
    for step in GITHUB["jobs"][job]["steps"]:
        assert ("run" in step) != ("uses" in step)
        if "run" in step:
            steps.append(Step(step.get("name", step["run"]), step["run"], step.get("if") == "failure()"))
        else:
            assert step["uses"] in NOT_EXECUTED
    return steps


def gitlab_steps(job):
    """`before_script`, `script` and `after_script` of a GitLab job, each joined as its runner does."""
    found = [
        Step("before_script", "\n".join(GITLAB["default"]["before_script"])),
        Step("script", "\n".join(GITLAB[job]["script"])),
    ]
    return [*found, *(Step("after_script", "\n".join(s), True) for s in [GITLAB[job].get("after_script")] if s)]


@pytest.fixture
def checkout(tmp_path):
    """A repository as the examples describe it: the model in its place, deploykit.yaml at the root."""
    shutil.copy(CI / "deploykit.yaml", tmp_path)
    (tmp_path / "models").mkdir()
    return tmp_path


def put(checkout, text):
    onnx.save(parser.parse_model(text), checkout / "models" / "classifier.onnx")


def execute(step, folder, **more):
    """bash as both services call it: it stops at the first command that fails. Nothing is fetched: pip has no index."""
    variables = {
        **os.environ,
        **{name: str(value) for name, value in GITHUB["env"].items()},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        **more,
    }
    command = ["bash", "-eo", "pipefail", "-c", step.script]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=500)


def passed(step, folder, **more):
    done = execute(step, folder, **more)
    assert done.returncode == 0, f"{step.name}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("schema", "file"),
    [("vendor.github-workflows", CI / "github" / "model.yml"), ("vendor.gitlab-ci", CI / "gitlab" / ".gitlab-ci.yml")],
)
def test_valid_for_the_service(schema, file):
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    extra = ["--data-transform", "gitlab-ci"] if "gitlab" in schema else []
    done = subprocess.run([*command, *extra, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schemas_refuse_what_is_wrong(tmp_path):
    pytest.importorskip("check_jsonschema")
    (tmp_path / "wrong.yml").write_text("on: push\njobs:\n  a:\n    steps: [{run: ls}]\n")  # no runs-on
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, str(tmp_path / "wrong.yml")], capture_output=True, text=True, check=False)
    assert done.returncode != 0


def test_both_services_check_the_same():
    assert GITHUB["env"] == {name: GITLAB["variables"][name] for name in GITHUB["env"]}
    steps = {step["run"] for job in GITHUB["jobs"].values() for step in job["steps"] if "run" in step}
    for line in GITLAB["build-model"]["script"]:
        assert line in steps


def test_every_step_passes_for_a_good_model(checkout):
    put(checkout, GOOD)
    for step in github_steps("check"):
        if not step.when_failed:
            passed(step, checkout)
    sarif = json.loads((checkout / "check.sarif").read_text(encoding="utf-8"))
    assert sarif["version"] == "2.1.0"
    assert "# deploykit check: passed" in (checkout / "summary.md").read_text(encoding="utf-8")
    for step in github_steps("build"):
        passed(step, checkout)
    suite = ET.parse(checkout / "run.xml").getroot()
    assert suite.attrib["failures"] == "0"
    assert (checkout / "deploykit-out" / "openvino" / "fp16" / "classifier.xml").is_file()
    assert json.loads((checkout / "bench.json").read_text(encoding="utf-8"))["status"] == "passed"
    measured = github_steps("build")[-1]
    tight = measured.script.replace("--max-p99-ms 50", "--max-p99-ms 0.0001").replace("bench.json", "tight.json")
    assert execute(dataclasses.replace(measured, script=tight), checkout).returncode == 1
    # The other service, in the same folder: what is built already is taken from the cache of the run.
    for report in ("run.xml", "bench.json"):
        (checkout / report).unlink()
    for job in ("check-model", "build-model"):
        for step in gitlab_steps(job):
            passed(step, checkout, CI_JOB_STATUS="success")
        reported = GITLAB[job]["artifacts"]["reports"]["junit"]
        assert ET.parse(checkout / reported).getroot().attrib["failures"] == "0"
    assert not (checkout / "refused-nodes").exists()


def test_github_check_fails_for_a_refused_node_and_keeps_it(checkout):
    put(checkout, REFUSED)
    install, check, save = github_steps("check")
    passed(install, checkout)
    assert execute(check, checkout).returncode == 1
    (run,) = json.loads((checkout / "check.sarif").read_text(encoding="utf-8"))["runs"]
    errors = [result for result in run["results"] if result["level"] == "error"]
    assert errors
    for result in errors:  # what GitHub needs to show it beside the file
        place = result["locations"][0]["physicalLocation"]
        assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (GITHUB["env"]["MODEL"], 1)
    assert save.when_failed
    passed(save, checkout)
    assert (checkout / "refused-nodes" / "openvino" / "determinant.onnx").is_file()


def test_gitlab_check_fails_for_a_refused_node_and_keeps_it(checkout):
    put(checkout, REFUSED)
    install, check, save = gitlab_steps("check-model")
    passed(install, checkout)
    assert execute(check, checkout).returncode == 1
    suite = ET.parse(checkout / "check.xml").getroot()
    assert suite.attrib["failures"] == "1"
    assert execute(save, checkout, CI_JOB_STATUS="failed").returncode == 1  # which GitLab ignores
    for kept in GITLAB["check-model"]["artifacts"]["paths"]:
        assert (checkout / kept / "README.txt").is_file()
