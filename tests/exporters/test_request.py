"""Constructor arguments as users write them."""

from __future__ import annotations

import pytest

from deploykit.errors import UsageError
from deploykit.exporters.request import parse_args


def test_values_are_python_literals_and_anything_else_is_text():
    given = ["width=32", "scale=0.5", "deep=True", "sizes=(1, 2)", "variant=small", "path=a=b", "none=None"]
    assert parse_args(given) == {
        "width": 32,
        "scale": 0.5,
        "deep": True,
        "sizes": (1, 2),
        "variant": "small",
        "path": "a=b",
        "none": None,
    }


def test_a_mapping_is_taken_as_it_is_but_for_texts():
    assert parse_args({"width": 4, "depth": "2"}) == {"width": 4, "depth": 2}
    assert parse_args(None) == {}


def test_an_expression_is_never_evaluated():
    assert parse_args(["x=__import__('os').getcwd()"]) == {"x": "__import__('os').getcwd()"}


@pytest.mark.parametrize("text", ["width", "=3", "a b=3"])
def test_a_text_without_a_name_is_refused(text):
    with pytest.raises(UsageError) as refused:
        parse_args([text])
    assert refused.value.code == "DK604"
