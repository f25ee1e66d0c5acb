"""The JSON form of an inference in the Open Inference Protocol (KServe v2), with the binary tensor data extension.

Bytes in, InferRequest out; InferResult in, bytes out. No web framework.
Source: github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md; Triton's protocol
extensions, extension_binary_data.md and extension_schedule_policy.md.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from deploykit.serving import pictures, strict_json
from deploykit.serving.checks import check_datatype, check_names, check_shape, unknown
from deploykit.serving.dataplane import InferRequest
from deploykit.serving.datatypes import (
    array_from_bytes,
    array_from_json,
    bytes_from_array,
    datatype_of,
    element_count,
    json_from_array,
)
from deploykit.serving.errors import UnfitInputError, UnreadableRequestError, UnsupportedRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from deploykit.artifact import TensorSpec
    from deploykit.serving.dataplane import InferResult
    from deploykit.serving.model import Model
    from deploykit.serving.pictures import Pictures

MAX_RANK = 32
# Beyond this no tensor exists; numpy would overflow while it multiplies.
_MAX_ELEMENTS = 2**48
_SHARED_MEMORY = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")


@dataclasses.dataclass(frozen=True, slots=True)
class Answering:
    """How a response is to look: the request's id, and whether an output goes as binary data."""

    id: str
    binary_by_default: bool
    binary: Mapping[str, bool]


def read_request(body: bytes | bytearray, header_length: int | None, model: Model) -> tuple[InferRequest, Answering]:
    """The request that a body holds; JSON, or JSON of `header_length` bytes with binary tensors after it.

    Raises UnreadableRequestError, UnfitInputError or UnsupportedRequestError.
    """
    view = memoryview(body)
    if header_length is not None and not 0 < header_length <= len(view):
        raise UnreadableRequestError(
            f"Inference-Header-Content-Length is {header_length}, and the body has {len(view)} bytes",
            hint="it is the length of the JSON before the binary data; leave it away when there is none",
        )
    document = strict_json.parse(view[:header_length])
    if not isinstance(document, dict):
        raise UnreadableRequestError('the request must be a JSON object: {"inputs": [...]}')
    parameters = _parameters(document, "the request")
    if parameters.get("sequence_id"):
        raise UnsupportedRequestError("sequence_id: this server keeps no state between requests")
    binary = _Binary(view[header_length:] if header_length is not None else view[:0])
    feeds = _read_inputs(document, model, binary)
    binary.check_used_up()
    wanted = _read_outputs(document, [spec.name for spec in model.outputs])
    id = strict_json.text_of(document.get("id", ""), "id")
    answering = Answering(id, _flag(parameters, "binary_data_output", "the request"), wanted)
    priority = _whole(parameters, "priority")
    timeout = _whole(parameters, "timeout")
    return (
        InferRequest(feeds, tuple(wanted), id, priority, timeout / 1e6 if timeout else None),
        _with_default(answering),
    )


def _with_default(answering: Answering) -> Answering:
    chosen = {name: answering.binary_by_default if flag is None else flag for name, flag in answering.binary.items()}
    return dataclasses.replace(answering, binary=chosen)


class _Binary:
    """The binary tensors after the JSON, taken one after the other."""

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._position = 0

    def take(self, size: Any, where: str) -> memoryview:
        if type(size) is not int or size < 0:
            raise UnreadableRequestError(f"{where}: binary_data_size must be a whole number of bytes")
        end = self._position + size
        if end > len(self._raw):
            raise UnreadableRequestError(
                f"{where}: binary_data_size is {size}, and the body has {len(self._raw) - self._position} bytes left",
                hint="the binary data is cut off, or Inference-Header-Content-Length is missing or wrong",
            )
        part = self._raw[self._position : end]
        self._position = end
        return part

    def check_used_up(self) -> None:
        left = len(self._raw) - self._position
        if left:
            raise UnreadableRequestError(f"{left} bytes of binary data belong to no input")


def _read_inputs(document: dict[str, Any], model: Model, binary: _Binary) -> dict[str, np.ndarray[Any, Any] | Pictures]:
    specs = model.inputs
    rows = document.get("inputs")
    if not isinstance(rows, list):
        raise UnreadableRequestError('the request has no "inputs": a list of tensors is needed')
    by_name = {spec.name: spec for spec in specs}
    feeds: dict[str, np.ndarray[Any, Any] | Pictures] = {}
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UnreadableRequestError(f"inputs[{index}] must be an object with name, datatype, shape and data")
        name = strict_json.text_of(row.get("name"), f"inputs[{index}].name")
        if name not in by_name:
            raise unknown("input", name, list(by_name))
        if name in feeds:
            raise UnreadableRequestError(f"input {name!r} is given twice")
        read = _read_pictures if row.get("datatype") == "BYTES" and model.takes_images(name) else _read_tensor
        feeds[name] = read(row, by_name[name], binary)
    check_names(feeds, specs)
    return feeds


