"""A running server over gRPC, by tritonclient (the serve extra)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.benchmark import tensors
from deploykit.benchmark.server import Address, ServerRuntime
from deploykit.errors import DeploykitError, MissingDependencyError, UnavailableError

if TYPE_CHECKING:
    from deploykit.runtime import Feeds, Outputs

_CONNECT_S = 10.0
_ANSWER_S = 300.0


class GrpcRuntime(ServerRuntime):
    """A model behind one gRPC channel."""

    def __init__(self, address: Address, name: str | None) -> None:
        """Connects; see `server.open_server` for what it raises."""
        try:
            import tritonclient.grpc as triton
        except ImportError as problem:
            raise MissingDependencyError(
                "benchmarks over gRPC need tritonclient", hint="pip install 'deploykit[serve]', or --url http://..."
            ) from problem
        self.address = address
        self._triton = triton
        host = f"[{address.host}]" if ":" in address.host else address.host
        self._client = triton.InferenceServerClient(f"{host}:{address.port}", ssl=address.scheme == "grpcs")
        self._open(name)
        self._wanted = [triton.InferRequestedOutput(spec.name) for spec in self.outputs]

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name. Raises UnavailableError (DK417) when the server is gone, DK419 when it refuses the call."""
        inputs = []
        for name, array in feeds.items():
            tensor = self._triton.InferInput(name, list(array.shape), tensors.datatype_of(array))
            # The client takes text as objects only.
            tensor.set_data_from_numpy(
                array.astype(object) if array.dtype.kind in "US" else np.ascontiguousarray(array)
            )
            inputs.append(tensor)
        try:
            answer = self._client.infer(self.name, inputs, outputs=self._wanted, client_timeout=_ANSWER_S)
        except self._triton.InferenceServerException as problem:
            if problem.status() == "StatusCode.UNAVAILABLE":
                raise self._gone(problem) from problem
            text = f"{self.address.text} refuses the call: {problem.message()}"
            raise DeploykitError(text, code="DK419") from problem
        return {spec.name: _texts(answer.as_numpy(spec.name)) for spec in self.outputs}

    def close(self) -> None:
        """Closes the channel."""
        self._client.close()

    def _gone(self, problem: Any) -> UnavailableError:
        return UnavailableError(
            f"nothing answers at {self.address.text}: {problem.message()[:300]}",
            code="DK417",
            hint="deploykit serve ARTIFACT starts a server; --url http://HOST:PORT, or grpc://HOST:PORT",
        )

    def _server(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._client.get_server_metadata(as_json=True, client_timeout=_CONNECT_S)
        except self._triton.InferenceServerException as problem:
            raise self._gone(problem) from problem
        return found

    def _names(self) -> list[str]:
        try:
            index = self._client.get_model_repository_index(as_json=True, client_timeout=_CONNECT_S)
            return [model["name"] for model in index.get("models", ()) if model.get("state", "READY") == "READY"]
        except self._triton.InferenceServerException:  # a server without a repository
            pass
        try:
            known = self._client.get_inference_statistics(as_json=True, client_timeout=_CONNECT_S)
        except self._triton.InferenceServerException:  # nor statistics
            return []
        return list(dict.fromkeys(model["name"] for model in known.get("model_stats", ())))

    def _ready(self, name: str) -> bool:
        try:
            return bool(self._client.is_model_ready(name, client_timeout=_CONNECT_S))
        except self._triton.InferenceServerException:
            return False

    def _metadata(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._client.get_model_metadata(name, as_json=True, client_timeout=_CONNECT_S)
        return found


def _texts(array: Any) -> Any:
    """The client gives text as bytes."""
    if array.dtype.kind != "O":
        return array
    decoded = [item.decode("utf-8", "replace") if isinstance(item, bytes) else item for item in array.ravel()]
    return np.array(decoded, object).reshape(array.shape)
