"""Workers that are ended before their pool."""

import time

import psutil

from deploykit.isolation import run_isolated, vendor_logs, workers


def test_a_worker_that_is_ended_is_gone_and_another_call_starts_a_new_one():
    with workers() as pool:
        first = run_isolated("ended", "os:getpid", {})
        pool.end("ended")
        pool.end("never started")
        assert run_isolated("ended", "os:getpid", {}) != first
        deadline = time.monotonic() + 20
        # Nobody has waited for it yet: what is left of it has no memory.
        while psutil.Process(first).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.05)
        assert psutil.Process(first).status() == psutil.STATUS_ZOMBIE
    assert not psutil.pid_exists(first)


def test_the_log_of_a_worker_that_is_ended_is_heard():
    heard = []
    with vendor_logs(lambda name, lines: heard.append((name, lines))), workers() as pool:
        run_isolated("told", "warnings:warn", {"message": "x"})
        pool.end("told")
    assert [name for name, _ in heard] == ["told"]
