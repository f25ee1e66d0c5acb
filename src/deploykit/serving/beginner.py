"""The short form for beginners: `POST /predict` with `{"image": [...]}`, answered by `{"scores": [...]}`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.serving import strict_json
from deploykit.serving.checks import check_names, check_shape, describe
from deploykit.serving.dataplane import InferRequest
from deploykit.serving.datatypes import DATATYPES, array_from_json, json_from_array, shape_of_json
from deploykit.serving.errors import UnfitInputError, UnreadableRequestError
from deploykit.serving.pictures import Pictures, from_json

if TYPE_CHECKING:
    from deploykit.serving.dataplane import InferResult
    from deploykit.serving.model import Model


def read_request(body: bytes | bytearray, model: Model) -> InferRequest:
    """The request: values by input name, nested as their shapes; or only the value when the model has one input.

    Raises UnreadableRequestError or UnfitInputError.
    """
    document = strict_json.parse(body)
    if not isinstance(document, dict):
        if len(model.inputs) != 1:
            wanted = ", ".join(f'"{spec.name}": {describe(spec)}' for spec in model.inputs)
            raise UnreadableRequestError(f"the model has {len(model.inputs)} inputs, so name them: {{{wanted}}}")
        document = {model.inputs[0].name: document}
    check_names(document, model.inputs)
    feeds: dict[str, Any] = {}
    for spec in model.inputs:
        data = document[spec.name]
        if isinstance(data, str) and model.takes_images(spec.name):
            feeds[spec.name] = from_json(data, 1, f"input {spec.name!r}")
            continue
        shape = shape_of_json(data)
        check_shape(shape, spec)
        feeds[spec.name] = array_from_json(data, DATATYPES[spec.dtype], shape, f"input {spec.name!r}")
    return InferRequest(feeds)


def read_image(body: bytes | bytearray, model: Model) -> InferRequest:
    """The request of an image file, for a model whose only input is made of one. Raises UnfitInputError."""
    if len(model.inputs) != 1 or not model.takes_images(model.inputs[0].name):
        raise UnfitInputError(
            "this model takes no image: "
            + (
                f"it has {len(model.inputs)} inputs"
                if len(model.inputs) != 1
                else "nothing says how an image becomes its tensor"
            ),
            hint="send tensors as JSON; inputs.NAME.preprocess in deploykit.yaml says how images become tensors",
        )
    return InferRequest({model.inputs[0].name: Pictures((bytes(body),))})


def write_response(result: InferResult) -> tuple[bytes, list[str]]:
    """The outputs by name as nested lists, and which of them have NaN or infinities, which become null."""
    document: dict[str, Any] = {}
    holed = []
    for name, array in result.outputs.items():
        document[name], non_finite = json_from_array(array, nested=True)
        if non_finite:
            holed.append(name)
    return strict_json.dump(document), holed
