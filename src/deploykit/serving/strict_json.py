"""JSON as the standard has it, both ways: no NaN, no infinity, UTF-8 only, nothing that a hostile text can break."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from deploykit.serving.errors import UnreadableRequestError


def parse(raw: bytes | bytearray | memoryview) -> Any:
    """The value that the bytes hold. Raises UnreadableRequestError with the place of the problem."""
    if not raw:
        raise UnreadableRequestError("the body is empty, and a JSON document is needed")
    try:
        return json.loads(bytes(raw).decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as problem:
        raise UnreadableRequestError(f"the body is not UTF-8 JSON: byte {problem.start} is wrong") from problem
    except json.JSONDecodeError as problem:
        raise UnreadableRequestError(
            f"the body is not JSON: {problem.msg} at line {problem.lineno}, column {problem.colno}"
        ) from problem
    except RecursionError as problem:
        raise UnreadableRequestError("the body is not usable JSON: it is nested too deep") from problem
    except ValueError as problem:  # a number of more digits than Python reads
        raise UnreadableRequestError(f"the body is not usable JSON: {problem}") from problem


def _refuse_constant(word: str) -> NoReturn:
    raise UnreadableRequestError(
        f"the body is not JSON: {word} is no JSON number", hint="send NaN and infinities as binary data"
    )


def dump(value: Any) -> bytes:
    """The value as compact UTF-8 JSON; a float that JSON cannot hold is a ValueError."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def text_of(value: Any, what: str) -> str:
    """The value when it is a string that UTF-8 can carry. Raises UnreadableRequestError."""
    if not isinstance(value, str):
        raise UnreadableRequestError(f"{what} must be a string")
    try:
        value.encode()
    except UnicodeEncodeError as problem:  # "\\ud800" alone
        raise UnreadableRequestError(f"{what} holds half a surrogate pair, which is no character") from problem
    return value
