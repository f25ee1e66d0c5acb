"""`.npz` and `.npy` opened lazily and without trust: headers first, rows when they are asked for, nothing pickled.

A stored array of an `.npz` (what `np.savez` writes) is memory-mapped; a compressed one is read row by row.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import struct
import tokenize
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from deploykit.errors import DataError
from deploykit.io import existing_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

Array = np.ndarray[Any, Any]
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
# What a damaged archive raises depends on where it is damaged.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    TypeError,
    OverflowError,
    EOFError,
    MemoryError,
    RuntimeError,
    OSError,
    struct.error,
    SyntaxError,  # numpy parses the header as Python literals, and its tokenizer has errors of its own
    tokenize.TokenError,
)
_LARGE = 1 << 28


@dataclasses.dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of a file, known by its header: nothing of its values is in memory.

    offset: where its values start in the file, when they lie there uncompressed.
    """

    path: Path
    name: str
    member: str | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int | None

    def whole(self) -> Array:
        """All values; a read-only map of the file where possible."""
        mapped = self._mapped()
        if mapped is not None:
            return mapped
        with _named(self.path, self.name), self._values() as stream:
            data = _exactly(stream, math.prod(self.shape) * self.dtype.itemsize, self)
            return np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.fortran else "C")

    def rows(self, ranges: Sequence[tuple[int, int]]) -> Iterator[Array]:
        """`array[start:stop]` for each of the ascending ranges; memory of one range at a time."""
        if self.offset is not None or self.fortran or 0 in self.shape:
            array = self.whole()
            for start, stop in ranges:
                yield array[start:stop]
            return
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        position = 0
        with _named(self.path, self.name), self._values() as stream:
            for start, stop in ranges:
                _skip(stream, (start - position) * row, self)
                data = _exactly(stream, (stop - start) * row, self)
                position = stop
                yield np.frombuffer(data, self.dtype).reshape((stop - start, *self.shape[1:]))

    def _mapped(self) -> Array | None:
        if self.offset is None:
            return None
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        return np.memmap(
            self.path, self.dtype, "r", self.offset, self.shape or (1,), order="F" if self.fortran else "C"
        ).reshape(self.shape)

    @contextlib.contextmanager
    def _values(self) -> Iterator[IO[bytes]]:
        if self.member is None:
            with self.path.open("rb") as stream:
                _read_header(stream, self.path, self.name)
                yield stream
            return
        with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as stream:
            _read_header(stream, self.path, self.name)
            yield stream


def open_npz(path: Path) -> dict[str, StoredArray]:
    """The arrays of an `.npz` by name, in the order of the file.

    Raises InvalidFileError for a file that is not there, DataError (DK302) for one that is damaged or holds pickled
    objects.
    """
    existing_file(path, "data file")
    with _named(path), zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        found = {}
        for entry in archive.infolist():
            if entry.filename.endswith(".npy"):
                name = entry.filename.removesuffix(".npy")
                found[name] = _npz_member(archive, raw, entry, path, name)
    return found


def _npz_member(archive: zipfile.ZipFile, raw: IO[bytes], entry: zipfile.ZipInfo, path: Path, name: str) -> StoredArray:
    with archive.open(entry) as stream:
        shape, fortran, dtype, length = _read_header(stream, path, name)
    declared = math.prod(shape) * dtype.itemsize
    if declared != entry.file_size - length:
        raise _damaged(path, f"array {name!r} declares {declared} bytes and has {entry.file_size - length}")
    offset = None
    if entry.compress_type == zipfile.ZIP_STORED:
        raw.seek(entry.header_offset)
        header = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
        offset = entry.header_offset + _LOCAL_HEADER.size + header[-2] + header[-1] + length
        if offset + declared > path.stat().st_size:
            raise _damaged(path, f"array {name!r} ends after the end of the file")
    return StoredArray(path, name, entry.filename, shape, dtype, fortran, offset)


def open_npy(path: Path) -> StoredArray:
    """The array of an `.npy`; raises as `open_npz` does."""
    existing_file(path, "data file")
    with _named(path), path.open("rb") as stream:
        shape, fortran, dtype, length = _read_header(stream, path, path.stem)
    declared, there = math.prod(shape) * dtype.itemsize, path.stat().st_size - length
    if declared > there:
        raise _damaged(path, f"it declares {declared} bytes and has {there}")
    return StoredArray(path, path.stem, None, shape, dtype, fortran, length)


def _read_header(stream: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran order, dtype, and the header's length in bytes."""
    version = npy.read_magic(stream)
    if version not in {(1, 0), (2, 0)}:
        raise _damaged(path, f"array {name!r} has the unknown format version {version[0]}.{version[1]}")
    reader = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = reader(stream)
    if dtype.hasobject:
        raise DataError(
            f"array {name!r} of {path.name} holds pickled Python objects, which are not read: they can run code",
            code="DK302",
            file=path,
            hint="save plain arrays; lists of unequal lengths go into a folder with one .npz a feed",
        )
    if dtype.names is not None or any(size < 0 for size in shape):
        raise _damaged(path, f"array {name!r} is not a plain array")
    return shape, fortran, dtype, stream.tell()


def _exactly(stream: IO[bytes], size: int, array: StoredArray) -> bytes:
    if size > _LARGE:
        _check_memory(size, array)
    data = stream.read(size)
    if len(data) != size:
        raise _damaged(array.path, f"array {array.name!r} ends too early")
    return data


def _check_memory(size: int, array: StoredArray) -> None:
    """A small file can declare terabytes: compressed zeros are nearly free."""
    import psutil

    available = psutil.virtual_memory().available
    if size > available:
        raise _damaged(
            array.path, f"one sample of array {array.name!r} is {size} bytes, and {available} bytes of memory are free"
        )


def _skip(stream: IO[bytes], size: int, array: StoredArray) -> None:
    while size > 0:
        size -= len(_exactly(stream, min(size, 1 << 20), array))


@contextlib.contextmanager
def _named(path: Path, array: str | None = None) -> Iterator[None]:
    """Names the file in what a damaged archive raises."""
    try:
        yield
    except _DAMAGED as problem:
        inside = "" if array is None else f"array {array!r}: "
        raise _damaged(path, f"{inside}{problem}") from problem


def _damaged(path: Path, why: str) -> DataError:
    return DataError(
        f"{path.name} is damaged or not what its suffix says: {why}",
        code="DK302",
        file=path,
        hint="write it again with np.savez(path, **arrays)",
    )
