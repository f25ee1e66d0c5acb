from __future__ import annotations

import pytest

import deploykit
from deploykit.errors import UsageError
from deploykit.explanations import load


def test_a_code_is_explained() -> None:
    (entry,) = deploykit.explain("DK801").metrics["codes"]
    assert entry["code"] == "DK801"
    assert all(entry[part] for part in ("title", "why", "fix"))


@pytest.mark.parametrize("text", ["dk801", "801", " DK801 "])
def test_a_code_may_be_written_loosely(text: str) -> None:
    assert deploykit.explain(text).metrics["codes"][0]["code"] == "DK801"


def test_all_codes_are_listed_in_order() -> None:
    codes = [entry["code"] for entry in deploykit.explain().metrics["codes"]]
    assert codes == sorted(load())


def test_an_unknown_code_gets_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        deploykit.explain("DK8901")
    assert caught.value.code == "DK832"
    assert caught.value.hint in ("did you mean DK890?", "did you mean DK891?")
