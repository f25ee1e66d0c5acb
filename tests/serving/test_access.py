"""A server with a token: what it lets in by either protocol, and what its statistics say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from deploykit.errors import UsageError
from deploykit.serving.access import Access, read_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOKEN = "0123456789abcdef0123"
LOG = '<ir_version: 8, opset_import: ["" : 17]> log (float[n,2] x) => (float[n,2] y) { y = Log(x) }'
WITH = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def server(start: Callable[..., Any], model_file: Callable[[str, str], Path], tmp_path_factory: Any) -> Any:
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(TOKEN + "\n")
    return start(model_file("log", LOG), "--token-file", file)


def test_without_a_token_everybody_is_let_in() -> None:
    assert Access(None).allows(None)
    access = Access(TOKEN)
    for right in ("Bearer", "bearer", "BEARER"):  # a scheme's case does not count
        assert access.allows(f"{right} {TOKEN}".encode())
    for wrong in (None, b"", TOKEN.encode(), f"Basic {TOKEN}".encode(), f"Bearer {TOKEN}x".encode(), b"Bearer "):
        assert not access.allows(wrong)


@pytest.mark.parametrize("text", ["", "short", "two words of a token", "é" * 20, "line\nanother line of it"])
def test_a_file_without_a_usable_token_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="no usable token") as caught:
        read_token(tmp_path / "token")
    assert caught.value.code == "DK730"
    with pytest.raises(UsageError, match="cannot read"):
        read_token(tmp_path / "absent")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}])
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/predict"), ("POST", "/v2/models/log/infer"), ("GET", "/v2/models/log"), ("GET", "/metrics"),
     ("GET", "/docs"), ("POST", "/v2/repository/index"), ("GET", "/nothing")],
)  # fmt: skip
def test_http_without_it_is_401(server: Any, method: str, path: str, headers: dict[str, str]) -> None:
    got = server.call(method, path, [[1, 1]] if method == "POST" else None, headers)
    assert (got.status, got.json["code"], got.headers["WWW-Authenticate"]) == (401, "DK731", "Bearer")


def test_http_with_it_and_health_without(server: Any) -> None:
    assert server.call("GET", "/v2/health/ready").status == 200
    np.testing.assert_allclose(server.call("POST", "/predict", [[1, 1]], WITH).json["y"], [[0, 0]])


def test_grpc(server: Any) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    x = triton.InferInput("x", [1, 2], "FP32")
    x.set_data_from_numpy(np.ones((1, 2), np.float32))
    with triton.InferenceServerClient(f"127.0.0.1:{server.ready_line['grpc']}") as client:
        assert client.is_server_ready()
        with pytest.raises(triton.InferenceServerException) as caught:
            client.infer("log", [x])
        assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        got = client.infer("log", [x], headers={"authorization": f"Bearer {TOKEN}"})
        np.testing.assert_array_equal(got.as_numpy("y"), [[0, 0]])


def test_statistics_count_answers_calls_and_failures(
    start: Callable[..., Any], model_file: Callable[[str, str], Path]
) -> None:
    server = start(model_file("gathers", GATHER))
    http, grpc = pytest.importorskip("tritonclient.http"), pytest.importorskip("tritonclient.grpc")
    for _ in range(2):
        assert server.call("POST", "/predict", [0, 1, 1]).status == 200
    assert server.call("POST", "/predict", [9]).status == 400  # the engine refuses the index
    assert server.call("POST", "/predict", "no tensor").status == 400  # never gets so far
    with grpc.InferenceServerClient(f"127.0.0.1:{server.ready_line['grpc']}") as client:
        (said,) = client.get_inference_statistics("gathers", as_json=True)["model_stats"]
    (row,) = http.InferenceServerClient(f"127.0.0.1:{server.port}").get_inference_statistics("gathers")["model_stats"]
    assert (row["inference_count"], row["execution_count"]) == (6, 2)
    stats = row["inference_stats"]
    assert (stats["success"]["count"], stats["fail"]["count"]) == (2, 1)
    assert stats["success"]["ns"] >= stats["queue"]["ns"] + stats["compute_infer"]["ns"] > 0
    assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in row["batch_stats"]] == [(3, 2)]
    assert int(said["inference_count"]) == 6
    assert int(said["inference_stats"]["fail"]["count"]) == 1


GATHER = """<ir_version: 8, opset_import: ["" : 17]> gathers (int64[n] i) => (float[n] y)
<float[2] table = {1, 2}> { y = Gather(table, i) }"""
