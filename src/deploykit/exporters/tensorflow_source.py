"""TensorFlow, Keras and LiteRT sources, loaded, with names for the dimensions that they leave open."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.artifact import TensorSpec
from deploykit.data import DimRange, Sample
from deploykit.data.request import dim_ranges
from deploykit.data.specs import format_input
from deploykit.errors import DataError, UsageError
from deploykit.exporters.sample_file import read_arrays
from deploykit.exporters.symbols import described, ranges_of

if TYPE_CHECKING:
    from deploykit.exporters.request import TensorflowRequest
    from deploykit.exporters.tensorflow_graph import Port, TensorflowModel


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedSource:
    """The model and its inputs as they will be in the ONNX, in the source's order."""

    model: TensorflowModel
    specs: tuple[TensorSpec, ...]
    ranges: dict[str, DimRange]

    @property
    def symbols(self) -> dict[str, DimRange]:
        """Every symbol of the inputs with its range; from 1 up where none was given."""
        return ranges_of(self.specs, self.ranges)


def load(request: TensorflowRequest) -> LoadedSource:
    """Loads the source and names its open dimensions: `batch` for the first axis, `<input>_<axis>` for others.

    Raises what the loaders raise, UsageError (DK620, DK627) when the user's inputs do not describe the model.
    """
    path = Path(request["path"])
    model = _load(path, request)
    named = tuple(spec_of(port) for port in model.inputs)
    changed = {spec.name: spec for spec in described(named, request["inputs"], request["dims"], path)}
    specs = tuple(changed.get(spec.name, spec) for spec in named)
    for spec in specs:
        if spec.shape is None:
            raise UsageError(
                f"input {spec.name!r} of {path.name} has no declared rank",
                code="DK620",
                file=path,
                tensor=spec.name,
                hint=f"--input '{spec.name}:{spec.dtype}[batch,...]'",
            )
    ranges = dim_ranges(request["dims"])
    return LoadedSource(model, specs, ranges)


def _load(path: Path, request: TensorflowRequest) -> TensorflowModel:
    kind, signature = request["kind"], request["signature"]
    if kind == "savedmodel":
        from deploykit.exporters.tensorflow_saved import load_saved

        return load_saved(path, signature)
    if kind == "tflite":
        from deploykit.exporters.tensorflow_lite import load_lite

        return load_lite(path, signature)
    from deploykit.exporters.tensorflow_keras import load_keras

    return load_keras(path, kind)


def spec_of(port: Port) -> TensorSpec:
    """A port with names for its open sizes."""
    if port.shape is None:
        return TensorSpec(port.name, port.dtype, None)
    stem = re.sub(r"\W", "_", port.name)
    names = ["batch" if axis == 0 else f"{stem}_{axis}" for axis in range(len(port.shape))]
    shape = tuple(name if size is None else size for name, size in zip(names, port.shape, strict=True))
    return TensorSpec(port.name, port.dtype, shape)


def read_sample(path: str, specs: tuple[TensorSpec, ...]) -> Sample:
    """The user's sample as one feed; raises DataError (DK622) when it does not fit the inputs."""
    arrays = read_arrays(path)
    feeds = {}
    for spec in specs:
        array, shape = arrays.get(spec.name), spec.shape or ()
        fits = (
            array is not None
            and array.ndim == len(shape)
            and all(isinstance(dim, str) or dim == size for dim, size in zip(shape, array.shape, strict=True))
        )
        if array is None or not fits:
            was = "missing" if array is None else f"of shape {list(array.shape)}"
            raise DataError(
                f"the sample's {spec.name!r} is {was}",
                code="DK622",
                file=path,
                tensor=spec.name,
                context=[f"expected {format_input(spec)}"],
            )
        feeds[spec.name] = array.astype(spec.dtype if spec.dtype != "string" else object)
    return Sample(feeds, None, "the sample")
