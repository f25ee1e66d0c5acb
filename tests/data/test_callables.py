from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from deploykit.data.dtypes import numpy_dtype
from deploykit.errors import DataError, InvalidFileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploykit.data import Dataset

CODE = """
    import numpy as np

    def one(i):
        return np.full((1, 2), i, np.float32)

    def feeds():
        for i in range(5):
            yield {"x": one(i)}

    def pairs():
        for i in range(5):
            yield {"x": one(i)}, i * 10

    def with_label():
        return [{"x": one(i), "y": i} for i in range(10)]

    def endless():
        i = 0
        while True:
            yield {"x": one(i)}
            i += 1

    def nothing():
        return iter(())

    def failing():
        yield {"x": one(0)}
        raise KeyError("row 1")

    def not_feeds():
        yield [1, 2]

    def returns_none():
        pass

    def wrong_name():
        yield {"z": one(0)}

    def ragged():
        yield {"x": [[1.0, 2.0], [3.0]]}

    NUMBER = 3
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "my data.py"
    path.write_text(textwrap.dedent(CODE))
    return path


@pytest.fixture
def load(code: Path, opened: Callable[..., Dataset]) -> Callable[..., Dataset]:
    return lambda name, **options: opened(f"{code}:{name}", "x:float32[n,2]", **options)


def values(data: Dataset) -> list[int]:
    return [int(sample.feeds["x"][0, 0]) for sample in data]


def test_a_generator_gives_feeds_again_and_again(load: Callable[..., Dataset]) -> None:
    data = load("feeds")
    assert data.total is None
    assert values(data) == values(data) == [0, 1, 2, 3, 4]
    assert data.description == "my data.py:feeds"


def test_labels_come_in_pairs_or_under_their_name(load: Callable[..., Dataset]) -> None:
    assert [sample.label for sample in load("pairs", purpose="accuracy")] == [0, 10, 20, 30, 40]
    assert [sample.label for sample in load("with_label", purpose="accuracy", samples=2)] == [2, 7]


def test_an_endless_generator_stops_at_the_samples(load: Callable[..., Dataset]) -> None:
    assert values(load("endless", samples=3)) == [0, 1, 2]


def test_no_samples_are_refused(load: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match="gives no samples"):
        list(load("nothing"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("failing", "failed: KeyError: 'row 1'"),
        ("not_feeds", "yields list as sample 0"),
        ("returns_none", "returns NoneType"),
        ("wrong_name", "'z'|nothing for input 'x'"),
        ("ragged", "not an array"),
        ("NUMBER", "a callable is needed"),
        ("absent", "has no 'absent'"),
    ],
)
def test_what_the_code_does_wrong_is_said(load: Callable[..., Dataset], name: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        list(load(name))


def test_the_line_that_failed_is_shown(load: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError) as caught:
        list(load("failing"))
    assert 'raise KeyError("row 1")' in caught.value.context[0]


def test_a_module_in_the_current_folder(
    tmp_path: Path, opened: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_data_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "feeds.py").write_text(textwrap.dedent(CODE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert values(opened("own_data_package.feeds:feeds", "x:float32[n,2]")) == [0, 1, 2, 3, 4]


def test_modules_and_files_that_are_not_there(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match="no module 'no_such_module_anywhere'"):
        opened("no_such_module_anywhere.data:feeds", "x:float32[n]")
    with pytest.raises(InvalidFileError, match="no such Python file"):
        opened(f"{tmp_path}/absent.py:feeds", "x:float32[n]")


def test_a_file_that_does_not_import_is_named(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    (tmp_path / "bad.py").write_text("import no_such_module_anywhere\n")
    with pytest.raises(DataError, match=r"bad\.py failed: ModuleNotFoundError"):
        opened(f"{tmp_path}/bad.py:feeds", "x:float32[n]")


def test_code_that_prints_or_exits_neither_spoils_stdout_nor_ends_us(tmp_path: Path, opened, capsys) -> None:
    (tmp_path / "loud.py").write_text(
        "import sys\nprint('importing')\n"
        "def feeds():\n    print('working')\n    yield {'x': [1.0]}\n    sys.exit(3)\n"
        "def leave(): sys.exit(0)\n"
    )
    samples = iter(opened(f"{tmp_path}/loud.py:feeds", "x:float32[n]"))
    with pytest.raises(DataError, match="SystemExit: 3") as caught:
        list(samples)
    assert caught.value.code == "DK306"
    with pytest.raises(DataError, match="SystemExit: 0"):
        list(opened(f"{tmp_path}/loud.py:leave", "x:float32[n]"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "importing" in captured.err
    assert "working" in captured.err


@pytest.mark.parametrize("kind", ["seq(float)", "undefined"])
def test_an_input_that_is_no_tensor_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match="no array holds") as caught:
        numpy_dtype(kind)
    assert caught.value.code == "DK314"
