"""A user's own description of a toolchain is a target; one that is wrong says where."""

from __future__ import annotations

import onnx
import pytest

import deploykit
from deploykit import toolchain
from deploykit.errors import ConfigError, ExitCode
from deploykit.target import target_names

CNN = """<ir_version: 9, opset_import: ["" : 17]>
line (float[n,4] x) => (float[n,4] y) { y = Relu (x) }"""
OWN = """
title = "My NPU"
makes = "{stem}.npu"
tool = "the compiler of my NPU"
sources = ["https://example.com/npu"]
[needs]
static = true
[[step]]
run = ["npuc", "{model}", "-o", "{stem}.npu"]
"""


def test_a_users_own_description_is_a_target(monkeypatch, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/my-npu.toml").write_text(OWN)
    monkeypatch.setenv(toolchain.OWN, str(tmp_path / "own"))
    assert "my-npu" in target_names()
    onnx.save(onnx.parser.parse_model(CNN), tmp_path / "model.onnx")
    report = deploykit.convert(tmp_path / "model.onnx", to="my-npu", output=tmp_path / "out", dims={"n": [2, 2]})
    assert report.exit_code == ExitCode.UNAVAILABLE
    assert "npuc model.onnx -o model.npu" in (tmp_path / "out/run.sh").read_text()
    assert report.artifact.inputs[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("sources = [", "source = ["), "source"),
        (("static = true", "statick = true"), "statick"),
        (("{model}", "{modell}"), "{modell}"),
        (('sources = ["https://example.com/npu"]', "sources = []"), "source"),
        (("[[step]]", "[[stepp]]"), "stepp"),
    ],
)
def test_a_description_that_is_wrong_says_where(tmp_path, change, told):
    file = tmp_path / "my-npu.toml"
    file.write_text(OWN.replace(*change))
    with pytest.raises(ConfigError) as caught:
        toolchain.read(file)
    assert caught.value.code == "DK594"
    assert told in caught.value.message
