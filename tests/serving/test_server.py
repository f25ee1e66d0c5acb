"""Real server processes: sockets, signals, drains, slow and hostile clients."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploykit.data.dtypes import numpy_dtype
from deploykit.errors import UsageError
from deploykit.serving.datatypes import DTYPES
from deploykit.serving.server import listen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG = '<ir_version: 8, opset_import: ["" : 17]> log (float[n,2] x) => (float[n,2] y) { y = Log(x) }'


@pytest.fixture(scope="module")
def log(start: Callable[..., Any], model_file: Callable[[str, str], Path]) -> Any:
    return start(model_file("log", LOG), "--max-body-mb", 2)


@pytest.fixture
def loop(start: Callable[..., Any], model_file: Callable[[str, str], Path], loop_text: str) -> Any:
    return start(model_file("loop", loop_text))


def trips_for(server: Any, seconds: float) -> int:
    """How many trips take so long on this machine, now."""
    took = 0.0
    trips = 20_000
    while took < 0.05:
        trips *= 2
        started = time.perf_counter()
        assert server.call("POST", "/predict", {"trips": trips, "x": [0]}).status == 200
        took = time.perf_counter() - started
    return int(trips * seconds / took)


def test_the_ready_line(log: Any) -> None:
    port = log.ready_line["grpc"]
    assert log.ready_line == {"ready": True, "http": log.port, "grpc": port, "models": ["log"]}
    assert 0 < port != log.port
    assert log.call("GET", "/v2/health/ready").status == 200
    # The log is written by a thread of its own.
    deadline = time.monotonic() + 10
    while not (loaded := [line for line in log.log() if line["event"] == "loaded"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert loaded[0]["engine"].startswith("onnxruntime")


def test_it_listens_on_this_machine_only(log: Any) -> None:
    addresses = {item.laddr.ip for item in psutil.Process(log.process.pid).net_connections() if item.status == "LISTEN"}
    assert addresses == {"127.0.0.1", "::ffff:127.0.0.1"}  # gRPC's is a socket for both families


@pytest.mark.parametrize("stop", ["terminate", "interrupt"])
def test_a_signal_drains_and_exits_0(loop: Any, stop: str) -> None:
    import signal

    trips = trips_for(loop, 1.0)
    # More than there are lanes, so some wait in the queue when the signal comes.
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(loop.call, "POST", "/predict", {"trips": trips, "x": [i]}) for i in range(4)]
        time.sleep(0.4)
        loop.process.send_signal(signal.SIGTERM if stop == "terminate" else signal.SIGINT)
        answers = [future.result() for future in asked]
    assert [answer.status for answer in answers] == [200] * 4
    assert all(answer.headers["Connection"] == "close" for answer in answers)
    assert loop.process.wait(timeout=60) == 0
    assert loop.log()[-1]["event"] == "stopped"
    with pytest.raises(ConnectionRefusedError):
        loop.call("GET", "/v2/health/live")


def test_a_request_on_an_open_connection_is_answered_during_the_drain(loop: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", loop.port, timeout=60)
    connection.request("GET", "/v2/health/ready")
    assert connection.getresponse().read() == b'{"ready":true}'
    loop.process.terminate()
    time.sleep(0.15)
    connection.request("POST", "/predict", json.dumps({"trips": 1, "x": [0]}))
    got = connection.getresponse()
    assert (got.status, got.headers["Connection"]) == (200, "close")
    assert loop.process.wait(timeout=60) == 0


def test_a_second_signal_stops_at_once(loop: Any) -> None:
    trips = trips_for(loop, 20)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(loop.call, "POST", "/predict", {"trips": trips, "x": [0]})
        time.sleep(0.3)
        loop.process.terminate()
        time.sleep(0.6)
        loop.process.terminate()
        assert loop.process.wait(timeout=60) == 130
        assert asked.result().status == 503
        assert "stopped" in asked.result().error


def test_readiness_is_honest_while_the_model_loads(
    model_file: Callable[[str, str], Path], tmp_path: Path, loop_text: str
) -> None:
    # The warm-up call alone takes hours.
    endless = loop_text.replace("(int64 trips, float[n] x)", "(float[n] x)").replace(
        "{1}>", "{1}, int64 trips = {9000000000}>"
    )
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
    log_file = tmp_path / "log"
    command = [sys.executable, "-m", "deploykit", "serve", model_file("endless", endless), "--http-port", str(port)]
    with log_file.open("wb") as stderr:
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        until = time.monotonic() + 120
        while '"listening"' not in log_file.read_text(encoding="utf-8"):
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(0.3)
        statuses = {}
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/endless/ready", "/v2/models/endless"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", path)
            statuses[path] = connection.getresponse().status
        assert list(statuses.values()) == [200, 503, 503, 503]
        process.terminate()
        assert process.wait(timeout=60) == 0
        assert process.stdout is not None
        assert '"ready"' not in process.stdout.read()
    finally:
        process.kill()


def test_a_bad_request_among_good_ones_fails_alone(log: Any) -> None:
    barrier = threading.Barrier(9)

    def call(body: Any) -> Any:
        barrier.wait()
        return log.call("POST", "/predict", body)

    bodies = [{"x": [[i + 1, 1]]} for i in range(8)] + [{"x": [[1, 2, 3]]}]
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor(9) as pool:
            *good, bad = pool.map(call, bodies)
        assert bad.status == 400
        for index, answer in enumerate(good):
            np.testing.assert_allclose(answer.json["y"], [[np.log(index + 1), 0]], atol=1e-6)


def test_other_methods_are_refused_and_leave_the_connection_usable(log: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", log.port, timeout=30)
    for method in ("HEAD", "GET", "PUT"):
        connection.request(method, "/v2/models/log/infer")
        got = connection.getresponse()
        assert (got.status, got.headers["Allow"]) == (405, "POST")
        assert (got.read() == b"") == (method == "HEAD")
    connection.request("GET", "/v2/health/live")
    assert connection.getresponse().status == 200
    connection.close()


def test_a_slow_client_does_not_hold_up_others(log: Any) -> None:
    with socket.create_connection(("127.0.0.1", log.port)) as slow:
        slow.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n[[")
        with socket.create_connection(("127.0.0.1", log.port)) as silent:
            silent.sendall(b"GET /v2/hea")
            assert log.call("POST", "/predict", [[1, 1]]).status == 200
            for waiting in (slow, silent):  # neither answered nor given up meanwhile
                waiting.setblocking(False)
                with pytest.raises(BlockingIOError):
                    waiting.recv(1)


def test_a_client_that_leaves_is_no_failure(log: Any) -> None:
    with socket.create_connection(("127.0.0.1", log.port)) as leaving:
        leaving.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n[[")
    time.sleep(0.2)
    assert log.call("GET", "/v2/health/ready").status == 200
    assert not [line for line in log.log() if "traceback" in line]


def test_300_mb_are_refused_without_being_kept(log: Any) -> None:
    process = psutil.Process(log.process.pid)
    log.call("POST", "/predict", [[1, 1]])
    before = process.memory_info().rss
    # By the announced length: answered before the body is sent.
    with socket.create_connection(("127.0.0.1", log.port)) as sock:
        sock.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 300000000\r\n\r\n")
        assert sock.recv(99).startswith(b"HTTP/1.1 413 ")
    # Without one, by a client that only reads when it has sent everything.
    connection = http.client.HTTPConnection("127.0.0.1", log.port, timeout=30)
    connection.request("POST", "/predict", iter([b"1," * 500_000] * 300), encode_chunked=True)
    peak = process.memory_info().rss
    got = connection.getresponse()
    assert got.status == 413
    assert "2,097,152" in json.loads(got.read())["error"]
    assert max(peak, process.memory_info().rss) - before < 32 << 20
    assert log.call("POST", "/predict", [[1, 1]]).status == 200


def test_a_head_that_never_ends_is_refused(log: Any) -> None:
    with socket.create_connection(("127.0.0.1", log.port)) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(b"GET /v2 HTTP/1.1\r\n")
        for _ in range(200):
            sock.sendall(b"X-Filler: " + b"a" * 4096 + b"\r\n")
        assert sock.recv(99).startswith(b"HTTP/1.1 4")
    assert log.call("GET", "/v2/health/live").status == 200


def test_no_more_threads_than_cpus_compute(log: Any) -> None:
    loaded = next(line for line in log.log() if line["event"] == "loaded")
    import os

    assert loaded["lanes"] * loaded["threads"] <= len(os.sched_getaffinity(0))


def test_every_log_line_is_json_with_the_request_id(log: Any) -> None:
    log.call("POST", "/predict", [[1, 1]], {"X-Request-Id": "find-this-one"})
    log.call("POST", "/predict", [[-1, 1]], {"X-Request-Id": "and-this"})
    time.sleep(0.1)
    lines = {line.get("request_id"): line for line in log.log()}
    assert lines["find-this-one"]["status"] == 200
    assert {"ms", "queue_ms", "compute_ms", "rows"} <= set(lines["find-this-one"])
    assert (lines["and-this"]["level"], lines["and-this"]["non_finite_outputs"]) == ("warning", ["y"])


TYPES = {
    **{name: DTYPES[name] for name in DTYPES if name not in ("FP32", "FP64", "BYTES")},
    "FP32": "float",
    "FP64": "double",
    "BYTES": "string",
}


# ONNX Runtime's Python API takes bfloat16 and strings in different ways, so no call has both.
@pytest.fixture(scope="module", params=["BF16 FP32", " ".join(name for name in TYPES if name != "BF16")])
def types(request: pytest.FixtureRequest, start: Callable[..., Any], model_file: Callable[[str, str], Path]) -> Any:
    """A server whose model gives back one tensor of each datatype."""
    names = request.param.split()
    inputs = ", ".join(f"{TYPES[name]}[a_{name}, b_{name}] in_{name}" for name in names)
    outputs = ", ".join(f"{TYPES[name]}[a_{name}, b_{name}] out_{name}" for name in names)
    body = " ".join(f"out_{name} = Identity(in_{name})" for name in names)
    text = f'<ir_version: 8, opset_import: ["" : 17]> types ({inputs}) => ({outputs}) {{ {body} }}'
    return start(model_file("types", text)), names


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), binary_in=st.booleans(), binary_out=st.booleans(), rows=st.integers(0, 3))
def test_every_datatype_goes_through_a_real_engine_and_back(
    types: Any, seed: int, binary_in: bool, binary_out: bool, rows: int
) -> None:
    import tritonclient.http as triton

    random = np.random.default_rng(seed)
    server, names = types
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    sent, tensors, wanted = {}, [], []
    for name in names:
        if name == "BYTES":
            array = np.array(["", "né", "日本語", '"\\\n'], object)[random.integers(0, 4, (rows, 2))]
        elif "float" in DTYPES[name]:
            array = random.standard_normal((rows, 2)).astype(numpy_dtype(DTYPES[name]))
        else:
            dtype = np.dtype(DTYPES[name])
            array = np.frombuffer(random.bytes(rows * 2 * dtype.itemsize), dtype).reshape(rows, 2)
            array = array.view(np.uint8) % 2 == 1 if name == "BOOL" else array
        sent[name] = array
        tensors.append(triton.InferInput(f"in_{name}", [rows, 2], name))
        # The client refuses JSON for the 16-bit floats; the server does not need to know.
        as_binary = binary_in or name in ("FP16", "BF16")
        tensors[-1].set_data_from_numpy(array, binary_data=as_binary)
        wanted.append(triton.InferRequestedOutput(f"out_{name}", binary_data=binary_out or name in ("FP16", "BF16")))
    result = client.infer("types", tensors, outputs=wanted)
    client.close()
    for name, array in sent.items():
        got = result.as_numpy(f"out_{name}")
        if name == "BYTES":
            text = [item.decode() if isinstance(item, bytes) else item for item in got.ravel()]
            assert text == array.ravel().tolist()
        else:
            # Older clients give bfloat16 as float32.
            assert got.dtype == array.dtype or (name == "BF16" and got.dtype == np.float32)
            np.testing.assert_array_equal(got.astype(np.float64), array.astype(np.float64))


def test_a_taken_port_is_refused() -> None:
    with listen("127.0.0.1", 0) as bound, pytest.raises(UsageError) as caught:
        listen("127.0.0.1", bound.getsockname()[1])
    assert caught.value.code == "DK701"
    assert "--http-port" in caught.value.hint


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a" * 300])
def test_a_host_that_is_not_here_is_refused(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        listen(host, 0)
    assert caught.value.code == "DK702"


def test_localhost_is_the_address_that_every_client_tries() -> None:
    with listen("localhost", 0) as bound:
        assert bound.getsockname()[0] == "127.0.0.1"
