from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from deploykit.data import digest_of
from deploykit.errors import DataError, InvalidFileError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_has_its_plain_digest_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"content")
    expected = hashlib.sha256(b"content").hexdigest()
    assert digest_of("a.npz", tmp_path) == expected
    assert digest_of(str(tmp_path / "a.npz"), tmp_path.parent) == expected


def test_a_folder_counts_names_and_content(tmp_path: Path) -> None:
    (tmp_path / "one" / "cat").mkdir(parents=True)
    (tmp_path / "one" / "cat" / "a.png").write_bytes(b"a")
    first = digest_of("one", tmp_path)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert digest_of("two", tmp_path) == first
    (tmp_path / "two" / "cat" / "a.png").rename(tmp_path / "two" / "a.png")
    assert digest_of("two", tmp_path) != first
    (tmp_path / "one" / "cat" / "a.png").write_bytes(b"b")
    assert digest_of("one", tmp_path) != first


def test_random_and_nothing_differ_by_seed(tmp_path: Path) -> None:
    found = {digest_of(source, tmp_path) for source in ("random", "random:1", "random:2", None)}
    assert len(found) == 4


def test_a_callable_counts_its_code_and_what_it_yields(tmp_path: Path) -> None:
    code = "import numpy as np\ndef feeds():\n    x = np.load({path!r})\n    yield from ({{'x': row}} for row in x)\n"
    (tmp_path / "own.py").write_text(code.format(path=str(tmp_path / "x.npy")))
    np.save(tmp_path / "x.npy", np.arange(4.0))
    first = digest_of("own.py:feeds", tmp_path)
    assert digest_of("own.py:feeds", tmp_path) == first
    np.save(tmp_path / "x.npy", np.arange(4.0) + 1)
    second = digest_of("own.py:feeds", tmp_path)
    assert second != first
    (tmp_path / "own.py").write_text((tmp_path / "own.py").read_text() + "# changed\n")
    assert digest_of("own.py:feeds", tmp_path) not in {first, second}


def test_an_endless_callable_counts_its_first_samples(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def feeds():\n    while True:\n        yield {'x': [1.0]}\n")
    assert digest_of("own.py:feeds", tmp_path, samples=3) != digest_of("own.py:feeds", tmp_path, samples=4)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError):
        digest_of("absent.npz", tmp_path)
    (tmp_path / "own.py").write_text("def feeds():\n    raise OSError('gone')\n")
    with pytest.raises(DataError, match="gone"):
        digest_of("own.py:feeds", tmp_path)
