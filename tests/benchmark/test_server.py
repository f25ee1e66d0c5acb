"""Benchmarks of a running server: deploykit's own over both protocols, and servers that are strange."""

from __future__ import annotations

import contextlib
import http.server
import json
import subprocess
import sys
import threading

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.artifact import TensorSpec
from deploykit.benchmark import tensors
from deploykit.benchmark.server import Address, open_server, parse_url
from deploykit.errors import DeploykitError, UnavailableError, UsageError

QUICK = {"seconds": 0.2}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://localhost:8000", Address("http", "localhost", 8000)),
        ("http://localhost:8000/", Address("http", "localhost", 8000)),
        ("https://example.com", Address("https", "example.com", 443)),
        ("http://h/some/path", Address("http", "h", 80, "/some/path")),
        ("http://h:1/p/v2/models/my%20model", Address("http", "h", 1, "/p", "my model")),
        ("http://h:1/v2/models/m/versions/3/infer", Address("http", "h", 1, "", "m", "3")),
        ("grpc://h", Address("grpc", "h", 8001)),
        ("grpc://[::1]:9", Address("grpc", "::1", 9)),
    ],
)
def test_addresses(url, address):
    assert parse_url(url) == address


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://h", "http://", "http://u:p@h", "grpc://h/m", "http://h:x"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError):
        parse_url(url)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.5, -2.0]], np.float32),
        np.array([[1.5, -2.0]], np.float16),
        np.array([1, -(2**62)], np.int64),
        np.array([[True, False]]),
        np.array([["a", "ü"]], object),
        np.zeros((0, 3), np.uint8),
    ],
    ids=lambda array: str(array.dtype),
)
def test_a_tensor_comes_back_as_it_went(array, binary):
    # An answer has the shape of a request, with outputs in place of inputs.
    body, length = tensors.request({"x": array}, [TensorSpec("y", "float32", None)], binary=binary)
    head = json.loads(body[:length])
    answer = json.dumps({"outputs": head["inputs"]}).encode()
    found = tensors.response(answer + (body[length:] if length else b""), len(answer) if length else None)["x"]
    assert (found.shape, found.tolist()) == (array.shape, array.tolist())
    assert found.dtype == array.dtype


@pytest.mark.parametrize(
    "raw", [b"no", b"[]", b"{}", b'{"outputs": [{"name": "y", "datatype": "FP9", "shape": [1], "data": [1]}]}']
)
def test_an_answer_that_is_none_is_one_error(raw):
    with pytest.raises(DeploykitError) as caught:
        tensors.response(raw, None)
    assert caught.value.code == "DK419"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "scorer.onnx"
    text = "agraph (float[n,8] x) => (float[n,8] y) { y = Softmax (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}'), path)
    return path


