"""The application without a process around it: translation, refusals, readiness, pages."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from deploykit.artifact import TensorSpec
from deploykit.errors import ModelError
from deploykit.runtime import Runtime
from deploykit.serving import model as model_module
from deploykit.serving.dataplane import DataPlane
from deploykit.serving.http import create_app
from deploykit.serving.inference import Limits
from deploykit.serving.model import Model, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


class Client:
    """Calls an application without a network."""

    def __init__(self, plane: DataPlane, limits: Limits | None = None) -> None:
        self.plane = plane
        self._app = create_app(plane, limits)

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **more)

        return asyncio.run(call())


@pytest.fixture(scope="module")
def loaded(model_file: Callable[[str, str], Path]) -> Callable[[str, str], Model]:
    def load(name: str, text: str) -> Model:
        model = Model(model_file(name, text), name=name)
        model.load()
        return model

    return load


@pytest.fixture(scope="module")
def client(loaded: Callable[[str, str], Model]) -> Client:
    text = '<ir_version: 8, opset_import: ["" : 17]> log (float[n,2] x) => (float[n,2] y) { y = Log(x) }'
    return Client(DataPlane([loaded("log", text)]), Limits(max_body=4096, idle_seconds=0.2))


def infer_body(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]} | changes
    return {"inputs": [{key: value for key, value in tensor.items() if value is not None}]}


INFER = "/v2/models/log/infer"
BAD_REQUESTS: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "an empty body": (b"", "empty"),
    "broken JSON": (b'{"inputs": [', "line 1, column 13"),
    "NaN text": (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [NaN, 1]}]}', "NaN"),
    "an infinity": (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [-Infinity]}]}', "Inf"),
    "deep nesting": (b"[" * 4000, "nested too deep"),
    "deep nesting in data": (b'{"inputs": [{"name": "x", "data": ' + b"[" * 3000, "nested too deep"),
    "a number of 4000 digits": (b"1" * 4000, "object"),
    "no UTF-8": (b'{"inputs": "\xff"}', "UTF-8"),
    "UTF-16": ('{"inputs": []}'.encode("utf-16"), "UTF-8"),
    "a list": (b"[]", "object"),
    "no inputs": ({}, "inputs"),
    "inputs are no list": ({"inputs": {}}, "inputs"),
    "an input is no object": ({"inputs": [1]}, "inputs[0]"),
    "no tensors": ({"inputs": []}, "lacks input 'x' (FP32 [n, 2])"),
    "no name": (infer_body(name=None), "inputs[0].name"),
    "an unknown name": (infer_body(name="xx"), "did you mean 'x'?"),
    "half a character": (b'{"inputs": [{"name": "\\ud800"}]}', "surrogate"),
    "the same input twice": ({"inputs": infer_body()["inputs"] * 2}, "twice"),
    "no datatype": (infer_body(datatype=None), "datatype"),
    "another datatype": (infer_body(datatype="FP64"), "'FP64', and it takes FP32 [n, 2]"),
    "an unknown datatype": (infer_body(datatype="FLOAT"), "datatypes: BOOL"),
    "no shape": (infer_body(shape=None), "shape"),
    "a negative shape": (infer_body(shape=[-1, 2]), "shape"),
    "a fractional shape": (infer_body(shape=[1.0, 2]), "shape"),
    "a true shape": (infer_body(shape=[True, 2]), "shape"),
    "a wrong width": (infer_body(shape=[1, 3], data=[1, 2, 3]), "[1, 3], and the model takes FP32 [n, 2]"),
    "a wrong rank": (infer_body(shape=[2]), "add 1 leading"),
    "an enormous shape": (infer_body(shape=[2**62, 2]), "large"),
    "a huge shape": (infer_body(shape=[2**40, 2]), "2 elements"),
    "too few elements": (infer_body(data=[1]), "1 elements"),
    "text for a number": (infer_body(data=["1", "2"]), "the string '1'"),
    "null for a number": (infer_body(data=[None, 1]), "binary data"),
    "no data": (infer_body(data=None), "neither"),
    "data twice": (infer_body(parameters={"binary_data_size": 8}), "both"),
    "binary data without any": (infer_body(data=None, parameters={"binary_data_size": 8}), "0 bytes left"),
    "a negative size": (infer_body(data=None, parameters={"binary_data_size": -8}), "binary_data_size"),
    "shared memory": (infer_body(data=None, parameters={"shared_memory_region": "r"}), "shared memory"),
    "parameters are no object": (infer_body() | {"parameters": []}, "parameters"),
    "a sequence": (infer_body() | {"parameters": {"sequence_id": 7}}, "sequence_id"),
    "a flag that is none": (infer_body() | {"parameters": {"binary_data_output": "yes"}}, "binary_data_output"),
    "a priority that is none": (infer_body() | {"parameters": {"priority": "high"}}, "priority must be a whole number"),
    "a negative timeout": (infer_body() | {"parameters": {"timeout": -1}}, "timeout must be a whole number"),
    "an id that is no text": (infer_body() | {"id": 5}, "id"),
    "an unknown output": (infer_body() | {"outputs": [{"name": "yy"}]}, "did you mean 'y'?"),
    "outputs are no list": (infer_body() | {"outputs": "y"}, "outputs"),
    "an output twice": (infer_body() | {"outputs": [{"name": "y"}] * 2}, "twice"),
    "classification": (infer_body() | {"outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "classif"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_told_what_is_wrong(client: Client, case: str) -> None:
    body, reason = BAD_REQUESTS[case]
    got = client("POST", INFER, content=body if isinstance(body, bytes) else json.dumps(body).encode())
    assert got.status_code == 400
    assert reason in got.json()["error"]
    assert re.fullmatch(r"DK71\d", got.json()["code"])
    assert "Traceback" not in got.text
    assert 'File "' not in got.text


@pytest.mark.parametrize("length", ["0", "-1", "99999", "x", "9" * 30, "²"])
def test_a_wrong_header_length_is_refused(client: Client, length: str) -> None:
    headers = {"Inference-Header-Content-Length": length.encode()}
    got = client("POST", INFER, content=json.dumps(infer_body()), headers=headers)
    assert got.status_code == 400
    assert "Inference-Header-Content-Length" in got.json()["error"]


def binary_request(size: int, raw: bytes) -> dict[str, Any]:
    header = json.dumps(infer_body(data=None, parameters={"binary_data_size": size})).encode()
    return {"content": header + raw, "headers": {"Inference-Header-Content-Length": str(len(header))}}


@pytest.mark.parametrize(("size", "raw"), [(8, b"1234567"), (7, b"1234567"), (8, b"123456789")])
def test_binary_data_of_another_length_is_refused(client: Client, size: int, raw: bytes) -> None:
    got = client("POST", INFER, **binary_request(size, raw))
    assert got.status_code == 400
    assert "bytes" in got.json()["error"]


def test_binary_data_in_and_json_out(client: Client) -> None:
    got = client("POST", INFER, **binary_request(8, np.array([1, np.e], np.float32).tobytes()))
    np.testing.assert_allclose(got.json()["outputs"][0]["data"], [0, 1], atol=1e-6)


def test_nan_and_infinity_are_null_in_json_and_exact_in_binary(client: Client) -> None:
    body = infer_body(data=[-1, 0])
    got = client("POST", INFER, json=body)
    assert got.status_code == 200
    row = got.json()["outputs"][0]
    assert (row["data"], row["parameters"]) == ([None, None], {"non_finite": 2})
    assert got.headers["X-Non-Finite-Outputs"] == "1"
    got = client("POST", INFER, json=body | {"parameters": {"binary_data_output": True}})
    header = int(got.headers["Inference-Header-Content-Length"])
    assert got.headers["Content-Type"] == "application/octet-stream"
    assert json.loads(got.content[:header])["outputs"][0]["parameters"] == {"binary_data_size": 8}
    np.testing.assert_array_equal(np.frombuffer(got.content[header:], np.float32), [np.nan, -np.inf])


def test_ids_and_versions_are_echoed(client: Client) -> None:
    got = client("POST", "/v2/models/log/versions/1/infer", json=infer_body() | {"id": "é-1"})
    assert got.json() | {"outputs": 0} == {"model_name": "log", "model_version": "1", "id": "é-1", "outputs": 0}
    assert client("GET", "/v2", headers={"X-Request-Id": "abc"}).headers["X-Request-Id"] == "abc"
    made = [client("GET", "/v2", headers={"X-Request-Id": "a" * 200}).headers["X-Request-Id"] for _ in range(3)]
    assert len(set(made)) == 3
    assert all(re.fullmatch(r"[0-9a-f]{16}-\d+", one) for one in made)


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", "", "nonsense"])
@pytest.mark.parametrize(("path", "body"), [(INFER, infer_body()), ("/predict", {"x": [[1, 2]]})])
def test_the_content_type_does_not_matter(client: Client, path: str, body: Any, content_type: str) -> None:
    got = client("POST", path, content=json.dumps(body), headers={"Content-Type": content_type})
    assert got.status_code == 200


def test_the_short_form(client: Client) -> None:
    assert client("POST", "/predict", json={"x": [[1, 1], [1, 1]]}).json() == {"y": [[0, 0], [0, 0]]}
    assert client("POST", "/predict", json=[[1, 1]]).json() == {"y": [[0, 0]]}
    got = client("POST", "/predict", json=[[-1, 1]])
    assert got.json() == {"y": [[None, 0]]}
    assert got.headers["X-Non-Finite-Outputs"] == "1"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"X": [[1, 2]]}, "no input 'X'"),
        ({}, "lacks input 'x'"),
        ([1, 2], "shape [2], and the model takes FP32 [n, 2]; add 1 leading"),
        ([[1, 2], [1]], "along axis 1"),
        ([["a", "b"]], "the string 'a'"),
        ("text", "shape []"),
        (None, "shape []"),
        ([], "shape [0]"),
    ],
)
def test_the_short_form_says_what_is_wrong(client: Client, body: Any, reason: str) -> None:
    got = client("POST", "/predict", content=json.dumps(body))
    assert got.status_code == 400
    assert reason in got.json()["error"]


def test_unknown_models_versions_and_paths(client: Client) -> None:
    assert "did you mean 'log'" in client("POST", "/v2/models/logg/infer", json={}).json()["error"]
    assert client("GET", "/v2/models/log/versions/2").status_code == 404
    for method, path, status in (("GET", "/nothing", 404), ("GET", INFER, 405), ("POST", "/v2/", 404)):
        got = client(method, path)
        assert got.status_code == status
        assert path in got.json()["error"]


def test_metadata(client: Client) -> None:
    assert client("GET", "/v2").json()["extensions"] == [
        "binary_tensor_data",
        "schedule_policy",
        "model_repository",
        "statistics",
    ]
    assert client("GET", "/v2/models/log").json() == {
        "name": "log",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
    }
    assert client("GET", "/v2/models/log/versions/1").json() == client("GET", "/v2/models/log").json()


def test_a_large_body_is_refused_by_its_length_and_while_it_comes(client: Client) -> None:
    async def pieces() -> Any:
        for _ in range(6):
            yield b"[" * 1000

    assert client("POST", "/predict", content=b"[" * 5000).status_code == 413
    got = client("POST", "/predict", content=pieces())
    assert got.status_code == 413
    assert "--max-body-mb" in got.json()["error"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_bodies_within_the_limit(client: Client, encoding: str) -> None:
    import gzip
    import zlib

    pack = gzip.compress if encoding == "gzip" else zlib.compress
    send = {"headers": {"Content-Encoding": encoding}}
    assert client("POST", "/predict", content=pack(b"[[1, 1]]"), **send).json() == {"y": [[0, 0]]}
    assert client("POST", "/predict", content=pack(b"[" * 10_000_000)[:4000], **send).status_code == 413
    assert client("POST", "/predict", content=pack(b"[[1, 1]]")[:-6], **send).status_code == 400
    assert client("POST", "/predict", content=b"not packed", **send).status_code == 400
    assert client("POST", "/predict", content=b"[]", headers={"Content-Encoding": "br"}).status_code == 400


def test_metrics_count_answers_rows_and_refusals(loaded: Callable[[str, str], Model]) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> m (float[n] x) => (float[n] y) { y = Relu(x) }'
    client = Client(DataPlane([loaded("m", text)]))
    assert client("POST", "/predict", json=[1, 2, 3]).status_code == 200
    assert client("POST", "/predict", json=["a"]).status_code == 400
    assert client("POST", "/v2/models/evil{}/infer", json={}).status_code == 404
    page = client("GET", "/metrics").text
    for line in (
        'deploykit_requests_total{code="200",endpoint="predict",model="m"} 1.0',
        'deploykit_requests_total{code="400",endpoint="predict",model="m"} 1.0',
        'deploykit_requests_total{code="404",endpoint="infer",model=""} 1.0',
        'deploykit_request_errors_total{reason="DK712"} 1.0',
        'deploykit_queue_seconds_count{model="m"} 1.0',
        'deploykit_compute_seconds_count{model="m"} 1.0',
        'deploykit_batch_rows_sum{model="m"} 3.0',
        'deploykit_request_seconds_count{model="m"} 2.0',
        'deploykit_model_ready{model="m"} 1.0',
        "deploykit_requests_in_flight 1.0",
    ):
        assert line in page.splitlines()
    assert "evil" not in page


def test_the_page_and_the_description_load_nothing_from_elsewhere(client: Client) -> None:
    document = client("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    example = document["paths"][INFER]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert client("POST", INFER, json=example).status_code == 200
    example = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert client("POST", "/predict", json=example).status_code == 200
    page = client("GET", "/docs")
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert set(re.findall(r"https?://[^/\s'\"&]+", page.text)) == {"http://test"}
    assert not re.findall(r"<(script|link|img|iframe)", page.text)


def test_a_model_that_loads_is_known_and_not_ready(client: Client, tmp_path: Path) -> None:
    waiting = Client(DataPlane([Model(tmp_path / "later.onnx", name="later")]))
    assert waiting("GET", "/v2/health/live").status_code == 200
    assert waiting("GET", "/v2/health/ready").status_code == 503
    assert waiting("GET", "/v2/models/later/ready").json() == {"name": "later", "version": "1", "ready": False}
    got = waiting("POST", "/predict", json=[])
    assert (got.status_code, got.headers["Retry-After"]) == (503, "1")
    assert "later" in got.json()["error"]
    assert client("GET", "/v2/health/ready").json() == {"ready": True}


def test_a_draining_server_answers_and_is_not_ready(client: Client) -> None:
    client.plane.draining = True
    try:
        assert client("GET", "/v2/health/live").status_code == 200
        assert client("GET", "/v2/health/ready").status_code == 503
        got = client("POST", "/predict", json=[[1, 1]])
        assert (got.status_code, got.headers["Connection"]) == (200, "close")
    finally:
        client.plane.draining = False


class Fragile(Runtime):
    """An engine that fails on negative numbers, and on everything once it is broken."""

    engine = "fragile"
    inputs = (TensorSpec("x", "float32", ("n",)), TensorSpec("z", "float32", ("n",)))
    outputs = (TensorSpec("y", "float32", ("n",)),)
    broken = False

    def predict(self, feeds: Any) -> dict[str, np.ndarray]:
        if self.broken or feeds["x"].sum() < -100:
            raise RuntimeError("/build/core/kernel.cc:42 virtual Run() it went wrong")
        return {"y": feeds["x"]}


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Fragile, Client]:
    engine = Fragile()
    monkeypatch.setattr(model_module, "open_runtime", lambda path, options: engine)
    model = Model(tmp_path / "m.onnx", name="m")
    model.load()
    return engine, Client(DataPlane([model]))


def test_an_input_that_the_engine_refuses_is_the_clients_fault(fragile: tuple[Fragile, Client]) -> None:
    _, client = fragile
    got = client("POST", "/predict", json={"x": [-999, 1], "z": [1]})
    assert got.status_code == 400
    assert "it went wrong" in got.json()["error"]
    assert "kernel.cc" not in got.text
    assert "dimension 'n' is 2 in 'x', 1 in 'z'" in got.json()["error"]
    assert client("GET", "/v2/health/ready").status_code == 200


def test_a_broken_engine_is_the_servers_fault_and_not_ready(fragile: tuple[Fragile, Client]) -> None:
    engine, client = fragile
    engine.broken = True
    assert client("POST", "/predict", json={"x": [1], "z": [1]}).status_code == 500
    assert client("GET", "/v2/health/ready").status_code == 503
    engine.broken = False
    assert client("POST", "/predict", json={"x": [1], "z": [1]}).status_code == 200
    assert client("GET", "/v2/health/ready").status_code == 200


def test_a_bug_of_ours_shows_no_traceback(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Iterable[object]) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(client.plane, "infer", fail)
    got = client("POST", "/predict", json=[[1, 1]], headers={"X-Request-Id": "find-me"})
    assert got.status_code == 500
    assert "secret" not in got.text
    assert "find-me" in got.text
    assert "secret" in caplog.text


def test_a_tensor_that_the_protocol_has_no_word_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = Fragile()
    engine.inputs = (TensorSpec("x", "seq(tensor(float))", ()),)
    monkeypatch.setattr(model_module, "open_runtime", lambda path, options: engine)
    model = Model(tmp_path / "m.onnx", name="m")
    with pytest.raises(ModelError) as caught:
        model.load()
    assert caught.value.code == "DK705"
    assert model.state is State.FAILED
