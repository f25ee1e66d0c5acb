"""A model whose nodes call a function of its own, on the targets whose preparation puts the body in its place."""

import onnx
import pytest

import deploykit
from deploykit.isolation import workers
from deploykit.lazy import installed
from deploykit.target import get_target

MODEL = """<ir_version: 10, opset_import: ["": 17, "own": 1]>
net (float[1,3,8,8] x) => (float[1,3,8,8] y) { [called] h = own.twice (x)  [last] y = Relu (h) }
<domain: "own", opset_import: ["": 17]>
twice (a) => (b) { b = Add (a, a) }"""


@pytest.mark.parametrize("name", ["mnn", "ncnn", "tvm"])
def test_a_function_is_put_in_its_place(name, tmp_path):
    target = get_target(name)
    if not all(map(installed, target.packages)):
        pytest.skip(f"{name} is not installed here: {target.install}")
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "net.onnx")
    with workers():
        report = deploykit.convert(
            tmp_path / "net.onnx", to=name, output=tmp_path / f"net{target.suffix}", data="random:1", samples=2
        )
    assert report.exit_code == 0, [finding.message for finding in report.findings]
    assert report.artifact.execution == "real"
