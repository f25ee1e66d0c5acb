"""Engines side by side: who waits for whom, and what one's failure leaves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deploykit.errors import VendorError
from deploykit.optimizers import candidates
from deploykit.progress import silent

NAMES = ["native", "onnxslim", "onnxsim"]
INTERFACE = {"inputs": [], "outputs": [], "opset": 17}
FACTS = {"nodes": 1, "bytes": 9, "files": ["in.onnx"], "interface": INTERFACE, "original": {"nodes": 2, "random": []}}
WAIT = 20.0


@pytest.fixture
def engines(monkeypatch):
    """Replaces the jobs by functions of the engine; gives the log of (engine, job) and the table to put them in."""
    log: list[tuple[str, str]] = []
    does: dict[tuple[str, str], object] = {}

    def run(engine, job, arguments):
        key = (arguments.get("engine", engine), job.rpartition(":")[2])
        log.append(key)
        does.get(key, lambda: None)()
        return {**FACTS, "versions": {}}

    monkeypatch.setattr(candidates, "_run", run)
    monkeypatch.setattr(candidates, "release", lambda worker: log.append((worker, "release")))
    return log, does


def attempts(tmp_path: Path, names=NAMES, ahead=lambda candidate: None):
    findings = []
    return candidates.attempts(names, Path("in.onnx"), tmp_path, findings, silent, ahead), findings


def test_the_native_candidate_is_looked_at_while_the_others_work(engines, tmp_path):
    looked = threading.Event()
    seen = []
    # Waits for the other: they are at work at the same time, or this one gives up.
    engines[1]["onnxslim", "foreign_job"] = lambda: seen.append(looked.wait(WAIT))
    made, findings = attempts(tmp_path, ahead=lambda candidate: looked.set())
    assert seen == [True]
    assert [found.engine for found in made] == NAMES
    assert not findings


def test_the_next_engine_starts_while_the_last_one_s_result_is_presented(engines, tmp_path):
    log, does = engines
    started = threading.Event()
    seen = []
    does["onnxsim", "foreign_job"] = started.set
    # Presenting happens in the native engine's worker, and the other's is free.
    does["native", "present_job"] = lambda: seen.append(started.wait(WAIT))
    attempts(tmp_path)
    assert seen == [True, True]
    foreign = [key for key in log if key[1] in ("foreign_job", "release")]
    assert foreign == [
        ("onnxslim", "foreign_job"),
        ("simplify-onnxslim", "release"),
        ("onnxsim", "foreign_job"),
        ("simplify-onnxsim", "release"),
    ], "one at a time, and each makes room before the next starts"


def test_alone_the_native_engine_has_nothing_to_look_ahead_for(engines, tmp_path):
    looked = []
    made, _ = attempts(tmp_path, ["native"], looked.append)
    assert [found.engine for found in made] == ["native"]
    assert looked == []


def test_a_failure_is_a_line_and_the_others_go_on(engines, tmp_path):
    def crash() -> None:
        raise VendorError("it crashed")

    engines[1]["onnxslim", "foreign_job"] = crash
    made, findings = attempts(tmp_path)
    assert [found.engine for found in made] == ["native", "onnxsim"]
    assert [finding.code for finding in findings] == ["DK641"]
    assert ("simplify-onnxslim", "release") in engines[0]
    engines[1]["native", "native_job"] = crash
    (tmp_path / "again").mkdir()
    with pytest.raises(VendorError):
        attempts(tmp_path / "again", ["native"])


def test_what_has_more_nodes_than_the_native_result_is_left_as_it_is(engines, tmp_path, monkeypatch):
    log, _ = engines
    run = candidates._run
    monkeypatch.setattr(
        candidates,
        "_run",
        lambda engine, job, given: {**run(engine, job, given), "nodes": 1 + (given.get("engine") == "onnxsim")},
    )
    made, findings = attempts(tmp_path)
    assert [(found.engine, found.raw) for found in made] == [("native", False), ("onnxslim", False), ("onnxsim", True)]
    assert log.count(("native", "present_job")) == 1
    assert not findings
    later = candidates.presented(made[2], Path("in.onnx"))
    assert (later.raw, later.files, later.path) == (False, ("in.onnx",), tmp_path / "onnxsim" / "in.onnx")


def test_without_a_native_result_all_others_are_presented(engines, tmp_path):
    def crash() -> None:
        raise VendorError("it crashed")

    engines[1]["native", "native_job"] = crash
    made, findings = attempts(tmp_path)
    assert [(found.engine, found.raw) for found in made] == [("onnxslim", False), ("onnxsim", False)]
    assert [finding.code for finding in findings] == ["DK641"]
