"""A real `deploykit serve` process for the tests here, and models made on the spot."""

from __future__ import annotations

import dataclasses
import http.client
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import onnx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: http.client.HTTPMessage

    @property
    def json(self) -> Any:
        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        return json.loads(self.body, parse_constant=refuse)

    @property
    def error(self) -> str:
        text: str = self.json["error"]
        return text


@dataclasses.dataclass(frozen=True)
class Served:
    """A server process and how to talk to it."""

    process: subprocess.Popen[str]
    port: int
    ready_line: dict[str, Any]
    log_file: Path

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            got = connection.getresponse()
            return Answer(got.status, got.read(), got.headers)
        finally:
            connection.close()

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_file.read_text(encoding="utf-8").splitlines()]

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Writes ONNX text as `NAME.onnx`; returns its path."""
    folder = tmp_path_factory.mktemp("served models")

    def write(name: str, text: str) -> Path:
        onnx.save(onnx.parser.parse_model(text), folder / f"{name}.onnx")
        return folder / f"{name}.onnx"

    return write


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """Starts `deploykit serve ARTIFACT --http-port 0 [MORE]` and waits for its ready line; all end with the session."""
    folder = tmp_path_factory.mktemp("logs")
    started: list[subprocess.Popen[str]] = []

    def serve(artifact: Path, *more: object) -> Served:
        command = [sys.executable, "-m", "deploykit", "serve", artifact, "--http-port", "0", *more]
        log_file = folder / f"{len(started)}.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=log, text=True)
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log_file.read_text(encoding="utf-8")
        ready = json.loads(line)
        return Served(process, ready["http"], ready, log_file)

    yield serve
    for process in started:
        process.kill()
        process.wait()


# Runs as long as the caller wants: one addition for each trip.
LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
loop (int64 trips, float[n] x) => (float[n] y)
<float one = {1.0}, bool yes = {1}> {
    y = Loop (trips, yes, x) <body = step (int64 i, bool go, float[n] v) => (bool again, float[n] w) {
        again = Identity(go)
        w = Add(v, one)
    }>
}
"""


@pytest.fixture(scope="session")
def loop_text() -> str:
    return LOOP
