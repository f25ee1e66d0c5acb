"""Operators of the user's own: named with their line when they have no ONNX form, translated when there is one."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import deploykit
from deploykit.errors import ModelError, UsageError, VendorError
from deploykit.isolation import workers

MODULE = """
import torch
from torch import nn


@torch.library.custom_op("mine::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@scale.register_fake
def _(x, factor):
    return torch.empty_like(x)


class Net(nn.Module):
    def forward(self, x):
        return torch.ops.mine.scale(x + 1, 3.0)
"""
TRANSLATIONS = """
from onnxscript import opset20 as op


def scale(x, factor: float):
    return op.Mul(x, op.Constant(value_float=factor))


def symbolic(g, x, factor):
    return g.op("Mul", x, g.op("Cast", factor, to_i=1))


TRANSLATIONS = {"mine::scale": scale}
SYMBOLICS = {"mine::scale": symbolic}
"""
WRONG = TRANSLATIONS.replace("op.Mul", "op.Add").replace('"Mul"', '"Add"')


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.fixture
def source(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "net.py").write_text(MODULE)
    (tmp_path / "out").mkdir()
    return f"{tmp_path / 'in' / 'net.py'}:Net"


def translations(tmp_path, text):
    file = tmp_path / "in" / "translations.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize("exporter", ["auto", "torchscript"])
def test_the_operator_is_named_with_its_line_and_the_way_to_add_it(source, tmp_path, exporter):
    with pytest.raises(VendorError) as raised:
        deploykit.export(source, output=tmp_path / "out" / "x.onnx", inputs=["x:float32[n,4]"], exporter=exporter)
    error = raised.value
    assert (error.code, error.op) == ("DK689", "mine::scale")
    assert "net.py:18 in forward" in error.context[0]
    assert "--custom-ops translations.py" in error.hint
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_translation_is_used_and_proven(source, tmp_path, exporter):
    out = tmp_path / "out" / "x.onnx"
    table = translations(tmp_path, TRANSLATIONS)
    report = deploykit.export(source, output=out, inputs=["x:float32[n,4]"], exporter=exporter, custom_ops=table)
    assert report.exit_code == 0
    assert report.metrics["exporter"] == exporter
    assert {node.domain for node in onnx.load(out).graph.node} <= {"", "ai.onnx"}
    x = np.ones((2, 4), np.float32)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x * 6)


def test_a_wrong_translation_fails_the_proof(source, tmp_path):
    table = translations(tmp_path, WRONG)
    report = deploykit.export(source, output=tmp_path / "out" / "x.onnx", inputs=["x:float32[n,4]"], custom_ops=[table])
    assert report.exit_code == 1
    assert "DK625" in {finding.code for finding in report.findings}
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("text", "said"),
    [("x = 1\n", "no table"), ('TRANSLATIONS = {"nobody::knows": print}\n', "no such PyTorch operator")],
)
def test_files_without_a_table_or_with_an_unknown_operator(source, tmp_path, text, said):
    table = translations(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        deploykit.export(source, output=tmp_path / "out" / "x.onnx", inputs=["x:float32[n,4]"], custom_ops=table)
    assert raised.value.code == "DK687"
    assert said in raised.value.message


def test_translations_belong_to_pytorch(tmp_path):
    table = tmp_path / "translations.py"
    table.write_text(TRANSLATIONS)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {y = Abs(x)}'
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError) as raised:
        deploykit.export(tmp_path / "m.onnx", output=tmp_path / "o.onnx", custom_ops=table)
    assert raised.value.code == "DK604"


CONTRIB = """
import onnxscript
from onnx.defs import OpSchema
from onnxscript import opset20 as op

tensor = lambda name: OpSchema.FormalParameter(name, "tensor(float)")
schema = OpSchema("NegPos", "ai.onnx.contrib", 1, inputs=[tensor("x")], outputs=[tensor("low"), tensor("high")])
neg_pos = onnxscript.values.Op(onnxscript.values.Opset("ai.onnx.contrib", 1), "NegPos", schema)


def scale(x, factor: float):
    negative, positive = neg_pos(x)
    return op.Mul(op.Add(negative, positive), op.Constant(value_float=factor))


TRANSLATIONS = {"mine::scale": scale}
"""


def test_an_operator_outside_the_standard_is_proven_with_its_library(source, tmp_path):
    library = pytest.importorskip("onnxruntime_extensions").get_library_path()
    table = translations(tmp_path, CONTRIB)
    out = tmp_path / "out" / "x.onnx"
    with pytest.raises(VendorError) as raised:
        deploykit.export(source, output=out, inputs=["x:float32[n,4]"], custom_ops=[table])
    assert "--custom-ops" in raised.value.hint
    report = deploykit.export(source, output=out, inputs=["x:float32[n,4]"], custom_ops=[table, library])
    assert report.exit_code == 0, report.findings
    assert "ai.onnx.contrib" in {node.domain for node in onnx.load(out).graph.node}
    assert report.metrics["parity"]["samples"] >= 6


def test_a_translation_that_fails_is_named(source, tmp_path):
    table = translations(tmp_path, TRANSLATIONS.replace("op.Mul", "op.NoSuchOperator").partition("SYMBOLICS")[0])
    with pytest.raises(ModelError) as raised:
        deploykit.export(source, output=tmp_path / "out" / "x.onnx", inputs=["x:float32[n,4]"], custom_ops=table)
    assert (raised.value.code, raised.value.op) == ("DK687", "mine::scale")
    assert "translations.py" in raised.value.context[0]


def test_convert_takes_the_translations_too(source, tmp_path):
    pytest.importorskip("openvino")
    table = translations(tmp_path, TRANSLATIONS)
    out = tmp_path / "out" / "x.xml"
    report = deploykit.convert(source, to="openvino", output=out, inputs=["x:float32[n,4]"], custom_ops=[table])
    assert report.exit_code == 0, report.findings
    assert out.exists()
