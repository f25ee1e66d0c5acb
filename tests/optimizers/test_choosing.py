"""Which candidate is taken when some are as their engine wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploykit.errors import ModelError
from deploykit.optimizers import stage
from deploykit.optimizers.candidates import Candidate
from deploykit.progress import silent


def candidate(engine, nodes, size=10_000, *, raw=False):
    return Candidate(engine, Path(f"{engine}.onnx"), nodes, size, ("x",), {}, {}, raw=raw)


class Proofs:
    """Proves all but some engines' results."""

    def __init__(self, *wrong):
        self.wrong = wrong

    def of(self, candidate, findings, on_progress):
        assert not candidate.raw
        return {"samples": 3}, "outputs differ" if candidate.engine in self.wrong else ""


@pytest.fixture
def chosen(monkeypatch):
    def choose(candidates, *wrong, sizes=None):
        def presented(found, base):
            if found.engine in wrong:
                raise ModelError("no graph", code="DK115")
            return candidate(found.engine, found.nodes, (sizes or {}).get(found.engine, found.size))

        monkeypatch.setattr(stage, "presented", presented)
        findings = []
        work = stage.SimplifyStage("auto", 1.05, {}, 0)
        before = candidate("none", 9, 20_000)
        winner, _ = work._choose(candidates, before, Proofs("onnxsim"), findings, silent)
        return winner, [finding.code for finding in findings]

    return choose


def test_a_raw_candidate_that_cannot_win_stays_raw(chosen):
    listed = [candidate("native", 3), candidate("onnxslim", 4, raw=True)]
    winner, codes = chosen(listed)
    assert (winner.engine, codes) == ("native", ["DK644"])
    assert listed[1].raw


def test_it_is_presented_when_the_better_one_is_turned_down(chosen):
    listed = [candidate("onnxsim", 3), candidate("onnxslim", 4, raw=True)]
    winner, codes = chosen(listed)
    assert (winner.engine, winner.raw, codes) == ("onnxslim", False, ["DK643", "DK644"])
    assert listed[1] is winner


def test_one_that_is_no_model_is_left_out(chosen):
    listed = [candidate("onnxsim", 3), candidate("onnxslim", 4, raw=True), candidate("native", 5)]
    winner, codes = chosen(listed, "onnxslim")
    assert (winner.engine, codes) == ("native", ["DK643", "DK641", "DK644"])
    assert [found.engine for found in listed] == ["onnxsim", "native"]


@pytest.mark.parametrize(("size", "engine"), [(9_000, "onnxslim"), (11_000, "native")])
def test_of_equally_many_nodes_the_bytes_that_are_written_count(chosen, size, engine):
    listed = [candidate("native", 3), candidate("onnxslim", 3, 50_000, raw=True)]
    winner, _ = chosen(listed, sizes={"onnxslim": size})
    assert winner.engine == engine
