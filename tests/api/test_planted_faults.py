"""Models with one fault each: who follows the hint of the report to the letter has a model that the target takes."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import typer
from onnx import numpy_helper, parser

from deploykit.cli import app
from deploykit.isolation import workers

if TYPE_CHECKING:
    from collections.abc import Mapping

RNG = np.random.default_rng(0)
COMMAND = re.compile(r"`(deploykit [^`]+)`")


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def int8(*shape: int) -> np.ndarray:
    return RNG.integers(-127, 127, shape).astype(np.int8)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A model that a target does not take. options: of every check of it. imports: other opsets."""

    name: str
    target: str
    text: str
    constants: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    opset: int = 17
    imports: str = ""
    options: tuple[str, ...] = ()


QUANTIZED = {
    "xs": np.float32(0.03),
    "xz": np.int8(0),
    "w": int8(4, 3, 3, 3),
    "ws": np.full(4, 0.01, np.float32),
    "wz": np.zeros(4, np.int8),
}
INPUT = "[q] xq = QuantizeLinear (x, xs, xz) [dq] xd = DequantizeLinear (xq, xs, xz)"
WEIGHT = "[wdq] wd = DequantizeLinear <axis=0> (w, ws, wz)"
IMAGE = "g (float[1,3,8,8] x) => (float[1,4,6,6] y)"

FAULTS = [
    Fault(
        "asymmetric quantization",
        "tensorrt-rtx",
        f"{IMAGE} {{ {INPUT} {WEIGHT} [conv] y = Conv (xd, wd) }}",
        {**QUANTIZED, "xz": np.uint8(100)},
    ),
    Fault(
        "quantized bias",
        "tensorrt-rtx",
        f"{IMAGE} {{ {INPUT} {WEIGHT} [bdq] bd = DequantizeLinear <axis=0> (b, bs) [conv] y = Conv (xd, wd, bd) }}",
        {**QUANTIZED, "b": RNG.integers(-500, 500, 4).astype(np.int32), "bs": np.full(4, 0.0003, np.float32)},
    ),
    Fault(
        "QLinear operators",
        "tensorrt-rtx",
        f"""{IMAGE} {{ [q] xq = QuantizeLinear (x, xs, xz) [conv] yq = QLinearConv (xq, xs, xz, w, ws, wz, ys, yz)
            [dq] y = DequantizeLinear (yq, ys, yz) }}""",
        {**QUANTIZED, "xz": np.uint8(128), "ys": np.float32(0.2), "yz": np.uint8(120)},
    ),
    Fault(
        "float64 inside and at the interface",
        "coreml",
        "g (double[n,4] x) => (double[n,3] y) { [mm] h = MatMul (x, w) [act] y = Tanh (h) }",
        {"w": RNG.standard_normal((4, 3))},
    ),
    Fault(
        "an opset newer than the kernels",
        "onnxruntime",
        "g (float[1,3,8,8] x) => (float[1,3,1,1] y) { [pool] y = GlobalLpPool <p=2> (x) }",
        opset=22,
    ),
    Fault(
        "sequences",
        "tensorrt-rtx",
        "g (float[3,4] x) => (float[3,4] y) "
        "{ [split] q = SplitToSequence (x) [join] a = ConcatFromSequence <axis=0> (q) [act] y = Relu (a) }",
    ),
    Fault(
        "branches of unequal rank",
        "onnxruntime-web@webgl",
        """g (float[2,3] x) => (float[r] y) <bool c = {1}> { [cond] h = If (c) <
            then_branch = t () => (float[6] a) { s = Constant <value_ints=[6]> () a = Reshape (x, s) },
            else_branch = e () => (float[2,3] b) { b = Identity (x) }> [act] y = Relu (h) }""",
    ),
    Fault(
        "a dimension without bounds",
        "tensorrt-rtx",
        "g (float[batch,3,h,8] x) => (float[batch,3,h,8] y) { [act] y = Relu (x) }",
        options=("--strict",),
    ),
    Fault(
        "an operator that the target lacks",
        "mnn",
        "g (float[2,4,5] x) => (float[2,4,5] y) { [gn] y = GroupNormalization <num_groups=2> (x, s, b) }",
        {"s": floats(4), "b": floats(4)},
        opset=21,
    ),
    Fault(
        "Einsum",
        "onnxruntime-web@webgl",
        'g (float[2,3,4] x, float[2,4,5] z) => (float[3,2,5] y) { [ein] y = Einsum <equation="bij,bjk->ibk"> (x, z) }',
    ),
    Fault(
        "another runtime's fused operators",
        "tensorrt-rtx",
        """g (float[2,4] x) => (float[2,3] y) { [gelu] h = com.microsoft.QuickGelu <alpha=1.702> (x)
            [mm] y = com.microsoft.FusedMatMul <alpha=0.5> (h, w) }""",
        {"w": floats(4, 3)},
        imports=', "com.microsoft": 1',
    ),
    Fault(
        "an attribute in a form that the target lacks",
        "openvino",
        """g (float[1,2,4,4] x) => (float[1,2,8,8] y)
            { [up] y = Resize <mode="linear", coordinate_transformation_mode="half_pixel_symmetric"> (x, , , s) }""",
        {"s": np.array([1, 2, 8, 8])},
        opset=19,
    ),
    Fault(
        "two nodes of one name",
        "onnxruntime",
        "g (float[2,4] x) => (float[2,4] y) { [same] a = Exp (x) [same] b = Neg (a) [other] y = Tanh (b) }",
    ),
    Fault(
        "a function of the model's own",
        "coreml",
        """g (float[2,4] x) => (float[2,4] y) { [gate] y = my.lib.Gate (x) }
            <domain: "my.lib", opset_import: ["": 17]> Gate (a) => (b) { s = Sigmoid (a) b = Mul (a, s) }""",
        imports=', "my.lib": 1',
    ),
]


@pytest.fixture(scope="module", autouse=True)
def pool():
    """The targets' processes, shared by the whole module."""
    with workers() as found:
        yield found


@pytest.fixture
def deploykit(capsys):
    """The command line in this process: exit code and JSON document."""

    def call(*words: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = typer.main.get_command(app.app).main([*map(str, words), "--json"], "deploykit", standalone_mode=False)
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_hint_followed_to_the_letter_makes_check_pass(fault, tmp_path, deploykit):
    text = f'<ir_version: 10, opset_import: ["": {fault.opset}{fault.imports}]>\n{fault.text}'
    made = parser.parse_model(text)
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in fault.constants.items())
    path = tmp_path / "a model.onnx"
    onnx.save(made, path)

    code, report = deploykit("check", path, "--target", fault.target, *fault.options)
    assert code == 1
    first = next(finding for finding in report["findings"] if finding["severity"] == "error")
    words = shlex.split(COMMAND.search(first["hint"]).group(1))
    assert words[0] == "deploykit"

    code, report = deploykit(*words[1:])
    assert code == 0, report["findings"]
    if report["artifact"] is None:  # the command itself is the check, with what was missing
        again = [*words[1:], *fault.options]
    else:
        again = ["check", report["artifact"]["path"], "--target", fault.target, *fault.options]
        assert Path(report["artifact"]["path"]) != path
    code, report = deploykit(*again)
    assert code == 0, report["findings"]
    assert [row["verdict"] for row in report["metrics"]["targets"]] == ["runs whole"]


def test_there_are_twelve_and_they_differ() -> None:
    assert len({fault.text for fault in FAULTS}) >= 12
