"""The user's sample: one array for each input, from a .npz file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from deploykit.errors import DataError

# What numpy raises for files that are none, are cut off, hold pickles or claim more than there is memory for.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,
    NotImplementedError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_arrays(path: str | Path, example: str = "x=x", more: str = "") -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a .npz file by name; nothing is unpickled.

    example, more: for the hint. Raises DataError (DK622) when the file cannot be read.
    """
    try:
        with np.load(Path(path), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _UNREADABLE as problem:
        raise DataError(
            f"{path} cannot be read as a .npz sample: {problem or type(problem).__name__}",
            code="DK622",
            file=path,
            hint=f"np.savez('sample.npz', {example}) with one array for each input{more}",
        ) from problem
