"""The precisions that `quantize` makes, as a table: what each needs, and what it depends on."""

from __future__ import annotations

import dataclasses
from typing import Literal

Name = Literal["int8", "int8-dynamic", "int8-weights", "int4-weights", "fp16", "bf16", "mixed"]

# How ranges are taken from calibration data; `auto` takes for each tensor what loses least.
RANGE_METHODS = ("auto", "minmax", "percentile", "entropy", "mse", "moving-average")
# How weights are rounded to 4 bits; `auto` takes the calibrated one where there is data.
ROUNDING_METHODS = ("auto", "rtn", "gptq", "hqq")


@dataclasses.dataclass(frozen=True, slots=True)
class Precision:
    """One precision.

    calibration: "required", "used" (better with it) or "" (changes nothing). methods: values of --method.
    follows: what of the target the ONNX depends on. searched: whether --max-drop searches instead of only judging.
    """

    title: str
    calibration: Literal["required", "used", ""] = ""
    methods: tuple[str, ...] = ("auto",)
    follows: Literal["", "scheme", "target"] = ""
    searched: bool = False


PRECISIONS: dict[str, Precision] = {
    "int8": Precision("weights and activations as Q/DQ", "required", RANGE_METHODS, follows="scheme", searched=True),
    "int8-dynamic": Precision("integer weights, activations quantized at run time", follows="target"),
    "int8-weights": Precision("weights only, computed in float", follows="target"),
    "int4-weights": Precision("weights only, 4 bits in blocks", "used", ROUNDING_METHODS, follows="target"),
    "fp16": Precision("half precision", "used"),
    "bf16": Precision("bfloat16", "used"),
    "mixed": Precision(
        "INT8 where a search finds it harmless", "required", RANGE_METHODS, follows="scheme", searched=True
    ),
}


def requires_calibration(name: str) -> bool:
    """Whether a precision is made from calibration data."""
    return name in PRECISIONS and PRECISIONS[name].calibration == "required"
