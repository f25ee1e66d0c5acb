"""The sections of a deploykit.yaml: types, defaults and what each key means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, field_validator

from deploykit import precision as precisions
from deploykit.data import specs
from deploykit.data.contract import PreprocessSpec
from deploykit.errors import DeploykitError

if TYPE_CHECKING:
    from collections.abc import Sequence

Precision = Literal["fp32"] | precisions.Name


class Section(BaseModel):
    """A mapping of the file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False, use_attribute_docstrings=True)


def _ranges(dims: dict[str, str | int | list[int]]) -> dict[str, str | int | list[int]]:
    found: dict[str, str | int | list[int]] = {}
    for name, given in dims.items():
        bounds = ",".join(map(str, given)) if isinstance(given, list) else given
        try:
            specs.parse_dim(f"{name}={bounds}")
        except DeploykitError as problem:
            raise ValueError(problem.message) from problem
        found[name] = bounds
    return found


Dims = Annotated[dict[str, str | int | list[int]], pydantic.AfterValidator(_ranges)]


class InputSection(Section):
    """One input of the model, by name."""

    dtype: str | None = None
    """numpy's name, bfloat16 or string; needed when the source does not tell."""
    shape: list[int | str] | None = None
    """Dimensions; a name is a symbolic dimension."""
    dims: Dims = {}
    """Bounds of symbolic dimensions: `batch: 1..64`, `1..` without an upper one, or the only sizes, `[1, 8]`."""
    preprocess: PreprocessSpec | None = None
    """How images become this input: used by calibration, parity, accuracy and bench alike."""
    carry: str | None = None
    """Stateful models: the output whose value of the last call this input takes."""


class ExportSection(Section):
    """Source to ONNX."""

    opset: Annotated[int, Field(ge=7)] | None = None
    exporter: Literal["auto", "dynamo", "torchscript"] = "auto"
    signature: str | None = None
    """Of a SavedModel; needed where it has several."""
    layout: list[str] = []
    """Of image tensors of a TensorFlow model: `nchw` for all of them, `NAME=nchw` for one."""
    custom_ops: str | None = None
    """A Python file with a table TRANSLATIONS of ONNX forms for PyTorch operators."""
    task: str | None = None
    """Of a Hugging Face folder, as the ecosystem calls it; the one of its configuration otherwise."""
    sample: str | None = None
    """A .npz with one array for each input: names, dtypes, shapes and example values."""


class SimplifySection(Section):
    """ONNX to smaller ONNX."""

    engine: Literal["auto", "native", "onnxsim", "onnxslim"] = "auto"
    max_growth: Annotated[float, Field(ge=1)] = 1.05


class QuantizeSection(Section):
    """One precision to make, for every target that takes it."""

    precision: Precision
    calib: str | None = None
    """Calibration data (DATA of the command line); needed for int8 and mixed."""
    samples: Annotated[int, Field(ge=1)] | None = None
    method: Literal["auto", "minmax", "percentile", "entropy", "mse", "moving-average", "rtn", "gptq", "hqq"] = "auto"
    """How ranges are taken from the calibration data; rtn, gptq, hqq: how int4-weights rounds."""
    exclude: list[str] = []
    """Node names or operator types that stay in float."""
    keep_io: bool = False
    block_size: Annotated[int, Field(ge=16)] = 32
    """int4-weights: weights that share a scale."""
    smooth_quant: Annotated[float, Field(ge=0, le=1)] | None = None
    """int8: how much of the activations' range is moved into the weights."""
    bias_correction: bool = False
    """int8: shift biases by the error that calibration measures."""
    max_drop: Annotated[float, Field(ge=0)] | None = None
    """int8, mixed: search for what to leave in float until `evaluate` loses at most so much."""

    @pydantic.model_validator(mode="after")
    def _fits(self) -> QuantizeSection:
        if self.precision in precisions.PRECISIONS and self.method not in precisions.PRECISIONS[self.precision].methods:
            known = ", ".join(precisions.PRECISIONS[self.precision].methods)
            message = f"precision {self.precision} has no method {self.method!r}; it has {known}"
            raise ValueError(message)
        if self.max_drop is not None and not precisions.PRECISIONS[self.precision].searched:
            message = f"max_drop is for int8 and mixed: {self.precision} has nothing to search"
            raise ValueError(message)
        return self


def profile_texts(given: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """The profiles of one input, each its three shapes."""
    if all(isinstance(shape, str) for shape in given):
        return [[str(shape) for shape in given]]
    return [[str(shape) for shape in shapes] for shapes in given]


class TargetSection(Section):
    """One target: what to make for it."""

    precisions: list[Precision] | None = None
    """Default: fp32 and every precision under `quantize` that the target takes."""
    options: dict[str, Any] = {}
    profiles: dict[str, list[str] | list[list[str]]] = {}
    """TensorRT: input name to [MIN, OPT, MAX] shapes, each like 1x3x224x224; or a list of such for several profiles."""

    @field_validator("profiles")
    @classmethod
    def _three(cls, profiles: dict[str, list[str] | list[list[str]]]) -> dict[str, list[str] | list[list[str]]]:
        for name in profiles:
            for shapes in profile_texts(profiles[name]):
                if len(shapes) != 3:
                    message = f"the profile of {name!r} needs three shapes (min, opt, max), and has {len(shapes)}"
                    raise ValueError(message)
        return profiles


class EvaluateSection(Section):
    """Accuracy of every artifact on labelled data."""

    data: str
    metric: str = "top1"
    label: str | None = None
    samples: Annotated[int, Field(ge=1)] | None = None
    max_drop: Annotated[float, Field(ge=0)] | None = None
    """Points that an artifact may lose against the float source; more is exit 1."""


class ValidateSection(Section):
    """Parity of every artifact with its parent and its float source."""

    data: str | None = None
    samples: Annotated[int, Field(ge=1)] = 16


class BenchSection(Section):
    """Latency, throughput and memory of what runs here."""

    data: str | None = None
    batch: Annotated[int, Field(ge=1)] = 1
    threads: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0)] = 1.0


class BudgetSection(Section):
    """Limits on every artifact; a broken one is exit 1."""

    p99_ms: Annotated[float, Field(gt=0)] | None = None
    throughput_per_s: Annotated[float, Field(gt=0)] | None = None
    size_mb: Annotated[float, Field(gt=0)] | None = None
    rss_mb: Annotated[float, Field(gt=0)] | None = None
