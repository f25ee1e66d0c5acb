"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import deploykit
from deploykit.cli.app import COMMANDS
from deploykit.explanations import load
from deploykit.target import get_target, target_names

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_LINES = 400
DISTRIBUTIONS = (
    "torch",
    "onnxscript",
    "safetensors",
    "onnxsim",
    "onnxslim",
    "openvino",
    "tensorrt-rtx",
    "coremltools",
    "starlette",
    "uvicorn",
    "prometheus-client",
    "pillow",
    "tensorflow-cpu",
    "tensorflow",
    "keras",
    "tf2onnx",
    "h5py",
)
# By import name; what no extra brings is in every install.
OPTIONAL = (
    "torch",
    "onnxscript",
    "safetensors",
    "onnxsim",
    "onnxslim",
    "openvino",
    "tensorrt_rtx",
    "coremltools",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "PIL",
    "sklearn",
    "tritonclient",
    "tensorflow",
    "keras",
    "tf2onnx",
    "h5py",
)


@pytest.mark.parametrize("folder", ["src", "tests", "examples", "benchmarks"])
def test_no_file_is_long(folder: str) -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MAX_LINES} == {}


def test_nothing_is_called_utils() -> None:
    vague = {"utils", "util", "helpers", "helper", "misc", "common", "process"}
    assert {path.stem for path in SOURCES} & vague == set()


def raised_codes() -> dict[str, set[str]]:
    """Every DKnnn that stands as a whole string in the sources, with the files that name it."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"DK\d{3}", node.value):
                found.setdefault(node.value, set()).add(str(path.relative_to(ROOT)))
    return found


def test_every_code_has_an_explanation() -> None:
    known = load()
    assert {code: files for code, files in raised_codes().items() if code not in known} == {}


def test_every_explanation_has_a_code() -> None:
    assert set(load()) - set(raised_codes()) == set()


@pytest.mark.parametrize("code", load())
def test_an_explanation_says_what_why_and_what_to_do(code: str) -> None:
    entry = load()[code]
    assert entry.title
    assert not entry.title.endswith(".")
    assert len(entry.why) > 20
    assert entry.fix


def test_explanations_name_options_that_exist() -> None:
    options = {
        name: {option for param in importlib.import_module(module).COMMAND.params for option in param.opts}
        for name, (module, _) in COMMANDS.items()
    }
    every = set().union(*options.values()) | {"--help"}
    unknown = []
    for code, entry in load().items():
        text = f"{entry.why} {entry.fix}"
        unknown += [(code, option) for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text) if option not in every]
        for name, rest in re.findall(r"deploykit (\w+)([^`]*)`", text):
            known = options.get(name, every) | {"--help"}
            unknown += [(code, name, option) for option in re.findall(r" (--[a-z][\w-]*)", rest) if option not in known]
    assert unknown == []


def test_explanations_stand_in_the_file_of_their_range() -> None:
    import tomllib

    for file in (ROOT / "src/deploykit/explanations").glob("*.toml"):
        codes = tomllib.loads(file.read_text(encoding="utf-8"))
        assert {code[:3].lower() for code in codes} <= {file.stem}, file.name


IMPORT_ALL_THEN_CALL = """
import importlib, json, pkgutil, sys
import deploykit
failed = {}
for found in pkgutil.walk_packages(deploykit.__path__, "deploykit."):
    if found.name == "deploykit.__main__":
        continue
    try:
        importlib.import_module(found.name)
    except ImportError as problem:
        failed[found.name] = str(problem)
