"""Random integers are what the graph takes: proven by running it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser
import onnxruntime
import pytest

from deploykit.data import DimRange, open_data, parse_input
from deploykit.data.vocabulary import Values, integer_values

if TYPE_CHECKING:
    from pathlib import Path


def model(folder: Path, text: str) -> Path:
    header = '<ir_version: 9, opset_import: ["" : 18]>\n'
    onnx.save(onnx.parser.parse_model(header + text), str(folder / "m.onnx"))
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Gather <axis = 1> (table, x)", Values(0, 4)),
        ("u = Unsqueeze (x, axis) y = Gather (table, u)", Values(0, 2)),
        ("y = GatherElements <axis = 0> (table, x)", Values(0, 2)),
        ("y = OneHot (x, depth, on_off)", Values(0, 6)),
        ("i = Cast <to = 6> (x) j = Cast <to = 7> (i) y = Gather (table, j)", Values(0, 2)),
        ("y = Gather (table, x) z = Gather <axis = 1> (table, x)", Values(0, 2)),
        ("y = Equal (x, rates)", Values(8, 16, (8, 16))),
        ("k = Constant <value_int = 16000> () y = Equal (k, x)", Values(16000, 16000, (16000,))),
        ("m = Equal (x, rates) y = Gather (table, x)", Values(0, 2)),
        ("y = ConstantOfShape (x)", Values(1, 1)),
        ("y = Cast <to = 1> (x)", None),
        ("y = Add (x, x)", None),
    ],
)
def test_what_the_graph_tells(tmp_path: Path, body: str, expected: Values | None) -> None:
    outputs = "float[3] y"
    path = model(
        tmp_path,
        f"""m (int64[3] x) => ({outputs})
        <float[3,5] table = {{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}}, int64[1] axis = {{0}}, int64 depth = {{7}},
         float[2] on_off = {{0, 1}}, int64[2] rates = {{8, 16}}> {{ {body} }}""",
    )
    assert integer_values(path, ("x",)).get("x") == expected


def test_narrow_integers_that_become_numbers_have_their_whole_range(tmp_path: Path) -> None:
    path = model(tmp_path, "m (uint8[3] x, int16[3] w) => (float[3] y) { a = Cast <to=1> (x) y = Cast <to=1> (w) }")
    assert integer_values(path, ("x", "w")) == {"x": Values(0, 255), "w": Values(-32768, 32767)}


def test_values_inside_branches_count(tmp_path: Path) -> None:
    path = model(
        tmp_path,
        """m (bool c, int64[2] x) => (float[2] y) <float[4] table = {1, 2, 3, 4}> {
            y = If (c) <then_branch = a () => (float[2] p) { p = Gather (table, x) },
                        else_branch = b () => (float[2] q) { q = Gather (table, x) }>
        }""",
    )
    assert integer_values(path, ("x",)) == {"x": Values(0, 3)}


def test_random_data_says_what_it_drew(tmp_path: Path) -> None:
    path = model(tmp_path, "m (int64[n] x) => (float[n] y) <float[4] table = {1, 2, 3, 4}> { y = Gather (table, x) }")
    dims = {"n": DimRange("n", 2, 5)}
    data = open_data("random", (parse_input("x:int64[n]"),), purpose="parity", model=path, dims=dims)
    assert [finding.message for finding in data.findings] == ["random:0: integers for input 'x' are 0..3"]
    assert {int(value) for sample in data for value in sample.feeds["x"]} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("name", "inputs", "dims"),
    [
        ("magika/model.onnx", ["bytes:int32[n,2048]"], {}),
        ("attacut/attacut-sc.onnx", ["input:int64[1,2,seq_len]"], {}),
        (
            "silero_vad/silero_vad.onnx",
            ["input:float32[batch,samples]", "state:float32[2,batch,128]", "sr:int64[]"],
            {"samples": DimRange("samples", 576, 576)},
        ),
    ],
)
def test_real_models_run_on_it(real: Path, name: str, inputs: list[str], dims: dict[str, DimRange]) -> None:
    specs = tuple(parse_input(text) for text in inputs)
    session = onnxruntime.InferenceSession(str(real / name))
    for sample in open_data(None, specs, purpose="parity", samples=4, dims=dims, model=real / name):
        session.run(None, sample.feeds)
