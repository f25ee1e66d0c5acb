"""A page in Chromium: a local server hands out the page, the tensors, and takes the results."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import queue
import re
import secrets
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.converters.onnxruntime_web.folder import ASSETS, MARKER, PAGE, SCRIPTS
from deploykit.converters.vendor_process import END_WITH_PARENT
from deploykit.errors import VendorError

if TYPE_CHECKING:
    from deploykit.converters.onnxruntime_web.package import Package

# A software renderer computes WebGPU and WebGL where there is no GPU, and nobody waits for hours.
_TIMEOUT_S = 300.0
_SOFTWARE_TIMEOUT_S = 120.0
_DRIVER = b'<script type="module" src="browser_runner.mjs"></script>'
_TYPES = {".html": "text/html", ".mjs": "text/javascript", ".json": "application/json", ".wasm": "application/wasm"}
_QUIET = (
    "--headless", "--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-extensions", "--disable-default-apps", "--metrics-recording-only",
    "--disable-breakpad", "--mute-audio", "--disable-dev-shm-usage", "--disable-background-timer-throttling",
)  # fmt: skip
# Without a GPU, SwiftShader computes what WebGPU and WebGL ask for.
_BACKENDS = {
    "wasm": ("--disable-gpu",),
    "webgpu": ("--enable-unsafe-webgpu", "--enable-features=Vulkan", "--use-webgpu-adapter=swiftshader"),
    "webnn": ("--enable-features=WebMachineLearningNeuralNetwork",),
    "webgl": ("--enable-unsafe-swiftshader", "--use-angle=swiftshader"),
}
_CHROME = re.compile(r"Chrome/([\d.]+)")


class Browser:
    """The page of a folder in headless Chromium; see `node.NodeProcess` for what it does.

    The page's scripts are deploykit's own and ONNX Runtime Web's installed ones; of the folder, data is served only.
    """

    def __init__(
        self, program: str, package: Package, folder: Path, facts: dict[str, Any], backend: str, threads: int | None
    ) -> None:
        """Opens the page and waits until its sample has run. Raises VendorError (DK511, DK512)."""
        self._timeout = _TIMEOUT_S if backend == "wasm" else _SOFTWARE_TIMEOUT_S
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        self._answers: queue.Queue[bytes] = queue.Queue()
        token = secrets.token_urlsafe(16)
        site = _Site(folder, facts, package, backend)
        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), _handler(site, f"/{token}/", self._requests, self._answers)
        )
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._profile = tempfile.mkdtemp(prefix="deploykit-browser-")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        options = [*_QUIET, *_BACKENDS[backend], f"--user-data-dir={self._profile}"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--no-sandbox")  # Chromium does not start as root with it
        address = f"http://127.0.0.1:{self._server.server_port}/{token}/index.html?backend={backend}"
        if threads:
            address += f"&threads={threads}"
        self._process = subprocess.Popen(
            [program, *options, address],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=END_WITH_PARENT,
        )
        self.pid = self._process.pid
        try:
            self.hello = self._answer()[0]
        except BaseException:
            self.close()
            raise
        if "error" not in self.hello:
            version = _CHROME.search(str(self.hello["agent"]))
            on = f" on {self.hello['adapter']}" if self.hello["adapter"] else ""
            self.hello["where"] = (
                f"{on.lstrip()}{', ' if on else ''}Chromium {version.group(1) if version else ''}".strip()
            )
            self.hello["program"] = "chromium"

    def ask(self, request: bytes) -> tuple[dict[str, Any], bytes]:
        """Head and body of the answer. Raises VendorError (DK511, DK512)."""
        self._requests.put(request)
        return self._answer()

    def _answer(self) -> tuple[dict[str, Any], bytes]:
        end = time.monotonic() + self._timeout
        while True:
            with contextlib.suppress(queue.Empty):
                frame = self._answers.get(timeout=0.5)
                size = struct.unpack_from("<I", frame)[0]
                return json.loads(frame[4 : 4 + size]), frame[4 + size :]
            if self._process.poll() is not None or time.monotonic() > end:
                raise self._gone()

    def _gone(self) -> VendorError:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", errors="replace").splitlines()
        ended = self._process.poll() is not None
        return VendorError(
            f"the browser ended with exit code {self._process.returncode} while it ran the page"
            if ended
            else f"the page gave no answer within {self._timeout:.0f} s",
            code="DK511" if ended else "DK512",
            target="onnxruntime-web",
            log=[line[:300] for line in lines][-20:],
        )

    def close(self) -> None:
        """Ends browser and server."""
        self._requests.put(None)
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, 9)  # its helpers are of its session
            else:
                self._process.kill()
        self._process.wait()
        self._server.shutdown()
        self._server.server_close()
        self._log.close()
        shutil.rmtree(self._profile, ignore_errors=True)


class _Site:
    """What the server hands out, by path below the token."""

    def __init__(self, folder: Path, facts: dict[str, Any], package: Package, backend: str) -> None:
        script, *beside = SCRIPTS[backend]
        self._facts = {**facts, "backend": backend, "runtime": "ort/", "script": script}
        self._files = {name: ASSETS / name for name in (*PAGE, "frames.mjs", "browser_runner.mjs")}
        self._files |= {name: folder / name for name in (facts["model"], *facts["external"], "sample.bin")}
        self._files |= {f"ort/{name}": package.dist / name for name in (script, *beside)}

    def find(self, name: str) -> tuple[bytes | Path, str] | None:
        """The content, or its file, and its type."""
        kind = _TYPES.get(Path(name).suffix, "application/octet-stream")
        if name == MARKER:
            return json.dumps(self._facts).encode(), kind
        file = self._files.get(name)
        if file is None or not file.is_file():
            return None
        if name == "index.html":
            return file.read_bytes().replace(b"</body>", _DRIVER + b"</body>"), kind
        return file, kind


def _handler(
    site: _Site, root: str, requests: queue.Queue[bytes | None], answers: queue.Queue[bytes]
) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

        def _head(self, status: HTTPStatus, size: int, kind: str = "application/octet-stream") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            # Threads of WebAssembly share memory, which needs these.
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.end_headers()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if not path.startswith(root):
                return self._head(HTTPStatus.NOT_FOUND, 0)
            name = path.removeprefix(root)
            if name == "__next__":
                request = requests.get()
                if request is None:
                    return self._head(HTTPStatus.NO_CONTENT, 0)
                self._head(HTTPStatus.OK, len(request))
                self.wfile.write(request)
                return None
            found = site.find(name)
            if found is None:
                return self._head(HTTPStatus.NOT_FOUND, 0)
            content, kind = found
            if isinstance(content, bytes):
                self._head(HTTPStatus.OK, len(content), kind)
                self.wfile.write(content)
                return None
            self._head(HTTPStatus.OK, content.stat().st_size, kind)
            with content.open("rb") as stream:
                shutil.copyfileobj(stream, self.wfile)
            return None

        def do_POST(self) -> None:
            if self.path != f"{root}__result__":
                return self._head(HTTPStatus.NOT_FOUND, 0)
            answers.put(self.rfile.read(int(self.headers["Content-Length"])))
            return self._head(HTTPStatus.NO_CONTENT, 0)

    return Handler
