"""The evaluators by MIL operator name, and what they share.

Each is written from the documentation in `coremltools.converters.mil.mil.ops.defs`. Arrays come in float32 (float16
widened), int32, bool or 8 bits; results may be wider: the interpreter rounds them to the declared type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Evaluator = Callable[..., Any]
EVALUATORS: dict[str, Evaluator] = {}


class Undocumented(Exception):  # noqa: N818 - it becomes a finding, it is no fault
    """A program asks for something whose result Apple's documentation does not fix; the message says what."""


def evaluates(*names: str) -> Callable[[Evaluator], Evaluator]:
    """Decorator: the function evaluates these MIL operators; arguments by MIL's names."""

    def register(function: Evaluator) -> Evaluator:
        for name in names:
            if name in EVALUATORS:
                raise ValueError(f"{name} has an evaluator already")
            EVALUATORS[name] = function
        return function

    return register


def text(value: Any) -> str:
    """A string constant."""
    return str(value.item() if isinstance(value, np.ndarray) else value)


def integers(value: Any) -> list[int]:
    """A vector constant as a list."""
    return [int(item) for item in np.atleast_1d(value)]


def flag(value: Any) -> bool:
    """A boolean constant; None counts as false."""
    return value is not None and bool(np.asarray(value).reshape(()))


def wide(x: Array) -> Array:
    """Floats in 64 bits, others as they are."""
    return x.astype(np.float64) if x.dtype.kind == "f" else x
