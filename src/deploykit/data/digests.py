"""A digest of what a DATA argument gives, for cache keys and manifests."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
from pathlib import Path
from typing import Any

from deploykit import io
from deploykit.data.callables import guarded, load_callable
from deploykit.data.dataset import CALLABLE, RANDOM
from deploykit.errors import InvalidFileError


def is_callable(source: str | None, base: Path) -> bool:
    """Whether a DATA argument names a user's code, which `digest_of` would run: that belongs in a worker."""
    return bool(source) and CALLABLE.fullmatch(source or "") is not None and not (base / (source or "")).exists()


def digest_job(source: str, base: str) -> str:
    """`digest_of`, for a worker."""
    return digest_of(source, Path(base))


def digest_of(source: str | None, base: Path, *, samples: int = 4096) -> str:
    """Hex SHA-256 of the content of a DATA argument; the same content elsewhere has the same digest.

    base: the folder that relative paths start from. samples: at most so many yielded samples of a callable
    count, since some never end.
    A file or folder: its bytes. A callable: its module's file and what it yields, for data that comes from elsewhere.
    `random:SEED` and None: the words.
    Raises InvalidFileError for a path that is not there, DataError (DK306) for a callable that fails.
    """
    if source is None or RANDOM.fullmatch(source):
        return hashlib.sha256(f"data:{source}".encode()).hexdigest()
    path = base / source
    named = CALLABLE.fullmatch(source)
    if path.is_dir():
        lines = sorted(
            f"{file.relative_to(path).as_posix()} {io.file_sha256(file)}\n"
            for file in path.rglob("*")
            if file.is_file() and not file.name.startswith(".")
        )
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    if path.exists():
        return io.digest([path])
    if named is None:
        raise InvalidFileError(f"no such data file: {path}", file=path)
    return _callable(named["module"], named["name"], base, samples)


def _callable(module: str, name: str, base: Path, samples: int) -> str:
    written = str(base / module) if module.endswith(".py") else module
    function = load_callable(written, name)
    found = hashlib.sha256(name.encode())
    if module.endswith(".py"):
        found.update(io.file_sha256(Path(written)).encode())
    else:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            found.update(io.file_sha256(Path(spec.origin)).encode())
    for item in itertools.islice(guarded(function, f"{module}:{name}"), samples):
        _add(found, item)
    return found.hexdigest()


def _add(found: hashlib._Hash, value: Any) -> None:
    """Feeds a yielded value into the digest: containers in order, arrays by dtype, shape and bytes."""
    if isinstance(value, dict):
        for key in sorted(value):
            found.update(f"key {key}".encode())
            _add(found, value[key])
    elif isinstance(value, (tuple, list)):
        found.update(f"{len(value)} items".encode())
        for item in value:
            _add(found, item)
    elif hasattr(value, "__array__"):
        import numpy as np

        array = np.asarray(value)
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    else:
        found.update(repr(value).encode())
