"""The protobuf form of an inference in the Open Inference Protocol: messages in, InferRequest out, and back.

Source: github.com/kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto; the message classes
are those of tritonclient, whose protocol is the same one with Triton's extensions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data.dtypes import numpy_dtype
from deploykit.serving import pictures
from deploykit.serving.checks import check_datatype, check_names, check_shape, unknown
from deploykit.serving.dataplane import InferRequest
from deploykit.serving.datatypes import DTYPES, array_from_bytes, bytes_from_array, datatype_of, element_count
from deploykit.serving.errors import UnfitInputError, UnreadableRequestError, UnsupportedRequestError
from deploykit.serving.v2 import MAX_RANK

if TYPE_CHECKING:
    from deploykit.artifact import TensorSpec
    from deploykit.serving.dataplane import InferResult
    from deploykit.serving.model import Model
    from deploykit.serving.pictures import Pictures

    Array = np.ndarray[Any, Any]

# Where the message has the elements of a datatype when they are no raw bytes. Half precision goes as bytes only.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_PARAMETERS = ("sequence_id", "priority", "timeout")
_SHARED_MEMORY = "shared_memory_region"


def read_request(message: Any, model: Model, left: float | None = None) -> InferRequest:
    """The request that a ModelInferRequest holds.

    left: seconds until the caller's deadline; None for none. Raises UnreadableRequestError, UnfitInputError or
    UnsupportedRequestError.
    """
    # Looked up, and counted before they are listed: a message has room for millions of what nobody asks for.
    parameters = {name: _value(message.parameters[name]) for name in _PARAMETERS if name in message.parameters}
    if parameters.get("sequence_id"):
        raise UnsupportedRequestError("sequence_id: this server keeps no state between requests")
    raw = message.raw_input_contents
    if len(raw) and len(raw) != len(message.inputs):
        raise UnreadableRequestError(
            f"raw_input_contents has {len(raw)} tensors for {len(message.inputs)} inputs; give all of them or none"
        )
    specs = {spec.name: spec for spec in model.inputs}
    feeds: dict[str, Array | Pictures] = {}
    for position, tensor in enumerate(message.inputs):
        if tensor.name not in specs:
            raise unknown("input", tensor.name, list(specs))
        if tensor.name in feeds:
            raise UnreadableRequestError(f"input {tensor.name!r} is given twice")
        given = raw[position] if len(raw) else None
        if tensor.datatype == "BYTES" and model.takes_images(tensor.name):
            feeds[tensor.name] = _pictures(tensor, given)
        else:
            feeds[tensor.name] = _array(tensor, specs[tensor.name], given)
    check_names(feeds, model.inputs)
    timeout = _whole(parameters, "timeout") / 1e6
    waits = [seconds for seconds in (timeout or None, left) if seconds is not None]
    return InferRequest(
        feeds, _wanted(message, model), message.id, _whole(parameters, "priority"), min(waits) if waits else None
    )


def _value(parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    return None if kind is None else getattr(parameter, kind)


def _whole(parameters: dict[str, Any], name: str) -> int:
    value = parameters.get(name) or 0
    if type(value) is not int or value < 0:
        raise UnreadableRequestError(f"the request: {name} must be a whole number, 0 or more")
    return value


def _array(tensor: Any, spec: TensorSpec, raw: bytes | None) -> Array:
    where = f"input {spec.name!r}"
    check_datatype(tensor.datatype, spec)
    if len(tensor.shape) > MAX_RANK:
        raise UnfitInputError(f"{where}: no tensor is as large as its shape")
    shape = list(tensor.shape)
    if any(size < 0 for size in shape):
        raise UnreadableRequestError(f"{where}: shape must be a list of sizes, each 0 or more")
    if math.prod(max(size, 1) for size in shape) > 2**48:
        raise UnfitInputError(f"{where}: no tensor is as large as its shape")
    check_shape(shape, spec)
    if _SHARED_MEMORY in tensor.parameters:
        raise UnsupportedRequestError(f"{where}: shared memory is not supported; send the tensor in the request")
    if raw is not None:
        if tensor.HasField("contents"):
            raise UnreadableRequestError(f"{where} has both contents and raw_input_contents")
        return array_from_bytes(memoryview(raw), tensor.datatype, shape, where)
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise UnreadableRequestError(f"{where}: {tensor.datatype} has no typed contents; send raw_input_contents")
    return _from_contents(getattr(tensor.contents, field), tensor.datatype, shape, f"{where}: {field}")


def _pictures(tensor: Any, raw: bytes | None) -> Pictures:
    """Encoded images in the place of an input's tensor."""
    where, count = f"input {tensor.name!r}", element_count(tensor.shape)
    if raw is not None:
        return pictures.from_binary(memoryview(raw), count, where)
    if len(tensor.contents.bytes_contents) != count:
        raise UnreadableRequestError(f"{where} has {len(tensor.contents.bytes_contents)} images for {count}")
    return pictures.Pictures(tuple(tensor.contents.bytes_contents))


def _from_contents(values: Any, datatype: str, shape: list[int], where: str) -> Array:
    if len(values) != element_count(shape):
        raise UnreadableRequestError(
            f"{where} has {len(values)} elements, and shape {shape} takes {element_count(shape)}"
        )
    if datatype == "BYTES":
        strings = np.empty(len(values), object)
        strings[:] = [_text(value, where) for value in values]
        return strings.reshape(shape)
    dtype = numpy_dtype(DTYPES[datatype])
    if dtype.kind in "iu" and len(values):
        limits = np.iinfo(dtype)
        for value in (min(values), max(values)):
            if not limits.min <= value <= limits.max:
                raise UnfitInputError(f"{where}: {value} does not fit {datatype}")
    return np.array(values, dtype).reshape(shape)


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as problem:
        raise UnfitInputError(f"{where}: an element is no UTF-8 text") from problem


def _wanted(message: Any, model: Model) -> tuple[str, ...]:
    known = [spec.name for spec in model.outputs]
    names: list[str] = []
    for output in message.outputs:
        where = f"output {output.name[:80]!r}"
        if output.name not in known:
            raise unknown("output", output.name, known)
        if output.name in names:
            raise UnreadableRequestError(f"{where} is asked for twice")
        if _value(output.parameters["classification"]) if "classification" in output.parameters else False:
            raise UnsupportedRequestError(
                f"{where}: the classification extension is not supported", hint="take the scores and sort them"
            )
        if _SHARED_MEMORY in output.parameters:
            raise UnsupportedRequestError(f"{where}: shared memory is not supported")
        names.append(output.name)
    return tuple(names)


def write_response(result: InferResult, id: str) -> Any:
    """The ModelInferResponse; every output as raw bytes, which carry NaN and infinities as they are."""
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelInferResponse(model_name=result.model.name, model_version=result.model.version, id=id)
    for name, array in result.outputs.items():
        response.outputs.add(name=name, datatype=datatype_of(array), shape=list(array.shape))
        response.raw_output_contents.append(bytes(bytes_from_array(array)))
    return response
