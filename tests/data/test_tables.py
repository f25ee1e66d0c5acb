from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from deploykit.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploykit.data import Dataset


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_columns_feed_the_inputs_of_their_names(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = written(tmp_path / "t.csv", '\ufeffage,city,y\n31,Köln,1\n40.5,"Sankt, Pölten",0\n')
    data = opened(path, "age:float32[n,1]", "city:string[n,1]", purpose="accuracy")
    samples = list(data)
    assert data.total == 2
    assert [sample.feeds["age"].tolist() for sample in samples] == [[[31.0]], [[40.5]]]
    assert [sample.feeds["city"].tolist() for sample in samples] == [[["Köln"]], [["Sankt, Pölten"]]]
    assert [sample.label for sample in samples] == [1, 0]
    assert samples[0].feeds["age"].dtype == np.float32
    assert data.findings == []


def test_a_cell_may_hold_a_list(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = written(tmp_path / "t.csv", 'ids,y\n"[1, 2, 3]",a\n"[4]",b\n')
    samples = list(opened(path, "ids:int64[n,length]"))
    assert [sample.feeds["ids"].tolist() for sample in samples] == [[[1, 2, 3]], [[4]]]
    assert [sample.label for sample in samples] == ["a", "b"]


def test_jsonl_rows_are_samples(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    rows = [{"x": [[1, 2], [3, 4]], "flag": True, "y": [0.5, 1]}, {"x": [[[5, 6]]], "flag": False, "y": [1, 0]}]
    path = written(tmp_path / "t.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n\n")
    data = opened(path, "x:float32[n,t,2]", "flag:bool[n]", purpose="accuracy")
    samples = list(data)
    assert [sample.feeds["x"].tolist() for sample in samples] == [[[[1, 2], [3, 4]]], [[[5, 6]]]]
    assert [sample.feeds["flag"].tolist() for sample in samples] == [[True], [False]]
    np.testing.assert_array_equal(samples[1].label, [1, 0])


def test_columns_without_an_input_are_left_out_with_a_note(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    data = opened(written(tmp_path / "t.csv", "id,x\n1,2\n"), "x:float32[n]")
    assert [list(sample.feeds) for sample in data] == [["x"]]
    assert [finding.code for finding in data.findings] == ["DK325"]


def test_a_misspelt_column_is_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match="'widht'") as caught:
        opened(written(tmp_path / "t.csv", "widht,height\n1,2\n"), "width:float32[n]", "height:float32[n]")
    assert "'width'" in caught.value.hint


def test_samples_are_spread_over_the_rows(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    path = written(tmp_path / "t.csv", "x\n" + "".join(f"{row}\n" for row in range(100)))
    data = opened(path, "x:float32[n]", samples=4)
    assert [float(sample.feeds["x"][0]) for sample in data] == [12, 37, 62, 87]
    assert data.total == 4


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "x\nabc\n", "column 'x' in row 0"),
        ("t.csv", "x,y\n,1\n", "is empty"),
        ("t.csv", "x\n1,2\n", "more cells"),
        ("t.csv", "x,y\n1.5,1\n\n[1,2\n", "column 'x'|more cells"),
        ("t.jsonl", "[1]\n", "line 1 is not an object"),
        ("t.jsonl", '{"x": 1\n', "cannot read t.jsonl"),
        ("t.jsonl", '{"x": [[1], [1, 2]]}\n', "column 'x' in row 0"),
        ("t.jsonl", '{"x": {"a": 1}}\n', "column 'x' in row 0"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, opened: Callable[..., Dataset], name: str, text: str, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        list(opened(written(tmp_path / name, text), "x:float32[n]"))


def test_other_encodings_are_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    (tmp_path / "t.csv").write_bytes("x\nKöln\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"cannot read t\.csv"):
        opened(tmp_path / "t.csv", "x:string[n]")


def test_a_table_without_rows_is_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match="no samples"):
        opened(written(tmp_path / "t.csv", "x,y\n"), "x:float32[n]")


def test_nan_in_a_table_is_refused_for_calibration(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    data = opened(written(tmp_path / "t.csv", "x\n1\nnan\n"), "x:float32[n]", purpose="calibration")
    with pytest.raises(DataError, match=r"row 1 of t\.csv has 1 of 1 values"):
        list(data)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_pyarrow_names_the_command(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingDependencyError) as caught:
        opened(tmp_path / "t.parquet", "x:float32[n]")
    assert caught.value.hint == "pip install pyarrow"
    assert caught.value.exit_code == 3


def test_parquet_rows_are_samples(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
    parquet.write_table(table, tmp_path / "t.parquet")
    data = opened(tmp_path / "t.parquet", "x:float32[n,2]", purpose="accuracy")
    assert [(sample.feeds["x"].tolist(), sample.label) for sample in data] == [([[1, 2]], 0), ([[3, 4]], 1)]
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"cannot read t\.parquet"):
        opened(tmp_path / "t.parquet", "x:float32[n,2]")
