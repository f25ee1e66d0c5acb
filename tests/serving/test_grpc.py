"""KServe v2 over gRPC: the stock tritonclient against real server processes, and hostile messages."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from deploykit.data.dtypes import numpy_dtype
from deploykit.serving.dataplane import DataPlane
from deploykit.serving.datatypes import DTYPES
from deploykit.serving.errors import UnfitInputError
from deploykit.serving.model import Model

grpc = pytest.importorskip("grpc")
triton = pytest.importorskip("tritonclient.grpc")

from deploykit.serving import grpc_tensors  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG = '<ir_version: 8, opset_import: ["" : 17]> log (float[n,2] x) => (float[n,2] y) { y = Log(x) }'
TYPES = {"BOOL": "bool", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8",
         "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "FP16": "float16", "FP32": "float",
         "FP64": "double", "BF16": "bfloat16", "BYTES": "string"}  # fmt: skip
CONTENTS = {"BOOL": ("bool_contents", [True, False]), "INT8": ("int_contents", [-128, 127]),
            "INT16": ("int_contents", [-32768, 3]), "INT32": ("int_contents", [-5, 2**31 - 1]),
            "INT64": ("int64_contents", [-(2**63), 7]), "UINT8": ("uint_contents", [0, 255]),
            "UINT16": ("uint_contents", [9, 65535]), "UINT32": ("uint_contents", [1, 2**32 - 1]),
            "UINT64": ("uint64_contents", [1, 2**64 - 1]), "FP32": ("fp32_contents", [0.5, -3.25]),
            "FP64": ("fp64_contents", [0.1, 1e300]), "BYTES": ("bytes_contents", [b"a", "é".encode()])}  # fmt: skip


@pytest.fixture(scope="module")
def server(start: Callable[..., Any], model_file: Callable[[str, str], Path]) -> Any:
    return start(model_file("log", LOG), "--max-body-mb", 1)


@pytest.fixture(scope="module")
def client(server: Any) -> Any:
    with triton.InferenceServerClient(f"127.0.0.1:{server.ready_line['grpc']}") as made:
        yield made


def tensor(values: Any) -> Any:
    array = np.asarray(values, np.float32)
    made = triton.InferInput("x", list(array.shape), "FP32")
    made.set_data_from_numpy(array)
    return made


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(triton.InferenceServerException) as caught:
        call()
    return caught.value.status(), caught.value.message()


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("log")
    assert client.is_model_ready("log", "1")
    assert client.get_server_metadata().name == "deploykit"
    made = client.get_model_metadata("log")
    assert (made.name, list(made.versions), made.platform) == ("log", ["1"], "onnxruntime_onnx")
    assert [(row.name, row.datatype, list(row.shape)) for row in made.inputs] == [("x", "FP32", [-1, 2])]


def test_an_inference(client: Any) -> None:
    wanted = [triton.InferRequestedOutput("y")]
    got = client.infer("log", [tensor([[1, np.e]])], outputs=wanted, request_id="r1", priority=1, timeout=10_000_000)
    np.testing.assert_allclose(got.as_numpy("y"), [[0, 1]], atol=1e-6)
    response = got.get_response()
    assert (response.id, response.model_name, response.model_version) == ("r1", "log", "1")


def test_nan_and_infinity_arrive_as_they_are(client: Any) -> None:
    np.testing.assert_array_equal(client.infer("log", [tensor([[-1, 0]])]).as_numpy("y"), [[np.nan, -np.inf]])


def test_many_at_once_from_asyncio(server: Any) -> None:
    import tritonclient.grpc.aio as aio

    async def main() -> list[Any]:
        async with aio.InferenceServerClient(f"127.0.0.1:{server.ready_line['grpc']}") as made:
            return await asyncio.gather(*(made.infer("log", [tensor([[i + 1, 1]])]) for i in range(40)))

    for index, got in enumerate(asyncio.run(main())):
        np.testing.assert_allclose(got.as_numpy("y"), [[np.log(index + 1), 0]], atol=1e-6)


def test_refusals_have_the_protocols_codes_and_our_reasons(client: Any) -> None:
    assert refused(lambda: client.infer("absent", [tensor([[1, 2]])])) == (
        "StatusCode.NOT_FOUND", "there is no model 'absent'; this server has 'log'")  # fmt: skip
    assert refused(lambda: client.infer("log", [tensor([[1, 2]])], model_version="7"))[0] == "StatusCode.NOT_FOUND"
    code, text = refused(lambda: client.infer("log", [tensor([[1, 2, 3]])]))
    assert code == "StatusCode.INVALID_ARGUMENT"
    assert "input 'x' has shape [1, 3], and the model takes FP32 [n, 2]" in text
    code, text = refused(lambda: client.infer("log", [tensor([[1, 2]])], sequence_id=5))
    assert (code, "keeps no state" in text) == ("StatusCode.UNIMPLEMENTED", True)
    wanted = [triton.InferRequestedOutput("y", class_count=3)]
    assert refused(lambda: client.infer("log", [tensor([[1, 2]])], outputs=wanted))[0] == "StatusCode.UNIMPLEMENTED"
    code, text = refused(lambda: client.load_model("log"))
    assert (code, "no repository" in text) == ("StatusCode.PERMISSION_DENIED", True)
    code, _ = refused(lambda: client.infer("log", [tensor(np.ones((200_000, 2)))]))
    assert code == "StatusCode.RESOURCE_EXHAUSTED"
    assert client.is_server_ready()


def raw_call(server: Any, message: Any) -> Any:
    from tritonclient.grpc import service_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{server.ready_line['grpc']}") as channel:
        return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=20)


def message(**changes: Any) -> Any:
    from tritonclient.grpc import service_pb2 as pb

    made = pb.ModelInferRequest(model_name="log")
    row = made.inputs.add(name="x", datatype="FP32", shape=changes.get("shape", [1, 2]))
    row.contents.fp32_contents.extend(changes.get("values", [1, 1]))
    made.raw_input_contents.extend(changes.get("raw", []))
    return made


HOSTILE = {
    "contents and raw": (message(raw=[b"\0" * 8]), "both contents and raw_input_contents"),
    "raw for other inputs": (message(raw=[b"", b""]), "2 tensors for 1 inputs"),
    "a negative size": (message(shape=[-1, 2]), "shape must be a list of sizes"),
    "an enormous shape": (message(shape=[2**62, 2]), "no tensor is as large"),
    "too few elements": (message(values=[1]), "has 1 elements, and shape [1, 2] takes 2"),
    "no elements": (message(values=[]), "has 0 elements"),
    "a rank of 40": (message(shape=[1] * 40), "no tensor is as large"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_bad_message_is_told_what_is_wrong(server: Any, case: str) -> None:
    sent, why = HOSTILE[case]
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(server, sent)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert why in caught.value.details()
    assert "Traceback" not in caught.value.details()


def test_log_and_metrics_know_of_it(server: Any, client: Any) -> None:
    client.infer("log", [tensor([[1, 1]])], headers={"x-request-id": "mine"})
    page = server.call("GET", "/metrics").body.decode()
    assert 'deploykit_requests_total{code="OK",endpoint="infer",model="log"}' in page
    until = time.monotonic() + 20
    while not (found := [line for line in server.log() if line.get("request_id") == "mine"]):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert found[0]["path"] == "/inference.GRPCInferenceService/ModelInfer"
    assert (found[0]["method"], found[0]["status"], found[0]["model"]) == ("gRPC", "OK", "log")


@pytest.mark.parametrize("datatype", TYPES)
def test_every_datatype_goes_through_a_real_engine_and_back(
    model_file: Callable[[str, str], Path], datatype: str
) -> None:
    from tritonclient.grpc import service_pb2 as pb

    kind = TYPES[datatype]
    text = f'<ir_version: 9, opset_import: ["" : 17]> t ({kind}[n] x) => ({kind}[n] y) {{ y = Identity(x) }}'
    model = Model(model_file(f"t{datatype}", text), name="t")
    model.load()
    sent = pb.ModelInferRequest(model_name="t")
    row = sent.inputs.add(name="x", datatype=datatype, shape=[2])
    if datatype in CONTENTS:
        field, values = CONTENTS[datatype]
        getattr(row.contents, field).extend(values)
    else:
        values = [1.5, -2]
        sent.raw_input_contents.append(np.array(values).astype(numpy_dtype(DTYPES[datatype])).tobytes())
    result = asyncio.run(DataPlane([model]).infer(model, grpc_tensors.read_request(sent, model)))
    got = grpc_tensors.write_response(result, "")
    assert (got.outputs[0].datatype, list(got.outputs[0].shape)) == (datatype, [2])
    if datatype == "BYTES":
        assert got.raw_output_contents[0] == b"\1\0\0\0a\2\0\0\0\xc3\xa9"
    else:
        made = np.frombuffer(got.raw_output_contents[0], numpy_dtype(DTYPES[datatype]))
        np.testing.assert_array_equal(made, np.array(values, made.dtype))
    model.close()


@pytest.mark.parametrize(("datatype", "value"), [("INT8", 128), ("INT16", -40_000), ("UINT8", 256), ("BYTES", b"\xff")])
def test_what_does_not_fit_its_datatype_is_refused(
    model_file: Callable[[str, str], Path], datatype: str, value: Any
) -> None:
    from tritonclient.grpc import service_pb2 as pb

    kind = TYPES[datatype]
    text = f'<ir_version: 9, opset_import: ["" : 17]> t ({kind}[n] x) => ({kind}[n] y) {{ y = Identity(x) }}'
    model = Model(model_file(f"u{datatype}", text), name="t")
    model.load()
    sent = pb.ModelInferRequest(model_name="t")
    row = sent.inputs.add(name="x", datatype=datatype, shape=[1])
    getattr(row.contents, CONTENTS[datatype][0]).append(value)
    with pytest.raises(UnfitInputError, match=r"fit|UTF-8"):
        grpc_tensors.read_request(sent, model)
    model.close()


def test_a_call_that_runs_is_answered_when_the_server_is_told_to_stop(
    start: Callable[..., Any], model_file: Callable[[str, str], Path], loop_text: str
) -> None:
    served = start(model_file("loop", loop_text))
    with triton.InferenceServerClient(f"127.0.0.1:{served.ready_line['grpc']}") as made:
        trips = triton.InferInput("trips", [], "INT64")
        trips.set_data_from_numpy(np.array(3_000_000))
        results: list[Any] = []
        x = triton.InferInput("x", [1], "FP32")
        x.set_data_from_numpy(np.zeros(1, np.float32))
        thread = threading.Thread(target=lambda: results.append(made.infer("loop", [trips, x])))
        thread.start()
        time.sleep(0.3)
        assert served.stop() == 0
        thread.join(30)
    np.testing.assert_array_equal(results[0].as_numpy("y"), [3_000_000])


def test_a_taken_port_is_exit_2(server: Any, model_file: Callable[[str, str], Path]) -> None:
    command = [sys.executable, "-m", "deploykit", "serve", str(model_file("log", LOG)), "--http-port", "0", "--json"]
    done = subprocess.run(
        [*command, "--grpc-port", str(server.ready_line["grpc"])], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert report["findings"][0]["code"] == "DK701"
    assert "--no-grpc" in report["findings"][0]["hint"]


def test_http_alone(start: Callable[..., Any], model_file: Callable[[str, str], Path]) -> None:
    served = start(model_file("log", LOG), "--no-grpc")
    assert served.ready_line["grpc"] is None
    assert served.stop() == 0
