"""Stock clients against a real server: tritonclient, curl, and requests that a later reader may not change."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLASSIFIER = """
<ir_version: 8, opset_import: ["" : 17]>
classifier (float[batch,1,8,8] image) => (float[batch,4] scores, int64[batch] best)
<float[64,4] weight = {WEIGHT}> {
    flat = Flatten(image)
    scores = MatMul(flat, weight)
    best = ArgMax <axis = 1, keepdims = 0> (scores)
}
"""


@pytest.fixture(scope="module")
def digits(start: Callable[..., Any], model_file: Callable[[str, str], Path]) -> tuple[Any, Path]:
    """A small classifier of images, and its file."""
    weight = np.random.default_rng(0).standard_normal(256).round(3)
    path = model_file("classifier", CLASSIFIER.replace("WEIGHT", ", ".join(map(str, weight))))
    return start(path, "--name", "digits"), path


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((5, 1, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def expected(digits: tuple[Any, Path], images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores and classes by ONNX Runtime itself, without graph optimisation."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    scores, best = ort.InferenceSession(str(digits[1]), options).run(["scores", "best"], {"image": images})
    return scores, best


@pytest.fixture
def client(digits: tuple[Any, Path]) -> Any:
    with triton.InferenceServerClient(f"127.0.0.1:{digits[0].port}") as found:
        yield found


def tensor(images: np.ndarray, *, binary: bool, kind: Any = triton) -> Any:
    made = kind.InferInput("image", list(images.shape), "FP32")
    made.set_data_from_numpy(images, binary_data=binary)
    return made


def test_tritonclient_reads_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "1")
    assert not client.is_model_ready("absent")
    assert client.get_server_metadata()["name"] == "deploykit"
    metadata = client.get_model_metadata("digits")
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert [row["name"] for row in metadata["outputs"]] == ["scores", "best"]


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
def test_tritonclient_gets_the_models_own_answers(
    client: Any,
    images: np.ndarray,
    expected: tuple[np.ndarray, np.ndarray],
    binary_in: bool,
    binary_out: bool,
    compression: str | None,
) -> None:
    wanted = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("best", "scores")]
    result = client.infer(
        "digits",
        [tensor(images, binary=binary_in)],
        outputs=wanted,
        request_id="7",
        priority=1,
        timeout=10_000_000,
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    assert result.get_response()["id"] == "7"
    assert [row["name"] for row in result.get_response()["outputs"]] == ["best", "scores"]
    np.testing.assert_allclose(result.as_numpy("scores"), expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(result.as_numpy("best"), expected[1])


def test_tritonclient_without_outputs_gets_all_as_binary_data(client: Any, images: np.ndarray, expected: Any) -> None:
    result = client.infer("digits", [tensor(images, binary=True)], model_version="1")
    np.testing.assert_allclose(result.as_numpy("scores"), expected[0], rtol=1e-5, atol=1e-5)
    assert "binary_data_size" in result.get_output("best")["parameters"]


def test_tritonclient_sees_our_reasons(client: Any, images: np.ndarray) -> None:
    with pytest.raises(triton.InferenceServerException, match=r"takes FP32 \[batch, 1, 8, 8\]"):
        client.infer("digits", [tensor(images[:, 0], binary=True)])
    classes = [triton.InferRequestedOutput("scores", class_count=3)]
    with pytest.raises(triton.InferenceServerException, match="classification"):
        client.infer("digits", [tensor(images, binary=True)], outputs=classes)
    with pytest.raises(triton.InferenceServerException, match="sequence_id"):
        client.infer("digits", [tensor(images, binary=True)], sequence_id=3)
    with pytest.raises(triton.InferenceServerException, match="no repository"):
        client.load_model("digits")


def test_tritonclient_asynchronously(digits: tuple[Any, Path], images: np.ndarray, expected: Any) -> None:
    async def main() -> list[Any]:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{digits[0].port}") as client:
            one = [[tensor(images[i : i + 1], binary=bool(i % 2), kind=triton_aio)] for i in range(len(images))]
            return await asyncio.gather(*(client.infer("digits", inputs) for inputs in one))

    for index, result in enumerate(asyncio.run(main())):
        np.testing.assert_allclose(result.as_numpy("scores"), expected[0][index : index + 1], rtol=1e-5, atol=1e-5)


def test_tritonclient_with_greenlets(digits: tuple[Any, Path], images: np.ndarray, expected: Any) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{digits[0].port}", concurrency=4) as client:
        asked = [client.async_infer("digits", [tensor(images, binary=True)]) for _ in range(8)]
        for one in asked:
            np.testing.assert_allclose(one.get_result().as_numpy("scores"), expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_as_in_the_first_example(digits: tuple[Any, Path], images: np.ndarray, expected: Any) -> None:
    url = f"http://127.0.0.1:{digits[0].port}/predict"
    body = json.dumps({"image": images.tolist()})
    done = subprocess.run(
        ["curl", "-sS", "-X", "POST", url, "-d", body], capture_output=True, text=True, check=True, timeout=30
    )
    assert json.loads(done.stdout)["best"] == expected[1].tolist()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_gets_the_reason_for_a_body_that_is_too_large(digits: tuple[Any, Path], tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"1," * (35 << 20))
    url = f"http://127.0.0.1:{digits[0].port}/predict"
    for more in ([], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect:"]):
        done = subprocess.run(
            ["curl", "-sS", "-X", "POST", url, *more, "--data-binary", f"@{tmp_path / 'big'}", "-w", "%{http_code}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.endswith("413")
        assert "67,108,864" in done.stdout


def test_the_shared_requests(start: Callable[..., Any], shared: Path) -> None:
    server = start(shared / "cases" / "serve_log.onnx")
    lines = (shared / "cases" / "serve_requests.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines
    for case in map(json.loads, lines):
        got = server.call("POST", case["path"], base64.b64decode(case["body_b64"]), case["headers"])
        assert got.status == case["status"], case["name"]
        if case["name"] == "nan_out":
            assert got.json["outputs"][0]["data"] == [None, None]
        elif case["status"] == 200:
            assert got.json["outputs"][0]["data"] == pytest.approx([0, math.log(2)])
        else:
            assert got.error


def test_the_shared_digits_as_json_and_as_binary_data(start: Callable[..., Any], shared_model: Any) -> None:
    server = start(shared_model("digits/digits_cnn.onnx"), "--name", "digits")
    data = np.load(shared_model("digits/digits_cnn_test.npz"))
    (name,) = (key for key in data.files if key != "y")
    images, labels = data[name].astype(np.float32), data["y"]
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        given = triton.InferInput(client.get_model_metadata("digits")["inputs"][0]["name"], list(images.shape), "FP32")
        for binary in (True, False):
            given.set_data_from_numpy(images, binary_data=binary)
            wanted = [triton.InferRequestedOutput("logits", binary_data=binary)]
            found = client.infer("digits", [given], outputs=wanted).as_numpy("logits").argmax(axis=1)
            assert (found == labels).mean() > 0.97
