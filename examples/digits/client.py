"""Serves the best artifact of the last run and calls it: with tritonclient (JSON and binary tensors) and with curl.

python examples/digits/client.py
"""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import tritonclient.http as triton

HERE = Path(__file__).parent


def start(artifact: str) -> tuple[subprocess.Popen[str], int]:
    """`deploykit serve` on a free port; returns when it says that it is ready."""
    command = [sys.executable, "-m", "deploykit", "serve", artifact, "--name", "digits", "--http-port", "0", "--quiet"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ready = server.stdout.readline()
    if not ready:
        raise SystemExit(server.wait())
    return server, json.loads(ready)["http"]


def ask_triton(port: int, images: np.ndarray) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    print("live:", client.is_server_live(), " ready:", client.is_model_ready("digits"))
    metadata = client.get_model_metadata("digits")
    print("model:", json.dumps({key: metadata[key] for key in ("name", "platform", "inputs", "outputs")}))
    name, output = metadata["inputs"][0]["name"], metadata["outputs"][0]["name"]
    for binary in (False, True):
        tensor = triton.InferInput(name, list(images.shape), "FP32")
        tensor.set_data_from_numpy(images, binary_data=binary)
        wanted = triton.InferRequestedOutput(output, binary_data=binary)
        scores = client.infer("digits", [tensor], outputs=[wanted]).as_numpy(output)
        print(f"tritonclient, {'binary tensors' if binary else 'JSON'}: {scores.argmax(axis=1).tolist()}")


def ask_curl(port: int, image: np.ndarray) -> None:
    body = json.dumps({"image": image.tolist()})
    url = f"http://127.0.0.1:{port}/predict"
    if shutil.which("curl"):
        print("curl -X POST .../predict -d '{\"image\": [...]}':", end=" ")
        answer = subprocess.run(
            ["curl", "-sS", "-X", "POST", url, "-d", body], check=True, capture_output=True, text=True
        )
        text = answer.stdout
    else:
        print("POST .../predict (no curl here, so from Python):", end=" ")
        with urllib.request.urlopen(url, data=body.encode()) as response:
            text = response.read().decode()
    (scores,) = json.loads(text).values()
    print(int(np.argmax(scores)))


def main() -> None:
    report = json.loads((HERE / "deploykit-out" / "report.json").read_text(encoding="utf-8"))
    test = np.load(HERE / "test.npz")
    images, labels = test["image"][:4], test["y"][:4]
    best = report["metrics"]["best"]  # as the run wrote it: relative to the folder that both are started in
    print(f"serving {best}; the right answers are {labels.tolist()}")
    server, port = start(best)
    try:
        ask_triton(port, images)
        ask_curl(port, images[:1])
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=30)
    print(f"the server stopped with exit code {code}")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
