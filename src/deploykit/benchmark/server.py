"""A running server as a runtime: the Open Inference Protocol (KServe v2) over HTTP, or gRPC by tritonclient.

HTTP is the standard library's: a client's own share of a call is part of its latency, and more of a client costs more.
Source: github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md; Triton's protocol
extensions, extension_binary_data.md, extension_model_repository.md and extension_statistics.md.
"""

from __future__ import annotations

import abc
import dataclasses
import http.client
import json
import re
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.artifact import TensorSpec
from deploykit.benchmark import tensors
from deploykit.comparison import carry_of, evaluate
from deploykit.errors import DeploykitError, UnavailableError, UsageError
from deploykit.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.runtime import Feeds, Outputs

SCHEMES = ("http", "https", "grpc", "grpcs")
_MODEL_IN_PATH = re.compile(
    r"(?P<base>.*?)/v2(?:/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?(?:/infer)?)?/?"
)
_CONNECT_S = 10.0
_ANSWER_S = 300.0
_LONGEST_TOLD = 400


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: scheme, host, port, and for HTTP the path before `/v2`; name and version where it has them."""

    scheme: str
    host: str
    port: int
    base: str = ""
    name: str | None = None
    version: str | None = None

    @property
    def text(self) -> str:
        """As a user would write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.base}"


def parse_url(url: str) -> Address:
    """The address in a URL: `http://host:8000[/v2/models/NAME]` or `grpc://host:8001`. Raises UsageError (DK800)."""
    hint = "--url http://localhost:8000, or grpc://localhost:8001"
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise UsageError(f"--url {url}: {problem}", hint=hint) from problem
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise UsageError(f"--url {url} is no address of a server", hint=hint)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(f"--url {url}: a server's address has no user, query or fragment", hint=hint)
    path = parts.path.rstrip("/")
    if parts.scheme.startswith("grpc"):
        if path:
            raise UsageError(f"--url {url}: an address of gRPC has no path", hint="--name NAME chooses the model")
        return Address(parts.scheme, parts.hostname, port or 8001)
    found = _MODEL_IN_PATH.fullmatch(path)
    base, name, version = found.group("base", "name", "version") if found else (path, None, None)
    usual = {"http": 80, "https": 443}[parts.scheme]
    name = urllib.parse.unquote(name) if name else None
    return Address(parts.scheme, parts.hostname, port or usual, base, name, version)


def describe_job(url: str, name: str | None) -> dict[str, Any]:
    """What the server says of its model, in a worker: name, engine, inputs and outputs as JSON.

    Raises UnavailableError (DK417 nobody answers, DK418 no such model, or not ready) and UsageError (DK418) where there
    are several models and no name.
    """
    runtime = open_server(url, name)
    try:
        return {
            "name": runtime.name,
            "engine": runtime.engine,
            "inputs": [spec.as_dict() for spec in runtime.inputs],
            "outputs": [spec.as_dict() for spec in runtime.outputs],
        }
    finally:
        runtime.close()


def open_server(url: str, name: str | None) -> ServerRuntime:
    """A connection to a ready model; name: None where the server has one alone. Raises as `describe_job`."""
    address = parse_url(url)
    if address.scheme.startswith("grpc"):
        from deploykit.benchmark.server_grpc import GrpcRuntime

        return GrpcRuntime(address, name)
    return HttpRuntime(address, name or address.name)


def evaluate_job(url: str, name: str, data: dict[str, Any], metric: str, models: Sequence[str]) -> dict[str, Any]:
    """The accuracy of a served model, in a worker, as `comparison.evaluate` gives it; models: may spell its texts."""
    from deploykit.data import open_request

    runtime = open_server(url, name)
    try:
        paths = [Path(model) for model in models]
        onnx = next((path for path in paths if path.suffix == ".onnx"), None)
        dataset = open_request(data, runtime.inputs, model=onnx)  # type: ignore[arg-type]
        return evaluate(runtime, dataset, metric=metric, carry=carry_of(data), models=paths)
    finally:
        runtime.close()


class ServerRuntime(Runtime):
    """A model behind a connection."""

    name: str
    address: Address

    def _open(self, name: str | None) -> None:
        """Finds the model, and takes its interface from its metadata."""
        server = self._server()
        self.name = name or self._only(self._names())
        if not self._ready(self.name):
            raise UnavailableError(
                f"the server at {self.address.text} has no model {self.name!r} that is ready",
                code="DK418",
                context=self._context(),
                hint="--name NAME chooses another model",
            )
        facts = self._metadata(self.name)
        self.engine = f"{server.get('name') or 'server'} {server.get('version') or ''}".strip()
        self.engine += f" ({facts['platform']})" if facts.get("platform") else ""
        self.inputs = tuple(_spec(tensor) for tensor in facts.get("inputs", ()))
        self.outputs = tuple(_spec(tensor) for tensor in facts.get("outputs", ()))

    def _context(self) -> list[str]:
        names = self._names()
        return [f"it has {', '.join(names[:10])}"] if names else []

    def _only(self, names: Sequence[str]) -> str:
        if len(names) == 1:
            return names[0]
        what = f"has {len(names)} models" if names else "does not say which models it has"
        raise UsageError(
            f"the server at {self.address.text} {what}, and none was chosen",
            code="DK418",
            context=[", ".join(names[:10])] if names else [],
            hint="--name NAME chooses one",
        )

    @abc.abstractmethod
    def _server(self) -> dict[str, Any]:
        """What the server says of itself."""

    @abc.abstractmethod
    def _names(self) -> list[str]:
        """Its models' names, where it tells them."""

    @abc.abstractmethod
    def _ready(self, name: str) -> bool:
        """Whether the model answers."""

    @abc.abstractmethod
    def _metadata(self, name: str) -> dict[str, Any]:
        """The model's tensors and platform."""


