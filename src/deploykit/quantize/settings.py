"""What a quantization job is asked for: plain values that travel to the worker as JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.target import QuantizationScheme

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.quantize.thresholds import Method


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Options of one job.

    scheme, target: how the target wants INT8, and its name. data: a DataRequest, or None.
    method: of calibration, or for int4-weights of rounding. exclude: node names or op types that stay float.
    keep_io: inputs and outputs keep their dtypes. ranges: file of calibrated ranges to reuse or to save to.
    model_sha256, data_sha256: digests that key the ranges; "" for data that is not known.
    block_size: consecutive weights along the summed dimension that share a scale (int4-weights).
    smooth_quant: migration strength of SmoothQuant, 0 to 1; None: off. bias_correction: shift biases by the measured
    mean error. sensitivity: rank the nodes by what quantizing each costs.
    accuracy: labelled data (a DataRequest), metric and max_drop that a search has to keep; None without.
    whole: the search leaves nothing in float: it takes the method and corrections that hold the SQNR gate.
    """

    scheme: QuantizationScheme | None = None
    target: str | None = None
    data: Mapping[str, Any] | None = None
    method: Method = "auto"
    exclude: tuple[str, ...] = ()
    keep_io: bool = False
    ranges: str | None = None
    model_sha256: str = ""
    data_sha256: str = ""
    block_size: int = 32
    smooth_quant: float | None = None
    bias_correction: bool = False
    sensitivity: bool = False
    accuracy: Mapping[str, Any] | None = None
    whole: bool = False

    @property
    def calibrates(self) -> bool:
        """Whether there is data for calibration."""
        return self.data is not None and self.data["purpose"] == "calibration"

    @property
    def searches(self) -> bool:
        """Whether the result is found by measuring candidates."""
        return self.whole or (self.accuracy is not None and self.accuracy["max_drop"] is not None)

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.scheme is not None:
            facts["scheme"] = {**dataclasses.asdict(self.scheme), "operators": list(self.scheme.operators)}
        return {**facts, "exclude": list(self.exclude)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Settings:
        """The settings that `as_dict` wrote."""
        scheme = facts["scheme"]
        if scheme is not None:
            scheme = QuantizationScheme(**{**scheme, "operators": tuple(scheme["operators"])})
        return cls(**{**facts, "scheme": scheme, "exclude": tuple(facts["exclude"])})
