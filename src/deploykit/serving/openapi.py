"""The OpenAPI description of a server and a page for it; both are made here and load nothing from elsewhere."""

from __future__ import annotations

import html
import json
import math
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deploykit.serving.checks import describe
from deploykit.serving.datatypes import DATATYPES
from deploykit.version import __version__

if TYPE_CHECKING:
    from deploykit.artifact import TensorSpec
    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.model import Model

_EXAMPLE_LIMIT = 256
_PARAMETERS = {"type": "object", "additionalProperties": True}
_TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"enum": list(DATATYPES.values())},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "parameters": _PARAMETERS,
        "data": {"type": "array", "description": "Flat in row-major order, or nested as the shape."},
    },
}
_SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
    },
    "Tensor": _TENSOR,
    "InferRequest": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "parameters": _PARAMETERS,
            "inputs": {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}},
            "outputs": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "parameters": _PARAMETERS},
                },
            },
        },
    },
    "InferResponse": {
        "type": "object",
        "required": ["model_name", "outputs"],
        "properties": {
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}},
        },
    },
}
_REASONS = {
    "400": "The request is wrong; the error says what and how to mend it.",
    "401": "The server wants a token (Authorization: Bearer), and this is none or another one.",
    "403": "The server was not started to let clients do this.",
    "404": "There is no such model or version.",
    "408": "The client stopped in the middle of its request.",
    "413": "The request is too large.",
    "500": "The engine failed.",
    "503": "The model is loading, or the server is full or stopping.",
    "504": "The request waited in the queue for longer than its own timeout.",
}


def describe_api(plane: DataPlane, max_body: int) -> dict[str, Any]:
    """The OpenAPI 3.1 document, with examples that fit the models that are served."""
    paths: dict[str, Any] = {
        "/v2": _get("Server metadata"),
        "/v2/health/live": _get("Whether the process answers"),
        "/v2/health/ready": _get("Whether requests should be sent here", "503"),
        "/metrics": _get("Prometheus metrics", media="text/plain"),
    }
    for model in plane.models:
        for base in (f"/v2/models/{quote(model.name)}", f"/v2/models/{quote(model.name)}/versions/{model.version}"):
            paths[base] = _get(f"Metadata of {model.name}", "503")
            paths[f"{base}/ready"] = _get(f"Whether {model.name} answers", "503")
            paths[f"{base}/stats"] = _get(f"What {model.name} has done", "503")
            paths[f"{base}/infer"] = _infer(model)
    if len(plane.models) == 1:
        paths["/predict"] = _predict(plane.models[0])
    if plane.catalog is not None and plane.catalog.control:
        paths["/v2/repository/index"] = _control("What the repository has", {"ready": {"type": "boolean"}})
        for name in sorted({model.name for model in plane.models}):
            base = f"/v2/repository/models/{quote(name)}"
            paths[f"{base}/load"] = _control(f"Load {name}, or load it again", {})
            paths[f"{base}/unload"] = _control(f"Unload {name}", {})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "deploykit serve",
            "version": __version__,
            "description": "Open Inference Protocol (KServe v2) over HTTP; / is a page to try the models. "
            f"A request has at most {max_body:,} bytes.",
        },
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


def _get(summary: str, *failures: str, media: str = "application/json") -> dict[str, Any]:
    answers: dict[str, Any] = {"200": {"description": "Yes.", "content": {media: {}}}}
    return {"get": {"summary": summary, "responses": answers | _refusals(("401", *failures))}}


def _control(summary: str, properties: dict[str, Any]) -> dict[str, Any]:
    """An operation on the repository; its answer may be empty."""
    schema = {"type": "object", "properties": properties}
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": False, "content": {"application/json": {"schema": schema}}},
            "responses": {"200": {"description": "Done."}, **_refusals(("400", "403", "404", "408", "413"))},
        }
    }


def _refusals(codes: tuple[str, ...]) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {code: {"description": _REASONS[code], "content": error} for code in codes}


def _post(summary: str, description: str, schema: dict[str, Any], answer: dict[str, Any], example: Any) -> Any:
    content: dict[str, Any] = {"schema": schema}
    if example is not None:
        content["example"] = example
    answers: dict[str, Any] = {"200": {"description": "The outputs.", "content": {"application/json": answer}}}
    return {
        "post": {
            "summary": summary,
            "description": description,
            "requestBody": {"required": True, "content": {"application/json": content}},
            "responses": answers | _refusals(tuple(_REASONS)),
        }
    }


