"""ONNX to LiteRT: onnx2tf in its managed environment, then the precision that was asked for (runs in the worker)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.converters.litert.finishing import finish
from deploykit.converters.litert.options import PRECISIONS, settings_of
from deploykit.converters.litert.tracing import traced
from deploykit.errors import GateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_FLOATS = ("fp32", "fp16", "bf16")


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
    calib: Mapping[str, Any] | None = None,
    contract: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes `output` (.tflite) of an ONNX file in float; calib: a `DataRequest`. The facts of a product as JSON.

    Raises UsageError (DK527) for a bad option, UnavailableError (DK561) without the managed environment, GateError
    with the node that onnx2tf refuses and (DK569) for an ONNX with integers in it, VendorError.
    """
    from deploykit.converters.litert.from_onnx import float_model

    if precision not in _FLOATS:
        raise _quantized(Path(model), precision)
    settings = settings_of(options, calibrated=calib is not None)
    if precision == "fp16" and settings.precision is None:
        # onnx2tf gets float32, which the engine computes in; the weights are what they were when they are halved again.
        settings = dataclasses.replace(settings, precision="fp16")
    made, findings = float_model(Path(model), options, dims, profiles)
    inputs = made.inputs
    made = dataclasses.replace(
        made, names=lambda content: traced(Path(model), content, Path(output).name, inputs, dims)
    )
    facts = finish(made, Path(output), settings, precision, calib)
    facts["findings"][:0] = [finding.as_dict() for finding in findings]
    return facts


def _quantized(model: Path, precision: str) -> GateError:
    made = precision if precision in PRECISIONS else "int8"
    calib = " --calib DATA" if made == "int8" else ""
    return GateError(
        f"{model.name} is {precision} already: onnx2tf writes QuantizeLinear and DequantizeLinear out as float "
        "arithmetic, and LiteRT would compute it in float",
        code="DK569",
        file=model,
        target="litert",
        hint=f"give the float model: deploykit convert MODEL --to litert -o OUT --option precision={made}{calib}",
    )
