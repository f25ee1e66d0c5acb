"""The commands of docs/quantization.md, run in its order on a small classifier; each does what its text says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from deploykit.evaluation import METRICS
from deploykit.precision import PRECISIONS

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "quantization.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S) for line in block.splitlines() if line.strip()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shared_model):
    """The files that the page speaks of: a classifier, inputs of it, and others with labels."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "model.onnx").write_bytes(shared_model("digits/digits_cnn.onnx").read_bytes())
    calib, test = (np.load(shared_model(f"digits/digits_cnn_{part}.npz")) for part in ("calib", "test"))
    np.savez(folder / "calib.npz", x=calib["x"])
    np.savez(folder / "test.npz", x=test["x"][:100], y=test["y"][:100])
    return folder


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page_run(line, folder, deploykit_cli):
    program, *words = shlex.split(line)
    assert program == "deploykit"
    done = deploykit_cli(*words, cwd=folder)
    assert done.code == 0, f"{line}\n{done.stdout}{done.stderr}"
    if "-o" in words:
        onnx.checker.check_model(folder / words[words.index("-o") + 1])
    if "--report" in words:
        assert (folder / words[words.index("--report") + 1]).stat().st_size > 1000


def test_the_page_has_a_command_for_every_precision_and_a_row_for_every_metric():
    shown = {word for line in COMMANDS for word in re.findall(r"--precision (\S+)", line)}
    assert set(PRECISIONS) - shown <= {"bf16", "mixed"}  # of one form with fp16, and with int8 and a budget
    assert all(f"| `{name}` |" in TEXT for name in (*PRECISIONS, *METRICS) if name not in ("fp16", "bf16"))


def test_options_of_metrics_in_the_text_are_taken():
    from deploykit.evaluation import make_metric

    named = re.findall(r"`((?:top1|cer|map|miou|perplexity)[:,][^`]+)`", TEXT)
    assert len(named) >= 5
    for name in named:
        make_metric(name)


def cell(value, sqnr, share=1.0, **more):
    facts = {"value": value, "unit": "%", "higher_is_better": True, "sqnr_db": sqnr, "int8_macs": share}
    return {**facts, "size_ratio": 0.3, "took": {"said": more}}


def test_the_summary_names_the_peers_that_are_better_beyond_chance(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "docs"))
    from quantization_page import page

    cells = {
        "float": cell(99.0, None, 0.0),
        "int8 auto": cell(90.0, 15.0, refused="DK401: SQNR 15 dB"),
        "onnxruntime minmax U8S8": cell(98.0, 30.0),
        "onnxruntime entropy U8S8": cell(95.0, 25.0),
        "NNCF PTQ": cell(98.5, 31.0, share=0.5),  # better, but with half of the work left in float
        "NNCF accuracy control": {"failed": "TypeError: no"},
    }
    p = {"onnxruntime minmax U8S8": 0.01, "onnxruntime entropy U8S8": 0.2, "NNCF PTQ": 0.001}
    data, text = tmp_path / "data.json", tmp_path / "text.md"
    data.write_text(json.dumps({"m": {"metric": "top1", "data": "d", "cells": cells, "paired": {"int8 auto": p}}}))
    text.write_text("<!-- table -->\n")
    lines = page(text, data).splitlines()
    assert lines[2] == (
        "| m | top1 | 99 | 90 (refused, 100%) |  |  | 98 (100%) | 98.5 (50%) | onnxruntime minmax U8S8 |"
    )
    assert "| NNCF accuracy control | failed: TypeError: no | | | | | |" in lines
    cells["int8 auto"] = cell(99.0, 40.0)  # nothing is lost
    data.write_text(json.dumps({"m": {"metric": "top1", "data": "d", "cells": cells, "paired": {"int8 auto": p}}}))
    assert page(text, data).splitlines()[2].endswith("| - |")
