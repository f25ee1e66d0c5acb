from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from lite_models import batch, dense

from deploykit.converters.litert import flatbuffer
from deploykit.converters.litert.finishing import Made, finish
from deploykit.converters.litert.micro import Planned, _placed, added_by, arena, write_beside
from deploykit.converters.litert.options import settings_of
from deploykit.data.request import data_request

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("CONV_2D", "AddConv2D"),
        ("DEPTHWISE_CONV_2D", "AddDepthwiseConv2D"),
        ("FULLY_CONNECTED", "AddFullyConnected"),
        ("MAX_POOL_2D", "AddMaxPool2D"),
        ("RELU6", "AddRelu6"),
        ("PADV2", "AddPadV2"),
        ("SPLIT_V", "AddSplitV"),
        ("CUMSUM", "AddCumSum"),
        ("BATCH_TO_SPACE_ND", "AddBatchToSpaceNd"),
        ("UNIDIRECTIONAL_SEQUENCE_LSTM", "AddUnidirectionalSequenceLSTM"),
        ("RFFT2D", None),
        ("FlexErf", None),
    ],
)
def test_operators_are_called_as_the_resolver_calls_them(operator: str, call: str | None) -> None:
    assert added_by(operator) == call


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_array_compiles_and_holds_the_files_bytes(tmp_path: Path) -> None:
    lite, file = dense(), tmp_path / "my-net.tflite"
    calib = tmp_path / "calib.npz"
    np.savez(calib, x=batch(64))
    settings = settings_of({"precision": "int8", "io": "int8", "micro": "true"}, calibrated=True)
    facts = finish(
        Made(lite.content, lite.inputs, lite.outputs), file, settings, "fp32", data_request(str(calib), "calibration")
    )
    assert facts["companions"] == ["my-net.cc", "my-net.h"]
    assert facts["metrics"]["micro"]["operators"] == ["AddFullyConnected"]
    source = tmp_path / "my-net.cc"
    program = tmp_path / "main.c"
    program.write_text(
        '#include <stdio.h>\n#include "my-net.h"\n'
        "int main(void) { fwrite(g_my_net_model, 1, g_my_net_model_len, stdout);\n"
        " return ((unsigned long)g_my_net_model) % 16; }\n"
    )
    binary = tmp_path / "main"
    command = ["gcc", "-std=c11", "-Wall", "-Werror", "-x", "c", str(source), str(program), "-o", str(binary)]
    subprocess.run(command, check=True, capture_output=True)
    ran = subprocess.run([str(binary)], capture_output=True, check=True)  # exit code: how far from 16 bytes
    assert ran.stdout == file.read_bytes()


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_header_registers_every_operator(tmp_path: Path) -> None:
    lite = dense()
    model = flatbuffer.parse(lite.content, "m")
    write_beside(tmp_path / "net.tflite", lite.content, model)
    program = tmp_path / "main.cpp"
    program.write_text(
        '#include "net.h"\nstruct Resolver { int n = 0; int AddFullyConnected() { ++n; return 0; } };\n'
        "int main() { Resolver r; return net_add_operators(r) && r.n == NET_OPERATORS ? 0 : 1; }\n"
    )
    binary = tmp_path / "main"
    command = ["g++", "-std=c++11", "-Wall", "-Werror", str(tmp_path / "net.cc"), str(program), "-o", str(binary)]
    subprocess.run(command, check=True, capture_output=True)
    assert subprocess.run([str(binary)], check=False).returncode == 0


def test_an_operator_that_micro_lacks_is_an_error(tmp_path: Path) -> None:
    model = flatbuffer.parse(dense().content, "m")
    model.operatorCodes[0].builtinCode = schema.BuiltinOperator.RFFT2D
    names, findings, _ = write_beside(tmp_path / "net.tflite", b"", model)
    assert not names
    assert [(f.code, f.severity, f.op) for f in findings] == [("DK567", "error", "RFFT2D")]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("precision", ["fp16", "int8-dynamic"])
def test_forms_that_micro_kernels_do_not_take_are_errors(tmp_path: Path, precision: str) -> None:
    lite = dense(hidden=64)
    settings = settings_of({"precision": precision, "micro": "true"}, calibrated=False)
    facts = finish(Made(lite.content, lite.inputs, lite.outputs), tmp_path / "m.tflite", settings, "fp32")
    assert {finding["code"] for finding in facts["findings"]} == {"DK567"}


def test_activations_are_placed_by_the_greedy_planner() -> None:
    # Three in a chain: the first and the third never live together.
    assert _placed([Planned(128, -1, 0), Planned(64, 0, 1), Planned(96, 1, 2)]) == 128 + 64
    # All at once.
    assert _placed([Planned(32, 0, 3), Planned(16, 1, 2), Planned(48, 0, 3)]) == 96
    # A gap between two that live on is filled.
    assert _placed([Planned(64, 0, 4), Planned(48, 0, 1), Planned(16, 0, 4), Planned(32, 2, 3)]) == 128


def test_the_arena_of_a_model_is_its_largest_pair_of_layers() -> None:
    activations, kept = arena(flatbuffer.parse(dense().content, "m"))
    # float32 [1, 24], [1, 40] and [1, 5], each up to a multiple of 16 bytes.
    assert activations == 96 + 160
    assert kept > 7 * 16


def test_what_a_microcontroller_does_not_need_is_not_in_the_file(tmp_path: Path) -> None:
    lite = dense()
    made = Made(lite.content, lite.inputs, lite.outputs, names=lambda content: {"some/onnx/name": "inner/relu"})
    for micro in ("true", "false"):
        finish(made, tmp_path / f"{micro}.tflite", settings_of({"micro": micro}, calibrated=False), "fp32")
    assert b"some/onnx/name" not in (tmp_path / "true.tflite").read_bytes()
    assert b"some/onnx/name" in (tmp_path / "false.tflite").read_bytes()
    assert re.search(r"_model_len = \d+;", (tmp_path / "true.cc").read_text())
