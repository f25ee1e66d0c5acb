"""What clients do that no well-meaning one would, and what it must leave of the server."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from deploykit.serving.batching import Computed
from deploykit.serving.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GATHER = """<ir_version: 8, opset_import: ["": 17]>
gather (int64[n,2] i) => (float[n,2] y) <float[3] t = {1.0, 2.0, 3.0}> { y = Gather(t, i) }"""


@pytest.fixture(scope="module")
def gather(start: Callable[..., Any], model_file: Callable[[str, str], Path]) -> Any:
    return start(model_file("gather", GATHER))


@pytest.fixture(scope="module")
def loop(start: Callable[..., Any], model_file: Callable[[str, str], Path], loop_text: str) -> Any:
    return start(model_file("waiting loop", loop_text), "--name", "loop", "--instances", 1)


def metric(server: Any, name: str) -> float:
    page: str = server.call("GET", "/metrics").body.decode()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))
    )


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def long_trips(server: Any) -> int:
    """Trips that take about a second."""
    trips, took = 50_000, 0.0
    while took < 0.3:
        trips *= 2
        began = time.monotonic()
        assert server.call("POST", "/predict", {"trips": trips, "x": [0]}).status == 200
        took = time.monotonic() - began
    return int(trips / took)


def test_the_request_of_a_client_that_leaves_is_not_computed(loop: Any) -> None:
    body = json.dumps({"trips": long_trips(loop), "x": [0]}).encode()
    request = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    before = metric(loop, "deploykit_compute_seconds_count")
    with contextlib.ExitStack() as stack:
        for copies in (1, 1, 1, 3):  # the last client has sent three at once
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", loop.port)))
            sock.sendall(request * copies)
        until(lambda: metric(loop, "deploykit_queue_length") == 3)
    until(lambda: metric(loop, "deploykit_queue_length") == 0)
    until(lambda: metric(loop, "deploykit_requests_in_flight") == 1)  # the one that asks
    assert loop.call("POST", "/predict", {"trips": 1, "x": [0]}).json == {"y": [1]}
    assert metric(loop, "deploykit_compute_seconds_count") == before + 1
    lines = [line for line in loop.log() if line.get("status") == 499]
    assert len(lines) == 4
    assert {line["reason"] for line in lines} == {"left"}
    assert not [line for line in loop.log() if "traceback" in line]


@pytest.mark.parametrize("name", ["Upgrade", "UPGRADE", "upgrade"])
def test_an_offer_of_another_protocol_is_passed_over(gather: Any, name: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gather.port, timeout=30)
    for _ in range(2):
        offer = {"Connection": "Upgrade, HTTP2-Settings", name: "h2c", "HTTP2-Settings": "AAMAAABk"}
        connection.request("POST", "/predict", "[[0, 2]]", offer)
        assert json.loads(connection.getresponse().read()) == {"y": [[1, 3]]}
    connection.close()


@pytest.mark.parametrize("head", [b"A: " + b"a" * 66_000 + b"\r\n", b"A: a\r\n" * 40_000])
@pytest.mark.parametrize("body", [b"", b"[[0, 1]]"])
def test_a_head_beyond_the_limit_is_refused_although_it_comes_at_once(gather: Any, head: bytes, body: bytes) -> None:
    with socket.create_connection(("127.0.0.1", gather.port)) as sock:
        sock.settimeout(20)
        sock.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(body))
        with contextlib.suppress(ConnectionError):
            sock.sendall(head + b"\r\n" + body)
        assert sock.recv(99).startswith(b"HTTP/1.1 431 ")


def test_what_the_engine_refuses_leaves_no_line_but_json(gather: Any) -> None:
    assert gather.call("POST", "/predict", [[0, 99]]).status == 400
    time.sleep(0.1)
    assert gather.log()  # which reads every line as JSON


def test_no_rows_are_an_answer(gather: Any) -> None:
    tensor = {"name": "i", "datatype": "INT64", "shape": [0, 2], "data": []}
    got = gather.call("POST", "/v2/models/gather/infer", {"inputs": [tensor]})
    assert got.json["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [0, 2], "data": []}]


def test_clients_cannot_grow_the_statistics_without_end() -> None:
    statistics = Statistics()
    for rows in range(2000):
        statistics.answered(0.0, rows, Computed({"y": np.zeros(1)}, 0.0, 0.0, rows, first=True))
    row = statistics.as_dict("m", "1")
    assert row["execution_count"] == 2000
    assert len(row["batch_stats"]) == 256


SCALAR = '<ir_version: 8, opset_import: ["": 17]> scalar (float x) => (float y) { y = Exp(x) }'


def test_a_scalar_has_no_rows_to_count(start: Callable[..., Any], model_file: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a b é" / "1"
    folder.mkdir(parents=True)
    model_file("scalar", SCALAR).rename(folder / "model.onnx")
    (folder.parent / "config.pbtxt").write_text("max_batch_size: 4")
    server = start(tmp_path, "--no-grpc")
    tensor = {"name": "x", "datatype": "FP32", "shape": [], "data": [0]}
    assert server.call("POST", "/v2/models/a%20b%20%C3%A9/infer", {"inputs": [tensor]}).json["outputs"][0]["data"] == [
        1
    ]
    assert server.stop() == 0


def test_bytes_that_are_no_grpc_message_are_the_callers_fault(gather: Any) -> None:
    grpc = pytest.importorskip("grpc")
    with grpc.insecure_channel(f"127.0.0.1:{gather.ready_line['grpc']}") as channel:
        for method in ("ModelInfer", "RepositoryIndex"):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(b"\xff\xff nonsense", timeout=30)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not [line for line in gather.log() if "traceback" in line]


def test_large_json_is_read_and_written_beside_the_event_loop(gather: Any) -> None:
    values = np.random.default_rng(0).integers(0, 3, (120_000, 2))
    expected = (values + 1).ravel().tolist()
    assert gather.call("POST", "/predict", {"i": values.tolist()}).json["y"] == (values + 1).tolist()
    tensor = {"name": "i", "datatype": "INT64", "shape": [120_000, 2], "data": values.tolist()}
    got = gather.call("POST", "/v2/models/gather/infer", {"inputs": [tensor]})
    assert got.json["outputs"][0]["data"] == expected
    tensor["data"] = [*tensor["data"], 0]
    assert gather.call("POST", "/v2/models/gather/infer", {"inputs": [tensor]}).status == 400


def test_statistics_of_all_models_as_tritonclient_asks_for_them(gather: Any) -> None:
    for kind, port in (("http", gather.port), ("grpc", gather.ready_line["grpc"])):
        triton = pytest.importorskip(f"tritonclient.{kind}")
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            found = client.get_inference_statistics()
        rows = found["model_stats"] if kind == "http" else found.model_stats
        assert [row["name"] if kind == "http" else row.name for row in rows] == ["gather"]


def test_names_of_megabytes_and_millions_of_entries_are_refused_at_once(gather: Any) -> None:
    grpc = pytest.importorskip("grpc")
    service = pytest.importorskip("tritonclient.grpc.service_pb2")
    long = "x" * 20_000_000

    def tensor(**more: Any) -> Any:
        return service.ModelInferRequest.InferInputTensor(**{"name": "i", "datatype": "INT64", "shape": [1, 2], **more})

    many = [0] * 4_000_000
    messages = [
        service.ModelInferRequest(model_name=long),
        service.ModelInferRequest(model_name="gather", inputs=[tensor(name=long)]),
        service.ModelInferRequest(model_name="gather", inputs=[tensor(shape=many)]),
        service.ModelInferRequest(model_name="gather", inputs=[tensor()], raw_input_contents=[b""] * len(many)),
    ]
    body = {"inputs": [{"name": long, "datatype": "INT64", "shape": [1, 2], "data": [0, 0]}]}
    began = psutil.Process(gather.process.pid).cpu_times().user
    assert gather.call("POST", "/v2/models/gather/infer", body).status == 400
    with grpc.insecure_channel(f"127.0.0.1:{gather.ready_line['grpc']}") as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for message in messages:
            with pytest.raises(grpc.RpcError) as refused:
                infer(message.SerializeToString(), timeout=60)
            assert refused.value.code().name in ("INVALID_ARGUMENT", "NOT_FOUND")
    took = psutil.Process(gather.process.pid).cpu_times().user - began
    assert took < 1  # comparing the three long names alone takes more than three seconds
