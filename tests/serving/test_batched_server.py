"""Real server processes that put requests together: what clients see of it, in answers, log and metrics."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG = '<ir_version: 8, opset_import: ["" : 17]> log (float[n,2] x) => (float[n,2] y) { y = Log(x) }'
MEAN = """<ir_version: 8, opset_import: ["" : 17]> mean (float[n,2] x) => (float[n,2] y) {
    m = ReduceMean <axes = [0]> (x)
    y = Sub(x, m)
}"""


@pytest.fixture(scope="module")
def batched(start: Callable[..., Any], model_file: Callable[[str, str], Path]) -> Any:
    return start(model_file("log", LOG), "--max-batch", 16, "--max-delay-ms", 200)


def at_once(server: Any, bodies: list[Any], path: str = "/predict") -> list[Any]:
    barrier = threading.Barrier(len(bodies))

    def call(body: Any) -> Any:
        barrier.wait()
        return server.call("POST", path, body)

    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(call, bodies))


def test_requests_share_a_call_and_a_bad_one_fails_alone(batched: Any) -> None:
    *good, bad = at_once(batched, [{"x": [[i + 1, 1]]} for i in range(8)] + [{"x": [[1, 2, 3]]}])
    assert bad.status == 400
    for index, answer in enumerate(good):
        np.testing.assert_allclose(answer.json["y"], [[np.log(index + 1), 0]], atol=1e-6)
    until = time.monotonic() + 20
    while len(lines := [line for line in batched.log() if line["event"] == "request"]) < 9:
        assert time.monotonic() < until  # a thread of its own writes them
        time.sleep(0.02)
    assert max(line.get("batch_rows", 1) for line in lines) > 1
    rows = [line for line in batched.call("GET", "/metrics").body.decode().splitlines() if "batch_rows_" in line]
    assert sum(float(line.split()[-1]) for line in rows if "batch_rows_sum" in line) == 8
    assert sum(float(line.split()[-1]) for line in rows if "batch_rows_count" in line) < 8


def test_a_single_request_waits_no_longer_than_the_delay(batched: Any) -> None:
    answer = batched.call("POST", "/predict", [[1, 1]])
    queued = float(answer.headers["Server-Timing"].split("queue;dur=")[1].split(",")[0])
    assert 150 < queued < 2000


def test_a_timeout_in_the_queue_is_504(batched: Any) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    body = {"inputs": [tensor], "parameters": {"timeout": 20_000, "priority": 1}}
    answer = batched.call("POST", "/v2/models/log/infer", body)
    assert (answer.status, answer.json["code"]) == (504, "DK719")
    assert "longer than its timeout" in answer.error


def test_a_model_whose_rows_are_not_independent_is_never_batched(
    start: Callable[..., Any], model_file: Callable[[str, str], Path]
) -> None:
    server = start(model_file("mean", MEAN), "--max-batch", 16, "--max-delay-ms", 50)
    answers = at_once(server, [{"x": [[i, 2 * i]]} for i in range(6)])
    assert all(answer.json["y"] == [[0, 0]] for answer in answers)
    loaded = next(line for line in server.log() if line["event"] == "loaded")
    assert (loaded["max_batch"], loaded["alone_because"]) == (1, "output 'y' of a row depends on the rows beside it")
    assert server.stop() == 0
