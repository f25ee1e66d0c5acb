from __future__ import annotations

import pytest

from deploykit.render.numbers import fixed, megabytes, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.0, "0"),
        (545286, "545,286"),
        (0.012345, "0.0123"),
        (1.2e-7, "1.2e-07"),
        (45.6789, "45.7"),
        (12345.6, "12,346"),
        (True, "True"),
        ("text", "text"),
        (float("nan"), "nan"),
    ],
)
def test_number(value: object, text: str) -> None:
    assert number(value) == text


def test_fixed() -> None:
    assert (fixed(None, 2), fixed(1234.567, 2)) == ("-", "1,234.57")


def test_percent() -> None:
    assert (percent(None), percent(0.875)) == ("-", "87.5 %")


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (62_000, "0.062"), (354_000, "0.35"), (25_500_000, "25.5"), (2_000_000_000, "2,000.0")],
)
def test_megabytes(size: int | None, text: str) -> None:
    assert megabytes(size) == text
