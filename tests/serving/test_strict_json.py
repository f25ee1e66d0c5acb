import json
import sys

import pytest

from deploykit.serving.errors import UnreadableRequestError
from deploykit.serving.strict_json import MAX_DEPTH, parse


@pytest.fixture
def no_help_from_python():
    """A recursion limit that does not refuse by itself, as in a process whose count has drifted."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 4000,
        b"[" * 4000 + b"]" * 4000,
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b'{"inputs": [{"data": ' + b"[" * 3000 + b"]" * 3000 + b"}]}",
        b'["[", ' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"]",
    ],
)
def test_deep_nesting_is_refused_before_the_parser_sees_it(no_help_from_python, body):
    with pytest.raises(UnreadableRequestError, match="nested too deep"):
        parse(body)


@pytest.mark.parametrize(
    "value",
    [
        "[" * 4000,
        ["[[[" * 500, "{" * 999, '\\" [[['],
        [[[[1.0] * 4] * 4] * 40] * 40,
        {"text": '\\\\"' + "[{" * 300},
        json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH),
    ],
)
def test_what_only_looks_deep_is_read(no_help_from_python, value):
    assert parse(json.dumps(value).encode()) == value


def test_a_view_is_read_as_bytes_are():
    assert parse(memoryview(b'{"a": [1, 2]}')) == {"a": [1, 2]}
