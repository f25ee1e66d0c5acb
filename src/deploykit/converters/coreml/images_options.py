"""`--option image_input=...`: which inputs become images, and by which preprocessing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from deploykit.converters.images import CHANNELS, ImageInput, told
from deploykit.data.contract import InputContract, PreprocessSpec
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec

_LAYOUTS = ("nchw", "nhwc")
_PIXEL_TYPES = ("float32", "float16", "uint8", "int32", "int64")
_HOW = (
    "give it in deploykit.yaml (inputs.{name}.preprocess: {{scale: 1/255, mean: [...], std: [...], color: rgb}}), or "
    "as --option image_scale=1/255 --option image_bias=0,0,0 (pixel * scale + bias)"
)


def image_inputs(
    options: Mapping[str, Any],
    inputs: Sequence[TensorSpec],
    sizes: Mapping[str, int],
    contract: Mapping[str, Any] | None,
) -> dict[str, ImageInput]:
    """The inputs that are to be images, by name.

    options: image_input (`NAME`, `NAME:bgr`, `NAME:gray:nhwc`, several with commas, or `true` for the only input that
    looks like one), image_scale, image_bias. sizes: symbols with one size. contract: preprocessing in JSON form.
    Raises UsageError: DK550 for an input that cannot be one or whose preprocessing is not known, DK527.
    """
    asked = options.get("image_input")
    numbers = {name: options[name] for name in ("image_scale", "image_bias") if options.get(name) is not None}
    if asked is None or str(asked).strip().casefold() in ("", "false", "no"):
        if numbers:
            raise _bad(f"{' and '.join(numbers)} belong to an image input, and none is named", "image_input=NAME")
        return {}
    known = InputContract.model_validate(contract or {})
    found = {}
    for spec, words in _named(asked, inputs):
        rule = _rule(spec, words, numbers, known.preprocess_of(spec.name))
        shape = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in spec.shape or ())
        image = ImageInput(spec.name, spec.dtype, shape, rule)
        _check(image)
        found[spec.name] = image
    return found


def _named(asked: Any, inputs: Sequence[TensorSpec]) -> list[tuple[TensorSpec, list[str]]]:
    """The inputs meant, each with the words behind its name."""
    if str(asked).strip().casefold() in ("true", "yes"):
        alike = [spec for spec in inputs if _layouts_of(spec, None)]
        if len(alike) != 1:
            names = ", ".join(spec.name for spec in alike) or "none"
            raise _bad(
                f"image_input=true is for models with one input like an image, and this one has {len(alike)} ({names})",
                "name it: --option image_input=NAME",
            )
        return [(alike[0], [])]
    by_name = {spec.name: spec for spec in inputs}
    found = []
    for text in [part.strip() for part in str(asked).split(",") if part.strip()]:
        name, words = text, []
        # A name may hold colons itself.
        while name not in by_name and ":" in name:
            name, _, word = name.rpartition(":")
            words.append(word.casefold())
        unknown = [word for word in words if word not in (*CHANNELS, *_LAYOUTS)]
        if name not in by_name or unknown:
            raise UsageError(
                f"image_input: there is no input {text!r}" if name not in by_name else f"image_input: {unknown[0]!r}?",
                code="DK527",
                target="coreml",
                context=[f"inputs: {', '.join(by_name)}", f"behind a colon: {', '.join((*CHANNELS, *_LAYOUTS))}"],
                hint="--option image_input=NAME, or NAME:bgr",
            )
        found.append((by_name[name], words))
    return found


def _rule(
    spec: TensorSpec, words: Sequence[str], numbers: Mapping[str, Any], known: PreprocessSpec | None
) -> PreprocessSpec:
    """The preprocessing: of the contract, or of the options; both would be two answers."""
    colour = next((word for word in words if word in CHANNELS), None)
    layout = next((word for word in words if word in _LAYOUTS), None)
    if known is not None:
        if numbers:
            raise _bad(
                f"input {spec.name!r} has a preprocessing {told(known)}, and {' and '.join(numbers)} says another",
                "leave the options out, or the preprocessing",
            )
        for word, mine in ((colour, known.color), (layout, known.layout)):
            if word is not None and word != mine:
                raise _bad(f"input {spec.name!r} is {mine} in its preprocessing, and {word} in image_input", "say one")
        return known
    if not numbers:
        raise _bad(
            f"input {spec.name!r} has no preprocessing, so nobody knows what the model takes for a pixel of 0..255",
            _HOW.format(name=spec.name),
        )
    layouts = _layouts_of(spec, colour)
    if layout is None and len(layouts) > 1:
        raise _bad(
            f"input {spec.name!r} ({spec.describe()}) may have its channels first or last",
            f"--option image_input={spec.name}:nchw, or {spec.name}:nhwc",
        )
    chosen = layout or next(iter(layouts), "nchw")
    gray = layouts.get(chosen) == 1
    bias = numbers.get("image_bias")
    try:
        return PreprocessSpec(
            scale=numbers.get("image_scale"),
            mean=None if bias is None else [-value for value in _numbers(bias)],  # type: ignore[arg-type]
            color=colour or ("gray" if gray else "rgb"),  # type: ignore[arg-type]
            layout=chosen,  # type: ignore[arg-type]
        )
    except (ValidationError, ValueError) as problem:
        raise UsageError(
            f"image_scale is a number or a fraction, image_bias a number or one a channel: {numbers}",
            code="DK527",
            target="coreml",
            hint="--option image_scale=1/255 --option image_bias=-0.485,-0.456,-0.406",
        ) from problem


def _numbers(value: Any) -> list[float]:
    parts = value.strip("[]() ").split(",") if isinstance(value, str) else np.atleast_1d(value).tolist()
    return [float(part) for part in parts]


def _layouts_of(spec: TensorSpec, colour: str | None) -> dict[str, int]:
    """Where the channels may be, with how many there are."""
    shape = spec.shape or ()
    if len(shape) == 2 and colour == "gray":
        return {"nchw": 1}
    if len(shape) not in (3, 4) or spec.dtype not in _PIXEL_TYPES:
        return {}
    if len(shape) == 4 and isinstance(shape[0], int) and shape[0] != 1:
        return {}
    wanted = (1, 3) if colour is None else (CHANNELS[colour],)
    places = {"nchw": shape[-3], "nhwc": shape[-1]}
    return {layout: int(size) for layout, size in places.items() if isinstance(size, int) and size in wanted}


def _check(image: ImageInput) -> None:
    """Refuses what no image of Core ML can be."""
    rule, shape = image.rule, image.shape
    told_of = f"input {image.name!r} ({image.spec.describe()})"
    if image.dtype not in _PIXEL_TYPES:
        raise _bad(f"{told_of} cannot be an image: pixels do not become {image.dtype}", "leave image_input out")
    if len(shape) not in (3, 4) and not (len(shape) == 2 and image.channels == 1):
        raise _bad(f"{told_of} cannot be an image: its rank is {len(shape)}", "leave image_input out")
    batch, channels, *_ = image.placed(shape)
    if batch != 1:
        hint = f"--dim {batch}=1" if isinstance(batch, str) else "export the model with a batch of 1"
        raise _bad(f"{told_of} takes {batch} images at a time, and an image input of Core ML is one", hint)
    if channels != image.channels:
        raise _bad(
            f"{told_of} has {channels} channels where a {rule.color} image has {image.channels} ({rule.layout})",
            "set color and layout of its preprocessing, or image_input=NAME:bgr:nhwc",
        )
    if rule.scale == 0:
        raise _bad(f"{told_of}: a scale of 0 makes every pixel the same", "image_scale=1/255")
    for what, numbers in (("mean", rule.mean), ("std", rule.std)):
        if numbers is not None and len(numbers) not in (1, image.channels):
            raise _bad(
                f"{told_of}: {what if what == 'std' else 'mean (image_bias)'} has {len(numbers)} numbers for "
                f"{image.channels} channels",
                "give one a channel, or one for all",
            )
    exact = rule.scale in (None, 1.0) and rule.mean is None and rule.std is None
    if np.dtype(image.dtype).kind in "iu" and not exact:
        raise _bad(f"{told_of}: scale, mean and std make fractions, and the input takes integers", "image_scale=1")


def _bad(why: str, hint: str) -> UsageError:
    return UsageError(why, code="DK550", target="coreml", hint=hint)
