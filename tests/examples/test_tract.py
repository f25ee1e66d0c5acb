"""The example of a target in a package of its own: installed beside deploykit, and used by every command."""

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tract"
PAGE = (ROOT / "docs" / "adding-a-target.md").read_text(encoding="utf-8")
MODEL = """<ir_version: 10, opset_import: ["": 20]>
agraph (float[batch,1,8,8] image) => (float[batch,3] scores, float[batch,2,6,6] maps)
<float[2,1,3,3] k = {1,2,1, 0,0,0, -1,-2,-1, 1,0,-1, 2,0,-2, 1,0,-1},
 float[2,3] w = {1,-1,0.5, 0.25,2,-1}, int64[2] axes = {2,3}>
{
    [edges] c = Conv <kernel_shape = [3,3]> (image, k)
    [rectified] maps = Relu (c)
    [mean] m = ReduceMean <keepdims = 0> (maps, axes)
    [last] scores = MatMul (m, w)
}"""
REFUSED = """<ir_version: 10, opset_import: ["": 20]>
agraph (float[batch,3,3] x) => (float[batch] y) { [determinant] y = Det (x) }"""

pytestmark = pytest.mark.skipif(importlib.util.find_spec("tract") is None, reason="tract is not installed: make setup")


@pytest.fixture(scope="module")
def beside(tmp_path_factory) -> dict[str, str]:
    """The environment of a shell in which the example's package is installed."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", folder, EXAMPLE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (EXAMPLE / "build").exists()
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    import onnx

    path = tmp_path_factory.mktemp("modèle 1") / "edges.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@pytest.fixture(scope="module")
def converted(model, beside, deploykit_cli, tmp_path_factory):
    output = tmp_path_factory.mktemp("out") / "edges.nnef"
    done = deploykit_cli("convert", str(model), "--to", "tract", "-o", str(output), "--json", **beside)
    assert done.code == 0, done.stdout
    return output, done.json


def test_it_is_a_target_like_any_other(beside, deploykit_cli) -> None:
    rows = {row["name"]: row for row in deploykit_cli("targets", "--json", **beside).json["metrics"]["targets"]}
    assert (rows["tract"]["convert"], rows["tract"]["run"], rows["tract"]["check"]) == (True, True, False)
    assert "tract" not in {row["name"] for row in deploykit_cli("targets", "--json").json["metrics"]["targets"]}


def test_an_artifact_is_compared_on_the_real_engine(converted) -> None:
    output, report = converted
    assert report["artifact"]["execution"] == "real"
    parity = report["metrics"]["parity"]["parent"]
    assert [row["name"] for row in parity["outputs"]] == ["scores", "maps"]
    assert all(row["passed"] and row["max_abs"] < 1e-4 for row in parity["outputs"])
    assert parity["engines"]["candidate"].startswith("tract ")
    assert report["artifact"]["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 1, 8, 8]}]
    assert (output.parent / "edges.nnef.deploykit.json").exists()


def test_bytes_are_the_same_in_another_process(converted, model, beside, deploykit_cli, tmp_path) -> None:
    again = tmp_path / "edges.nnef"
    assert deploykit_cli("convert", str(model), "--to", "tract", "-o", str(again), **beside).code == 0
    first, second = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (converted[0], again))
    assert first == second


def test_every_command_takes_it(converted, model, beside, deploykit_cli) -> None:
    output = str(converted[0])
    shown = deploykit_cli("inspect", output, "--json", **beside).json
    assert shown["metrics"]["operators"]["conv"] == 1
    assert [row["name"] for row in shown["metrics"]["outputs"]] == ["scores", "maps"]
    assert deploykit_cli("validate", str(model), output, "--samples", "4", **beside).code == 0
    timed = deploykit_cli("bench", str(model), output, "--seconds", "0.2", "--json", **beside).json
    assert [row["execution"] for row in timed["metrics"]["rows"]] == ["real", "real"]


def test_a_fixed_dimension_is_fixed(model, beside, deploykit_cli, tmp_path) -> None:
    output = str(tmp_path / "four.nnef")
    done = deploykit_cli("convert", str(model), "--to", "tract", "-o", output, "--dim", "batch=4", "--json", **beside)
    assert done.json["artifact"]["inputs"][0]["shape"] == [4, 1, 8, 8]


def test_a_refusal_names_the_node(beside, deploykit_cli, tmp_path) -> None:
    import onnx

    path = tmp_path / "refused.onnx"
    onnx.save(onnx.parser.parse_model(REFUSED), path)
    done = deploykit_cli("convert", str(path), "--to", "tract", "-o", str(tmp_path / "o.nnef"), "--json", **beside)
    assert done.code == 1
    finding = next(row for row in done.json["findings"] if row["severity"] == "error")
    assert (finding["code"], finding["node"], finding["op"]) == ("DK526", "determinant", "Det")
    assert "Stack" not in finding["message"]
    assert sorted(member.name for member in tmp_path.iterdir()) == ["refused.onnx"]


@pytest.mark.parametrize("content", [b"no archive", b"\0" * 2048])
def test_another_file_is_refused(beside, deploykit_cli, tmp_path, content) -> None:
    path = tmp_path / "other.nnef"
    path.write_bytes(content)
    done = deploykit_cli("inspect", str(path), "--json", **beside)
    assert (done.code, done.json["findings"][-1]["code"]) == (2, "DK202")


def test_without_its_engine_the_command_that_brings_it_is_named(beside, deploykit_cli, model, tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nclass No:\n    def __init__(self, finder): self.finder = finder\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        return None if name == 'tract' else self.finder.find_spec(name, path, target)\n"
        "    def __getattr__(self, name): return getattr(self.finder, name)\n"
        "sys.meta_path[:] = [No(finder) for finder in sys.meta_path]\n",
        encoding="utf-8",
    )
    bare = {"PYTHONPATH": os.pathsep.join([str(tmp_path), beside["PYTHONPATH"]])}
    done = deploykit_cli("convert", str(model), "--to", "tract", "-o", str(tmp_path / "o.nnef"), **bare)
    assert done.code == 3
    assert "pip install tract" in done.stderr


def test_the_page_shows_the_code_of_the_example() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (*EXAMPLE.rglob("*.py"), EXAMPLE / "pyproject.toml")]
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        assert any(block in source for source in sources), block