def _signature(model: Model) -> str:
    lines = [f"input {spec.name}: {describe(spec)}" for spec in model.inputs]
    return "; ".join([*lines, *(f"output {spec.name}: {describe(spec)}" for spec in model.outputs)])


def _infer(model: Model) -> dict[str, Any]:
    rows = [_example_tensor(spec) for spec in model.inputs]
    made: dict[str, Any] = _post(
        f"Run {model.name}",
        f"{_signature(model)}. Tensors may also follow the JSON as binary data (binary_data_size, and the header "
        "Inference-Header-Content-Length). NaN and infinities in JSON outputs are null, counted in the output's "
        "parameter non_finite; as binary data they are exact.",
        {"$ref": "#/components/schemas/InferRequest"},
        {"schema": {"$ref": "#/components/schemas/InferResponse"}},
        {"inputs": rows} if all(rows) else None,
    )
    return made


def _predict(model: Model) -> dict[str, Any]:
    images = [spec.name for spec in model.inputs if model.takes_images(spec.name)]
    values = {spec.name: example_values(spec) for spec in model.inputs}
    made: dict[str, Any] = _post(
        f"Run {model.name}, the short way",
        f"{_signature(model)}. Values by input name, nested as their shapes; for one input also the value alone.",
        {},
        {"schema": {"type": "object"}},
        values if all(value is not None for value in values.values()) else None,
    )
    if images:
        made["post"]["description"] += (
            f" An image may stand for {' or '.join(images)}: base64 in the JSON, or the file itself as the body, with "
            "its content type."
        )
        made["post"]["requestBody"]["content"]["image/*"] = {}
    return made


def _example_shape(spec: TensorSpec) -> list[int] | None:
    """The smallest shape that the input takes; None when its example would be too long to read."""
    if spec.shape is None:
        return None
    shape = [1 if isinstance(size, str) else size for size in spec.shape]
    return shape if math.prod(shape) <= _EXAMPLE_LIMIT else None


def _example_tensor(spec: TensorSpec) -> dict[str, Any] | None:
    shape = _example_shape(spec)
    if shape is None:
        return None
    return {
        "name": spec.name,
        "datatype": DATATYPES[spec.dtype],
        "shape": shape,
        "data": [_zero(spec)] * math.prod(shape),
    }


def example_values(spec: TensorSpec) -> Any:
    """The smallest tensor that an input takes, as nested lists; None when it would be too long to read."""
    shape = _example_shape(spec)
    if shape is None:
        return None
    value: Any = _zero(spec)
    for size in reversed(shape):
        value = [value] * size
    return value


def _zero(spec: TensorSpec) -> bool | str | float | int:
    if spec.dtype in ("bool", "string"):
        return False if spec.dtype == "bool" else "text"
    return 0 if "int" in spec.dtype else 0.0


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>deploykit serve</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
pre{{background:#8882;padding:.8rem;overflow:auto;white-space:pre-wrap;word-break:break-all}}
h2{{font-size:1.1rem;margin:2rem 0 .3rem}}:root{{color-scheme:light dark}}</style>
<h1>deploykit serve</h1><p>{intro} <a href="/openapi.json">/openapi.json</a> has it all.</p>{rows}</html>
"""


def docs_page(document: dict[str, Any], base_url: str) -> str:
    """The description as one HTML page, with a curl command for each path."""
    rows = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            rows.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
                f"<p>{html.escape(operation['summary'])}. {html.escape(operation.get('description', ''))}</p>"
                f"<pre>{html.escape(_curl(base_url.rstrip('/') + path, method, operation))}</pre>"
            )
    return _PAGE.format(intro=html.escape(document["info"]["description"]), rows="".join(rows))


def _curl(url: str, method: str, operation: dict[str, Any]) -> str:
    if method == "get":
        return f"curl '{url}'"
    example = operation["requestBody"]["content"]["application/json"].get("example")
    body = "@request.json" if example is None else json.dumps(example).replace("'", "'\\''")
    return f"curl -X POST '{url}' -d '{body}'"
