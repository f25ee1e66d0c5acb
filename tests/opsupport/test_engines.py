"""Engines asked together: at the same time, each problem its own, and nothing left waiting after an interrupt."""

import dataclasses
import threading
import time

import pytest

from deploykit.errors import MissingDependencyError, UsageError, VendorError
from deploykit.isolation import workers
from deploykit.opsupport import engines
from deploykit.opsupport.engines import Answer, ask_all
from deploykit.target import get_target

HEARD = {"source": "me", "nodes": [], "partitions": 1, "findings": []}


def target(name, **changes):
    plain = {"packages": (), "support": "nowhere:job", "worker": name}
    return dataclasses.replace(get_target("openvino"), name=name, **(plain | changes))


def test_engines_are_asked_at_the_same_time(monkeypatch):
    meeting = threading.Barrier(3, timeout=30)  # breaks unless two engines and this process are there at once
    monkeypatch.setattr(engines.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(engines, "run_isolated", lambda *args, **kwargs: (meeting.wait() and None) or HEARD)
    done = []
    answers = ask_all([(target("a"), {}), (target("b"), {})], done.append, lambda: meeting.wait() and None)
    assert answers == [Answer("me", (), 1, ())] * 2
    assert done == [1, 2]


def test_answers_come_in_the_order_of_the_questions(monkeypatch):
    def answer(name, *args, **kwargs):
        time.sleep(0.2 if name == "slow" else 0)
        return {**HEARD, "source": name}

    monkeypatch.setattr(engines, "run_isolated", answer)
    found = ask_all([(target("slow"), {}), (target("fast"), {})], lambda _: None, lambda: None)
    assert [answer.source for answer in found] == ["slow", "fast"]


def test_engine_that_fails_or_is_not_there_does_not_keep_the_others(monkeypatch):
    def answer(name, *args, **kwargs):
        if name == "broken":
            raise VendorError("it crashed")
        return HEARD

    monkeypatch.setattr(engines, "run_isolated", answer)
    absent = target("absent", packages=("no_such_package",))
    broken, missing, fine = ask_all(
        [(target("broken"), {}), (absent, {}), (target("fine"), {})], lambda _: None, lambda: None
    )
    assert isinstance(broken, VendorError)
    assert isinstance(missing, MissingDependencyError)
    assert isinstance(fine, Answer)


def test_wrong_option_is_raised(monkeypatch):
    def answer(*args, **kwargs):
        raise UsageError("no such option")

    monkeypatch.setattr(engines, "run_isolated", answer)
    with pytest.raises(UsageError):
        ask_all([(target("a"), {})], lambda _: None, lambda: None)


def test_interrupt_ends_the_workers_at_once():
    def interrupt():
        time.sleep(0.5)  # until the worker is at it
        raise KeyboardInterrupt

    sleeper = target("sleeper", support="subprocess:run")
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        ask_all([(sleeper, {"args": ["sleep", "20"]})], lambda _: None, interrupt)
    assert time.perf_counter() - started < 15


def test_no_question_is_no_work():
    with workers():
        assert ask_all([], lambda _: None, lambda: None) == []
