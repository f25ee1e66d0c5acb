"""A model in Node: one process that stays open, asked through its pipes."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

from deploykit.converters.onnxruntime_web.folder import ASSETS
from deploykit.converters.onnxruntime_web.frames import body_size
from deploykit.converters.vendor_process import END_WITH_PARENT
from deploykit.errors import VendorError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

    from deploykit.converters.onnxruntime_web.package import Package


class NodeProcess:
    """ONNX Runtime Web's wasm backend in Node.

    hello: what it said once the model was loaded: version, node; or error.
    """

    def __init__(self, node: str, package: Package, folder: Path, threads: int | None) -> None:
        """Starts Node and loads the model of a page's folder. Raises VendorError (DK511) when it dies."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        command = [node, str(ASSETS / "node_runner.mjs"), str(package.node_entry), str(folder.resolve())]
        self._process = subprocess.Popen(
            [*command, str(threads or 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            preexec_fn=END_WITH_PARENT,
        )
        self.pid = self._process.pid
        self.hello = self._answer()[0]

    def ask(self, request: bytes) -> tuple[dict[str, Any], bytes]:
        """Head and body of the answer. Raises VendorError (DK511) when the process is gone."""
        try:
            stream = _open(self._process.stdin)
            stream.write(request)
            stream.flush()
        except OSError as problem:
            raise self._gone() from problem
        return self._answer()

    def _answer(self) -> tuple[dict[str, Any], bytes]:
        stream = _open(self._process.stdout)
        size = stream.read(4)
        if len(size) < 4:
            raise self._gone()
        head: dict[str, Any] = json.loads(stream.read(struct.unpack("<I", size)[0]))
        body = stream.read(body_size(head))
        if len(body) < body_size(head):
            raise self._gone()
        return head, body

    def _gone(self) -> VendorError:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").splitlines()
        # A minified script's own line stands in V8's report, and is as long as the script.
        said = [line[:300] for line in lines if line.strip()][-20:]
        code = self._process.returncode
        return VendorError(
            f"Node ended with {f'signal {-code}' if code < 0 else f'exit code {code}'} while it ran the model",
            code="DK511",
            target="onnxruntime-web",
            log=said,
            hint="a model that needs more than 4 GB cannot run in WebAssembly",
        )

    def close(self) -> None:
        """Ends the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("the process was started with pipes")
    return stream