@pytest.fixture(scope="module")
def served(model):
    """Ports of a `deploykit serve` of the model: http and grpc."""
    pytest.importorskip("uvicorn")
    command = [
        sys.executable,
        "-m",
        "deploykit",
        "serve",
        str(model),
        "--http-port",
        "0",
        "--grpc-port",
        "0",
        "--quiet",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Rows whose largest value is their label, but for the last of eight."""
    x = np.eye(8, dtype=np.float32)
    labels = np.arange(8)
    labels[-1] = 0
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, x=x, y=labels)
    return path


@pytest.mark.serial
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_server_stands_beside_the_artifact_it_serves(model, served, labelled, scheme):
    url = f"{scheme}://localhost:{served[scheme]}"
    report = deploykit.bench(
        model, url=url, data=str(labelled), eval=str(labelled), clients=3, batch=2, per_op=True, **QUICK
    )
    assert report.exit_code == 0
    direct, row = report.metrics["rows"]
    assert (row["artifact"], row["label"], row["model"], row["clients"]) == (url, "server scorer", "scorer", 3)
    assert row["execution"] == "real"
    assert row["runtime"].startswith("deploykit")
    assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    # Three at once, two samples a call: within what the median latency allows.
    assert 0.2 < row["throughput_per_s"] / (3 * 2 / row["p50_ms"] * 1e3) < 1.5
    assert row["accuracy"] == direct["accuracy"] == pytest.approx(87.5)
    assert set(row["rss_mb"].values()) == {None}
    assert (row["size_mb"], row["cpu_ms"], row["profile"]) == (None, [], None)
    assert "DK410" in {finding.code for finding in report.findings}
    assert [artifact.path for artifact in report.artifacts] == [model]


@pytest.mark.serial
def test_a_server_alone_needs_no_artifact_and_gets_random_inputs(served):
    report = deploykit.bench(url=f"http://localhost:{served['http']}", **QUICK)
    assert (report.exit_code, report.findings[0].code) == (0, "DK320")
    assert report.metrics["verdict"].startswith("server scorer: p50 ")


@pytest.mark.serial
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_model_that_is_not_there_is_named_with_those_that_are(served, scheme):
    with pytest.raises(UnavailableError) as caught:
        open_server(f"{scheme}://localhost:{served[scheme]}", "other")
    assert (caught.value.code, caught.value.exit_code, caught.value.context) == ("DK418", 3, ("it has scorer",))


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_where_nobody_answers(scheme):
    with pytest.raises(UnavailableError) as caught:
        deploykit.bench(url=f"{scheme}://localhost:1", **QUICK)
    assert (caught.value.code, caught.value.exit_code) == ("DK417", 3)


@contextlib.contextmanager
def strange(answers):
    """A server that answers what it is told to, by method and path; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            status, body = answers.get(f"{self.command} {self.path}", (404, b"nothing"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the base class calls it so

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


METADATA = {
    "name": "m",
    "platform": "other",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
}
HEALTHY = {
    "GET /v2": (200, b'{"name": "strange", "version": "1"}'),
    "POST /v2/repository/index": (200, b'[{"name": "m", "state": "READY"}, {"name": "old", "state": "UNAVAILABLE"}]'),
    "GET /v2/models/m/ready": (200, b""),
    "GET /v2/models/m": (200, json.dumps(METADATA).encode()),
}


def test_a_server_without_binary_data_is_called_in_json():
    answer = b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.5, null]}]}'
    with strange({**HEALTHY, "POST /v2/models/m/infer": (200, answer)}) as port:
        runtime = open_server(f"http://127.0.0.1:{port}", None)
        assert runtime.engine == "strange 1 (other)"
        assert runtime.inputs == (TensorSpec("x", "float32", ("batch", "x_dim1")),)
        found = runtime.predict({"x": np.ones((2, 3), np.float32)})["y"]
        runtime.close()
    assert found.dtype == np.float32
    assert found[0] == 1.5
    assert np.isnan(found[1])


def test_what_a_server_says_against_a_call_is_told():
    refusal = {"POST /v2/models/m/infer": (400, b'{"error": "x must be positive"}')}
    with strange({**HEALTHY, **refusal}) as port:
        runtime = open_server(f"http://127.0.0.1:{port}", "m")
        with pytest.raises(DeploykitError, match="answers 400: x must be positive") as caught:
            runtime.predict({"x": np.ones((2, 3), np.float32)})
        runtime.close()
    assert caught.value.code == "DK419"


@pytest.mark.parametrize(
    ("answers", "error", "said"),
    [
        ({}, UnavailableError, "has no /v2"),
        ({"GET /v2": (200, b"<html>")}, UnavailableError, "has no /v2"),
        ({"GET /v2": HEALTHY["GET /v2"]}, UsageError, "does not say which models"),
        (
            {**HEALTHY, "POST /v2/repository/index": (200, b'[{"name": "m"}, {"name": "n"}]')},
            UsageError,
            "has 2 models",
        ),
        ({**HEALTHY, "GET /v2/models/m/ready": (400, b"")}, UnavailableError, "no model 'm' that is ready"),
    ],
)
def test_strange_servers_are_one_error(answers, error, said):
    with strange(answers) as port, pytest.raises(error, match=said):
        open_server(f"http://127.0.0.1:{port}", None)


def test_clients_are_for_servers(model):
    with pytest.raises(UsageError, match="--clients is for a server"):
        deploykit.bench(model, clients=4)