names = [name for name in deploykit.__all__ if name != "__version__"]
print(json.dumps([failed, {name: callable(getattr(deploykit, name)) for name in names}]))
"""


def test_public_functions_stay_callable_when_every_submodule_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL_THEN_CALL], capture_output=True, text=True, check=True)
    failed, public = json.loads(done.stdout.splitlines()[-1])
    assert failed == {}
    assert set(public) == set(COMMANDS)
    assert all(public.values())


def test_no_top_level_module_is_named_like_a_command() -> None:
    modules = {found.name for found in pkgutil.iter_modules(deploykit.__path__)}
    assert modules & set(COMMANDS) <= {"quantize"}


def test_every_target_names_objects_that_exist() -> None:
    for name in target_names():
        target = get_target(name)
        jobs = (target.converter, target.support, target.runtime, target.inspect, target.runs_on, target.bundle)
        for reference in (*jobs, target.builds_on, target.refuses):
            if reference is not None:
                module, _, attribute = reference.partition(":")
                source = importlib.util.find_spec(module)
                assert source is not None, reference
                assert source.origin is not None
                tree = ast.parse(Path(source.origin).read_text(encoding="utf-8"))
                functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
                # The jobs of toolchains that are described as data are made on demand, by the name of the target.
                assert attribute in functions or (attribute == name and "__getattr__" in functions), reference


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables under which an interpreter finds none of the optional packages."""
    folder = tmp_path_factory.mktemp("bare")
    blocker = f"""
import re, sys

MODULES = {OPTIONAL!r}
DISTRIBUTIONS = {DISTRIBUTIONS!r}


class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in MODULES else self.finder.find_spec(name, path, target)

    def find_distributions(self, context):
        for found in getattr(self.finder, "find_distributions", lambda context: ())(context):
            if re.sub("[-_.]+", "-", found.metadata["Name"]).lower() not in DISTRIBUTIONS:
                yield found

    def __getattr__(self, name):
        return getattr(self.finder, name)


sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
    (folder / "sitecustomize.py").write_text(blocker, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def test_the_bare_environment_is_bare(bare: dict[str, str]) -> None:
    import os

    done = subprocess.run(
        [sys.executable, "-c", "import torch"], env={**os.environ, **bare}, capture_output=True, check=False
    )
    assert done.returncode != 0


@pytest.mark.parametrize("name", COMMANDS)
def test_help_works_with_the_base_install_alone(deploykit_cli, bare: dict[str, str], name: str) -> None:
    done = deploykit_cli(name, "--help", **bare)
    assert (done.code, done.stderr) == (0, "")


def test_doctor_and_targets_name_the_command_that_installs_each_backend(deploykit_cli, bare: dict[str, str]) -> None:
    extras = deploykit_cli("doctor", "--json", **bare).json["metrics"]["extras"]
    assert {row["name"]: row["install"] for row in extras if not row["installed"]} == {
        name: f"pip install 'deploykit[{name}]'"
        for name in (
            "torch",
            "huggingface",
            "tensorflow",
            "simplify",
            "openvino",
            "tensorrt-rtx",
            "coreml",
            "nncf",
            "serve",
            "images",
        )
    }
    rows = {row["name"]: row for row in deploykit_cli("targets", "--json", **bare).json["metrics"]["targets"]}
    assert rows["onnxruntime"]["run"] is True
    for name in ("openvino", "tensorrt-rtx", "coreml"):
        assert f"pip install 'deploykit[{name}]'" in rows[name]["missing"]
        assert (rows[name]["convert"], rows[name]["run"]) == (False, False)


MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,4] x) => (float[1,4] y) { y = Relu(x) }
"""
# Calls whose backend is missing, and the extra that the message must name.
MISSING_BACKENDS = {
    "convert model.onnx --to openvino -o out.xml": "openvino",
    "convert model.onnx --to tensorrt-rtx -o out.engine": "tensorrt-rtx",
    "convert model.onnx --to coreml -o out.mlpackage": "coreml",
    "export model.py:Net -o out.onnx --input x:float32[1,4]": "torch",
    "simplify model.onnx -o out.onnx --engine onnxsim": "simplify",
    "simplify model.onnx -o out.onnx --engine onnxslim": "simplify",
    "serve model.onnx --http-port 0": "serve",
}


@pytest.mark.parametrize("call", MISSING_BACKENDS)
def test_a_missing_backend_is_exit_3_with_the_command_that_installs_it(
    deploykit_cli, bare: dict[str, str], tmp_path: Path, call: str
) -> None:
    import onnx

    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    (tmp_path / "model.py").write_text("import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n", encoding="utf-8")
    before = set(tmp_path.iterdir())
    done = deploykit_cli(*call.split(), cwd=tmp_path, **bare)
    assert done.code == 3, done.stderr
    assert f"pip install 'deploykit[{MISSING_BACKENDS[call]}]'" in done.stderr
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "__pycache__"}


def test_a_model_is_checked_against_every_target_with_the_base_install_alone(
    deploykit_cli, bare: dict[str, str], tmp_path: Path
) -> None:
    import onnx

    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    done = deploykit_cli("check", "model.onnx", "--target", "all", "--json", cwd=tmp_path, **bare)
    assert done.code == 0
    rows = done.json["metrics"]["targets"]
    assert len(rows) > 15
    # Where an engine is not here and its measured table does not know this very form, nobody is sure.
    # Of toolchains that have no operator table only their own tool speaks.
    targets = [get_target(name) for name in target_names()]
    tableless = {target.name for target in targets if not target.tables and target.measured is None}
    assert {row["name"] for row in rows if row["verdict"] != "runs whole"} <= {"coreml", "tensorrt-rtx"} | tableless
    assert {row["verdict"] for row in rows} <= {"runs whole", "unknown"}
    told = [f for f in done.json["findings"] if f["code"] == "DK208" and f["target"] not in tableless]
    assert {finding["target"] for finding in told} == {"openvino", "tensorrt-rtx", "coreml"}
    assert all("speaks in its place" in finding["message"] for finding in told)
