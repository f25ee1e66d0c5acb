"""JSON as the standard has it, both ways: no NaN, no infinity, UTF-8 only, nothing that a hostile text can break."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import numpy as np

from deploykit.serving.errors import UnreadableRequestError

# The deepest document of the protocol is a tensor's nested list; no engine here takes so many dimensions.
MAX_DEPTH = 128
_SMALL = 1 << 16
_STRINGS_AND_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def _refuse_constant(word: str) -> NoReturn:
    raise UnreadableRequestError(
        f"the body is not JSON: {word} is no JSON number", hint="send NaN and infinities as binary data"
    )


# Made once: `json.loads` and `json.dumps` with options make new ones for each call.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def parse(raw: bytes | bytearray | memoryview) -> Any:
    """The value that the bytes hold. Raises UnreadableRequestError with the place of the problem."""
    if not raw:
        raise UnreadableRequestError("the body is empty, and a JSON document is needed")
    # The parser's own limit is no guard: Python 3.11's count of open calls drifts in a process that lives long.
    if _nested_too_deep(raw):
        raise UnreadableRequestError(f"the body is not usable JSON: it is nested too deep, beyond {MAX_DEPTH} levels")
    try:
        text = str(raw, "utf-8").removeprefix("\ufeff")
        return _DECODER.decode(text)
    except UnicodeDecodeError as problem:
        raise UnreadableRequestError(f"the body is not UTF-8 JSON: byte {problem.start} is wrong") from problem
    except json.JSONDecodeError as problem:
        raise UnreadableRequestError(
            f"the body is not JSON: {problem.msg} at line {problem.lineno}, column {problem.colno}"
        ) from problem
    except ValueError as problem:  # the only one that is left
        raise UnreadableRequestError("the body is not usable JSON: a number has thousands of digits") from problem


def _nested_too_deep(raw: bytes | bytearray | memoryview) -> bool:
    """Whether brackets open more than MAX_DEPTH levels; the cheap looks come first."""
    if len(raw) <= _SMALL and (short := bytes(raw)).count(b"[") + short.count(b"{") <= MAX_DEPTH:
        return False
    text = np.frombuffer(raw, np.uint8)
    opening = (text == ord("[")) | (text == ord("{"))
    if np.count_nonzero(opening) <= MAX_DEPTH:
        return False
    steps = opening.astype(np.int8) - ((text == ord("]")) | (text == ord("}")))
    if np.cumsum(steps[steps != 0], dtype=np.int64).max() <= MAX_DEPTH:
        return False
    depth = 0  # brackets within strings do not count, so that only a reading token by token tells
    for token in _STRINGS_AND_BRACKETS.finditer(raw):
        first = raw[token.start()]
        depth += 1 if first in b"[{" else -1 if first in b"]}" else 0
        if depth > MAX_DEPTH:
            return True
    return False


def dump(value: Any) -> bytes:
    """The value as compact UTF-8 JSON; a float that JSON cannot hold is a ValueError."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


def text_of(value: Any, what: str) -> str:
    """The value when it is a string that UTF-8 can carry. Raises UnreadableRequestError."""
    if not isinstance(value, str):
        raise UnreadableRequestError(f"{what} must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as problem:  # "\\ud800" alone
        raise UnreadableRequestError(f"{what} holds half a surrogate pair, which is no character") from problem
    return value
