"""Random pixels for inputs that take images: through the preprocessing contract, as real images go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.data.contract import PreprocessSpec
    from deploykit.data.samples import Wanted

Array = np.ndarray[Any, Any]


def picture_inputs(wanted: Wanted) -> dict[str, PreprocessSpec]:
    """The inputs that have a preprocessing and the shape of an image, resizing and cropping left out."""
    found = {}
    for spec in wanted.inputs:
        rule = wanted.contract.preprocess_of(spec.name) if wanted.contract is not None else None
        if rule is not None and spec.shape is not None and _channels(spec.shape, rule) is not None:
            # The picture is made in the size that the model takes.
            found[spec.name] = rule.model_copy(update={"resize": None, "crop": None})
    return found


def _channels(shape: Sequence[int | str], rule: PreprocessSpec) -> int | None:
    """How many channels the shape has room for by its layout; None when that is not what the colour needs."""
    wanted = 1 if rule.color == "gray" else 3
    if len(shape) == 2:
        return 1 if wanted == 1 else None
    if len(shape) not in (3, 4):
        return None
    return wanted if shape[-1 if rule.layout == "nhwc" else -3] == wanted else None


def random_picture(
    rule: PreprocessSpec, spec: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator
) -> Array:
    """The array of this shape that the preprocessing makes of uniformly random pixels."""
    from deploykit.data.contract import InputContract, InputRule  # pydantic, which data without pictures does without

    whole = shape if len(shape) > 2 else (1, *shape) if rule.layout == "nchw" else (*shape, 1)
    first = whole if len(whole) == 4 else (1, *whole)
    rows = first if rule.layout == "nhwc" else (first[0], first[2], first[3], first[1])
    pixels = generator.integers(0, 256, rows, dtype=np.uint8)
    contract = InputContract({spec.name: InputRule(preprocess=rule)})
    return contract.apply(pixels, spec).reshape(shape)
