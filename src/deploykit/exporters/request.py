"""What a framework's worker is asked for, as JSON: source, weights and arguments, inputs, dimensions and sample."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class TorchRequest(TypedDict):
    """One PyTorch source.

    kind: a name of `sources.KINDS`. path, module, factory: as in `sources.Source`. inputs: TensorSpec dicts. dims:
    [minimum, maximum or None] by symbol. sample: a .npz with one array for each input.
    seed: for constructors that draw their weights, and for example inputs.
    translations: Python files with tables of ONNX forms. libraries: onnxruntime's extension library by target name.
    """

    kind: str
    path: str | None
    module: str | None
    factory: str | None
    weights: str | None
    args: dict[str, Any]
    inputs: list[dict[str, Any]]
    dims: dict[str, list[int | None]]
    sample: str | None
    seed: int
    translations: NotRequired[list[str]]
    libraries: NotRequired[dict[str, str]]


class TensorflowRequest(TypedDict):
    """One TensorFlow, Keras or LiteRT source.

    kind: "savedmodel", "keras", "hdf5" or "tflite". signature: of a SavedModel or LiteRT file; None: the usual one.
    inputs, dims, sample, seed: as in `TorchRequest`. layout: "nchw" or "nhwc" by input or output, "" for all images.
    """

    kind: str
    path: str
    signature: str | None
    inputs: list[dict[str, Any]]
    dims: dict[str, list[int | None]]
    sample: str | None
    seed: int
    layout: NotRequired[dict[str, str]]


class HuggingfaceRequest(TypedDict):
    """One Hugging Face folder.

    task: None takes the one of the configuration's class. inputs, dims, sample, seed: as in `TorchRequest`.
    """

    path: str
    task: str | None
    inputs: list[dict[str, Any]]
    dims: dict[str, list[int | None]]
    sample: str | None
    seed: int


class SklearnRequest(TypedDict):
    """One scikit-learn source.

    kind: "skops" or "pickle". trust: whether types that are not known to be harmless, and pickles, may run their code.
    inputs, dims, sample, seed: as in `TorchRequest`.
    """

    kind: str
    path: str
    trust: bool
    inputs: list[dict[str, Any]]
    dims: dict[str, list[int | None]]
    sample: str | None
    seed: int


def parse_layout(texts: Iterable[str]) -> dict[str, str]:
    """`nchw` for every image tensor (under the name ""), `NAME=nchw` for one; UsageError (DK604) for another form."""
    found = {}
    for text in texts:
        name, _, layout = text.rpartition("=")
        if layout.lower() not in ("nchw", "nhwc"):
            raise UsageError(
                f"the layout {text!r} is not [NAME=]nchw or [NAME=]nhwc", code="DK604", hint="--layout nchw"
            )
        found[name.strip()] = layout.lower()
    return found


def parse_args(args: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    """Constructor arguments: a mapping as it is, or `name=value` texts with values as Python literals.

    A value that is no literal is the text itself (`variant=small`).
    Raises UsageError (DK604) for a text without a name.
    """
    if args is None:
        return {}
    pairs = args.items() if hasattr(args, "items") else (_split(text) for text in args)
    return {name: _literal(value) if isinstance(value, str) else value for name, value in pairs}


def _split(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip().isidentifier():
        raise UsageError(
            f"the argument {text!r} is not NAME=VALUE", code="DK604", hint="--arg width=32 --arg variant=small"
        )
    return name.strip(), value.strip()


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
