"""Comparisons made ahead are told later, as they came out."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.errors import MissingDependencyError, VendorError
from deploykit.optimizers import proofs
from deploykit.optimizers.candidates import Candidate
from deploykit.progress import silent
from deploykit.report import failure, note

GOOD = {"outputs": [], "samples": 5, "compared": True, "findings": [note("DK331", "integers").as_dict()]}
BAD = {**GOOD, "findings": [failure("DK401", "the outputs differ").as_dict()]}
NOT_RUN = {**GOOD, "compared": False}


def candidate(nodes: int = 1) -> Candidate:
    return Candidate("native", Path("native.onnx"), nodes, 100, ("native.onnx",), {}, {"nodes": 2, "random": []})


@pytest.fixture
def compared(monkeypatch):
    """Has every comparison come out as the returned list says, the next one first."""
    coming: list[object] = []
    calls: list[dict[str, object]] = []

    def isolated(worker, job, arguments, **_):
        calls.append(arguments)
        outcome = coming.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(proofs, "run_isolated", isolated)
    return coming, calls


@pytest.mark.parametrize(
    ("outcome", "wrong", "kept"),
    [
        (GOOD, "", ["integers"]),
        (BAD, "the outputs differ", []),
        (NOT_RUN, proofs.UNPROVEN, ["integers"]),
        (VendorError("it crashed", code="DK511"), "it does not run: it crashed", []),
    ],
)
def test_what_was_compared_ahead_is_not_compared_again(compared, outcome, wrong, kept):
    coming, calls = compared
    coming.append(outcome)
    found = proofs.Proofs(Path("in.onnx"), 0)
    found.ahead(candidate())
    findings = []
    assert found.of(candidate(), findings, silent)[1] == wrong
    assert [finding.message for finding in findings] == kept
    assert [call["several"] for call in calls] == [True], "others may follow"


def test_a_missing_package_is_an_error_of_the_command(compared):
    compared[0].append(MissingDependencyError("no onnxruntime", hint="pip install onnxruntime"))
    found = proofs.Proofs(Path("in.onnx"), 0)
    found.ahead(candidate())
    with pytest.raises(MissingDependencyError):
        found.of(candidate(), [], silent)


def test_what_cannot_win_is_not_compared_ahead(compared):
    coming, calls = compared
    found = proofs.Proofs(Path("in.onnx"), 0)
    found.ahead(candidate(nodes=2))
    assert calls == []
    coming.append(GOOD)
    assert found.of(candidate(nodes=2), [], silent) == (GOOD, "")