class HttpRuntime(ServerRuntime):
    """A model behind one kept HTTP connection; tensors go as binary data where the server takes it, else as JSON."""

    def __init__(self, address: Address, name: str | None) -> None:
        """Connects; see `open_server` for what it raises."""
        self.address = address
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(address.host, address.port, timeout=_CONNECT_S)
        self._binary = False
        self._open(name)
        version = f"/versions/{address.version}" if address.version else ""
        self._path = f"{self._of(self.name)}{version}/infer"
        if self._connection.sock is not None:
            self._connection.sock.settimeout(_ANSWER_S)
        self._connection.timeout = _ANSWER_S

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name. Raises UnavailableError (DK417) when the server is gone, DK419 when it refuses the call."""
        body, header_length = tensors.request(feeds, self.outputs, binary=self._binary)
        headers = {"Content-Type": "application/octet-stream" if header_length else "application/json"}
        if header_length:
            headers["Inference-Header-Content-Length"] = str(header_length)
        status, raw, given = self._exchange("POST", self._path, body, headers)
        if status != 200:
            raise DeploykitError(f"{self.address.text} answers {status}: {_told(raw)}", code="DK419")
        length = given.get("Inference-Header-Content-Length")
        return tensors.response(raw, int(length) if length else None)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _of(self, name: str) -> str:
        return f"{self.address.base}/v2/models/{urllib.parse.quote(name, safe='')}"

    def _exchange(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        try:
            self._connection.request(method, path, body, dict(headers or {}))
            answer = self._connection.getresponse()
            return answer.status, answer.read(), dict(answer.headers)
        except (OSError, http.client.HTTPException) as problem:
            self._connection.close()
            raise UnavailableError(
                f"nothing answers at {self.address.text}: {problem or type(problem).__name__}",
                code="DK417",
                hint="deploykit serve ARTIFACT starts a server; --url http://HOST:PORT, or grpc://HOST:PORT",
            ) from problem

    def _json(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The answer's JSON; None where the server has nothing there or answers otherwise."""
        status, raw, _ = self._exchange(method, path, body, {"Content-Type": "application/json"} if body else {})
        if status != 200:
            return None
        try:
            return json.loads(raw)
        except ValueError:
            return None

    def _server(self) -> dict[str, Any]:
        found = self._json("GET", f"{self.address.base}/v2")
        if not isinstance(found, dict):
            raise UnavailableError(
                f"what answers at {self.address.text} does not speak the Open Inference Protocol: it has no /v2",
                code="DK417",
                hint="the address is that of the server, without a model: --url http://HOST:PORT --name NAME",
            )
        self._binary = "binary_tensor_data" in (found.get("extensions") or ())
        return found

    def _names(self) -> list[str]:
        index = self._json("POST", f"{self.address.base}/v2/repository/index", b"{}")
        if isinstance(index, list):
            return [str(model["name"]) for model in index if model.get("state", "READY") == "READY"]
        known = self._json("GET", f"{self.address.base}/v2/models/stats") or {}
        return list(dict.fromkeys(str(model["name"]) for model in known.get("model_stats", ())))

    def _ready(self, name: str) -> bool:
        return self._exchange("GET", f"{self._of(name)}/ready")[0] == 200

    def _metadata(self, name: str) -> dict[str, Any]:
        found = self._json("GET", self._of(name))
        return found if isinstance(found, dict) else {}


def _told(raw: bytes) -> str:
    """The server's own words."""
    text = raw.decode("utf-8", errors="replace")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return str(found.get("error", text) if isinstance(found, dict) else text)[:_LONGEST_TOLD]


def _spec(tensor: Mapping[str, Any]) -> TensorSpec:
    """The protocol's -1 is a dimension of any size; the leading one is the batch."""
    name = str(tensor["name"])
    shape = tuple(
        int(size) if int(size) >= 0 else "batch" if axis == 0 else f"{name}_dim{axis}"
        for axis, size in enumerate(tensor["shape"])
    )
    return TensorSpec(name, tensors.DTYPES.get(str(tensor["datatype"]), str(tensor["datatype"])), shape)
