"""Sample, and what every source of samples offers; the types that the readers of each kind of data share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import onnx_ir as ir

    from deploykit.artifact import TensorSpec
    from deploykit.data.contract import InputContract
    from deploykit.data.specs import DimRange
    from deploykit.report import Finding

Purpose = Literal["calibration", "accuracy", "parity", "bench"]


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One call of the model: a feed by input name, its label (None: none) and what to call it in messages."""

    feeds: dict[str, np.ndarray[Any, Any]]
    label: Any | None
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller of `open_data` asked for, as each source needs it.

    label: the name of the labels; None: `y`, when it is not an input.
    """

    inputs: tuple[TensorSpec, ...]
    purpose: Purpose
    samples: int | None
    seed: int
    label: str | None
    dims: Mapping[str, DimRange]
    contract: InputContract | None
    model: Path | ir.Model | None

    @property
    def label_name(self) -> str | None:
        """The key or column of the labels; None when the model has an input `y` and no other name was given."""
        if self.label is not None:
            return self.label
        return None if any(spec.name == "y" for spec in self.inputs) else "y"

    @property
    def carried(self) -> dict[str, str]:
        """Inputs that take an output of the previous call, by input name."""
        return {} if self.contract is None else self.contract.carry

    @property
    def required(self) -> tuple[str, ...]:
        """The inputs that each feed must have."""
        return tuple(spec.name for spec in self.inputs if spec.name not in self.carried)


class Source(Protocol):
    """Where samples come from; arrays are not checked yet, except where a header tells before reading."""

    description: str
    findings: list[Finding]
    labelled: bool

    @property
    def total(self) -> int | None:
        """How many samples there are; None where only reading tells."""
        ...

    def read(self, keep: Sequence[int] | None) -> Iterator[Sample]:
        """Yields the samples with the ascending indices of `keep`, or all of them; can be called again."""
        ...
