"""Images in requests: encoded files in the place of the tensor that the preprocessing contract makes of them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import io
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.errors import DataError
from deploykit.serving.errors import UnfitInputError, UnreadableRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.artifact import TensorSpec
    from deploykit.data.contract import InputContract

    Array = np.ndarray[Any, Any]

# Of one image: 200 MB once it is decoded.
_MAX_PIXELS = 64 << 20
_LENGTH = struct.Struct("<I")


@dataclasses.dataclass(frozen=True, slots=True)
class Pictures:
    """The images of one input, each an encoded file."""

    files: tuple[bytes, ...]


def from_binary(raw: memoryview, count: int, where: str) -> Pictures:
    """The elements of a BYTES tensor, unlike text not decoded. Raises UnreadableRequestError."""
    files: list[bytes] = []
    position = 0
    while position < len(raw) and len(files) <= count:
        end = position + _LENGTH.size
        size = _LENGTH.unpack(raw[position:end])[0] if end <= len(raw) else len(raw)
        if end + size > len(raw):
            raise UnreadableRequestError(f"{where}: element {len(files)} is cut off")
        files.append(bytes(raw[end : end + size]))
        position = end + size
    return _counted(files, count, where)


def from_json(data: Any, count: int, where: str) -> Pictures:
    """The base64 strings of a JSON list, nested or not, a data URL's prefix allowed. Raises UnreadableRequestError."""
    flat: list[Any] = data if isinstance(data, list) else [data]
    while flat and all(isinstance(item, list) for item in flat):
        flat = [inner for item in flat for inner in item]
    return _counted([_decoded(item, where) for item in flat], count, where)


def _decoded(item: Any, where: str) -> bytes:
    if not isinstance(item, str):
        raise UnreadableRequestError(f"{where}: an image in JSON is a base64 string")
    text = item.partition(",")[2] if item.startswith("data:") else item
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise UnreadableRequestError(f"{where}: an image in JSON is a base64 string, and this one is not") from problem


def _counted(files: list[bytes], count: int, where: str) -> Pictures:
    if len(files) != count:
        raise UnreadableRequestError(f"{where} has {len(files)} images, and its shape says {count}")
    if not files:
        raise UnreadableRequestError(f"{where} has no image")
    return Pictures(tuple(files))


def _check_pixels(file: bytes, name: str) -> None:
    """A small file may be an image of gigabytes: its head tells. Raises UnfitInputError."""
    with contextlib.suppress(ImportError, OSError, ValueError, SyntaxError):  # reading it whole says what is wrong
        from PIL import Image

        try:
            with Image.open(io.BytesIO(file)) as opened:
                width, height = opened.size
        except Image.DecompressionBombError:
            width, height = _MAX_PIXELS, 2
        if width * height > _MAX_PIXELS:
            raise UnfitInputError(
                f"input {name!r}: an image has more than {_MAX_PIXELS:,} pixels", hint="send it smaller"
            )


def prepared(
    feeds: Mapping[str, Array | Pictures], contract: InputContract, specs: tuple[TensorSpec, ...]
) -> dict[str, Array]:
    """The feeds with tensors only. Decoding takes milliseconds: call it in a thread.

    Raises UnfitInputError for what is no image, and for images whose tensors differ in shape.
    """
    by_name = {spec.name: spec for spec in specs}
    made: dict[str, Array] = {}
    for name, value in feeds.items():
        if not isinstance(value, Pictures):
            made[name] = value
            continue
        try:
            for file in value.files:
                _check_pixels(file, name)
            rows = [contract.apply(file, by_name[name]) for file in value.files]
            made[name] = rows[0] if len(rows) == 1 else np.concatenate(rows)
        except DataError as problem:
            raise UnfitInputError(f"input {name!r}: {problem.message}") from problem
        except ValueError as problem:
            shapes = ", ".join(str(list(row.shape)) for row in rows)
            raise UnfitInputError(
                f"input {name!r}: images of one request must give tensors of one shape, and these give {shapes}",
                hint="send them in requests of their own, or let the contract resize them",
            ) from problem
    return made
