"""Damaged and hostile files, and memory."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from deploykit.data.npz_file import open_npy, open_npz
from deploykit.errors import DataError, InvalidFileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploykit.data import Dataset


def npy_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('unpickled')",))


def test_pickled_objects_are_never_loaded(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "bad.npz", x=np.array([Bomb()], object))
    with pytest.raises(DataError, match="pickled") as caught:
        opened(tmp_path / "bad.npz", "x:float32[n]")
    assert caught.value.code == "DK302"


def test_a_truncated_file_is_refused_at_any_length(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(100.0))
    content = (tmp_path / "x.npz").read_bytes()
    for length in (1, 10, 40, 200, len(content) // 2, len(content) - 1):
        (tmp_path / "cut.npz").write_bytes(content[:length])
        with pytest.raises(DataError, match=r"cut\.npz"):
            open_npz(tmp_path / "cut.npz")


def test_an_empty_or_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.npz").touch()
    for path in (tmp_path / "empty.npz", tmp_path / "absent.npz", tmp_path):
        with pytest.raises(InvalidFileError):
            open_npz(path)


def test_text_under_the_name_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_text("not an archive")
    with pytest.raises(DataError, match=r"x\.npz"):
        open_npz(tmp_path / "x.npz")


def test_a_header_that_declares_more_than_there_is_is_refused(tmp_path: Path) -> None:
    lying = npy_bytes(np.zeros(8)).replace(b"(8,)", b"(9,)")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", lying)
    with pytest.raises(DataError, match="declares 72 bytes and has 64"):
        open_npz(tmp_path / "x.npz")
    (tmp_path / "x.npy").write_bytes(lying)
    with pytest.raises(DataError, match="declares 72 bytes and has 64"):
        open_npy(tmp_path / "x.npy")


@pytest.mark.parametrize("header", [b"(((((", b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", b"\xff\xfe"])
def test_a_hostile_header_is_refused(tmp_path: Path, header: bytes) -> None:
    padded = header.ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded)
    with pytest.raises(DataError, match=r"x\.npz"):
        open_npz(tmp_path / "x.npz")


def test_values_damaged_after_the_header_are_noticed(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[1000:1200] = bytes(200)
    (tmp_path / "x.npz").write_bytes(content)
    data = opened(tmp_path / "x.npz", "x:float32[n,40]")
    with pytest.raises(DataError, match="array 'x'"):
        list(data)


def test_an_array_that_is_not_an_input_is_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(4), big=np.zeros(10**6))
    tracemalloc.start()
    arrays = open_npz(tmp_path / "x.npz")
    arrays["x"].whole()
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert arrays["big"].shape == (10**6,)


@pytest.mark.parametrize("compressed", [False, True])
def test_memory_stays_at_one_sample(tmp_path: Path, opened: Callable[..., Dataset], compressed: bool) -> None:
    (np.savez_compressed if compressed else np.savez)(tmp_path / "x.npz", x=np.ones((64, 100_000), np.float32))
    data = opened(tmp_path / "x.npz", "x:float32[n,100000]", samples=8)
    tracemalloc.start()
    assert sum(int(sample.feeds["x"].sum()) for sample in data) == 8 * 100_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000  # the array has 25.6 MB, a sample 0.4 MB


def test_paths_with_spaces_and_other_alphabets(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    folder = tmp_path / "Proben mit Größe 日本"
    folder.mkdir()
    np.savez(folder / "données.npz", x=np.ones((2, 3), np.float32))
    assert len(list(opened(folder / "données.npz", "x:float32[n,3]"))) == 2


def test_big_endian_and_bfloat16_are_read(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    import ml_dtypes

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "x.npz", a=values.astype(">f4"), b=values.astype(ml_dtypes.bfloat16))
    samples = list(opened(tmp_path / "x.npz", "a:float32[n,3]", "b:bfloat16[n,3]"))
    np.testing.assert_array_equal(samples[1].feeds["a"], values[1:])
    assert samples[1].feeds["a"].dtype == np.dtype("float32")
    np.testing.assert_array_equal(samples[1].feeds["b"].astype(np.float32), values[1:])


def test_arrays_belong_to_the_caller(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3), np.float32))
    for sample in opened(tmp_path / "x.npz", "x:float32[n,3]"):
        sample.feeds["x"] += 1
        assert type(sample.feeds["x"]) is np.ndarray
        assert sample.feeds["x"].flags.aligned
    np.testing.assert_array_equal(np.load(tmp_path / "x.npz")["x"], np.ones((2, 3)))