def _read_tensor(row: dict[str, Any], spec: TensorSpec, binary: _Binary) -> np.ndarray[Any, Any]:
    where = f"input {spec.name!r}"
    datatype = strict_json.text_of(row.get("datatype"), f"{where}: datatype")
    check_datatype(datatype, spec)
    shape = _read_shape(row.get("shape"), where)
    check_shape(shape, spec)
    parameters = _parameters(row, where)
    if any(key in parameters for key in _SHARED_MEMORY):
        raise UnsupportedRequestError(f"{where}: shared memory is not supported; send the tensor in the request")
    if "binary_data_size" in parameters:
        if "data" in row:
            raise UnreadableRequestError(f"{where} has both data and binary_data_size")
        return array_from_bytes(binary.take(parameters["binary_data_size"], where), datatype, shape, where)
    if "data" not in row:
        raise UnreadableRequestError(f"{where} has neither data nor binary_data_size")
    return array_from_json(row["data"], datatype, shape, where)


def _read_pictures(row: dict[str, Any], spec: TensorSpec, binary: _Binary) -> Pictures:
    """Encoded images in the place of an input's tensor: BYTES, an element an image."""
    where = f"input {spec.name!r}"
    count = element_count(_read_shape(row.get("shape"), where))
    parameters = _parameters(row, where)
    if "binary_data_size" in parameters:
        return pictures.from_binary(binary.take(parameters["binary_data_size"], where), count, where)
    if "data" not in row:
        raise UnreadableRequestError(f"{where} has neither data nor binary_data_size")
    return pictures.from_json(row["data"], count, where)


def _read_shape(shape: Any, where: str) -> list[int]:
    if not isinstance(shape, list) or any(type(size) is not int or size < 0 for size in shape):
        raise UnreadableRequestError(f"{where}: shape must be a list of sizes, each 0 or more")
    if len(shape) > MAX_RANK or math.prod(max(size, 1) for size in shape) > _MAX_ELEMENTS:
        raise UnfitInputError(f"{where}: no tensor is as large as its shape")
    return shape


def _read_outputs(document: dict[str, Any], known: list[str]) -> dict[str, Any]:
    """By name of each wanted output whether it goes as binary data; None: as the request's default says."""
    rows = document.get("outputs", [])
    if not isinstance(rows, list):
        raise UnreadableRequestError('"outputs" must be a list of objects with a name')
    wanted: dict[str, Any] = {}
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UnreadableRequestError(f"outputs[{index}] must be an object with a name")
        name = strict_json.text_of(row.get("name"), f"outputs[{index}].name")
        where = f"output {name[:80]!r}"
        if name not in known:
            raise unknown("output", name, known)
        if name in wanted:
            raise UnreadableRequestError(f"{where} is asked for twice")
        parameters = _parameters(row, where)
        if parameters.get("classification"):
            raise UnsupportedRequestError(
                f"{where}: the classification extension is not supported", hint="take the scores and sort them"
            )
        if any(key in parameters for key in _SHARED_MEMORY):
            raise UnsupportedRequestError(f"{where}: shared memory is not supported")
        wanted[name] = _flag(parameters, "binary_data", where) if "binary_data" in parameters else None
    return wanted


def _parameters(row: dict[str, Any], where: str) -> dict[str, Any]:
    parameters = row.get("parameters", {})
    if not isinstance(parameters, dict):
        raise UnreadableRequestError(f"{where}: parameters must be an object")
    return parameters


def _flag(parameters: dict[str, Any], name: str, where: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise UnreadableRequestError(f"{where}: {name} must be true or false")
    return value


def _whole(parameters: dict[str, Any], name: str) -> int:
    """A parameter of the scheduling extension: `priority`, 1 the highest; `timeout` in microseconds; 0 for none."""
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value < 2**63:
        raise UnreadableRequestError(f"the request: {name} must be a whole number, 0 or more")
    return value


def write_response(result: InferResult, answering: Answering) -> tuple[bytes, int | None, list[str]]:
    """The body, the length of its JSON when binary data follows it, and the outputs with NaN or infinities in JSON.

    JSON has no NaN and no infinity: they become null, and the output's parameter `non_finite` says how many did.
    """
    rows: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    holed: list[str] = []
    for name, array in result.outputs.items():
        row: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if answering.binary.get(name, answering.binary_by_default):
            parts.append(bytes_from_array(array))
            row["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            row["data"], non_finite = json_from_array(array)
            if non_finite:
                row["parameters"] = {"non_finite": non_finite}
                holed.append(name)
        rows.append(row)
    document: dict[str, Any] = {"model_name": result.model.name, "model_version": result.model.version}
    if answering.id:
        document["id"] = answering.id
    header = strict_json.dump({**document, "outputs": rows})
    return (b"".join([header, *parts]), len(header), holed) if parts else (header, None, holed)


def metadata(model: Model, versions: list[str]) -> dict[str, Any]:
    """The model's metadata; a symbolic dimension is -1, as the protocol has it."""
    from deploykit.serving.datatypes import DATATYPES

    def rows(specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
        return [
            {
                "name": spec.name,
                "datatype": DATATYPES[spec.dtype],
                "shape": [-1 if isinstance(size, str) else size for size in spec.shape or ()],
            }
            for spec in specs
        ]

    return {
        "name": model.name,
        "versions": versions,
        "platform": model.platform,
        "inputs": rows(model.inputs),
        "outputs": rows(model.outputs),
    }
