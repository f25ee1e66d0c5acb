"""What a transformers model takes: names, dtypes and sizes from its configuration, and feeds that mean something."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.data.dtypes import numpy_dtype
from deploykit.data.specs import DimRange, format_input
from deploykit.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

    from deploykit.exporters.huggingface_tasks import Task
    from deploykit.runtime import Feeds

BATCH, SEQUENCE, PAST = "batch_size", "sequence_length", "past_sequence_length"
TOTAL = f"{PAST} + {SEQUENCE}"
# A sequence that the configuration does not bound, or bounds higher, is proven up to here unless --dim says otherwise.
_PROVEN_LENGTH = 1024
_PROVEN_BATCH = 8
_PROVEN_FRAMES = 40
_SMALL_IMAGE = 224


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs with the range of each symbol.

    limit: how many positions a sequence has with its cache; None: as many as wanted. vocabularies: exclusive upper
    bounds of integer inputs.
    """

    specs: tuple[TensorSpec, ...]
    ranges: dict[str, DimRange]
    limit: int | None
    vocabularies: dict[str, int]

    def shape(self, spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The input's shape with these sizes; `a + b` is a sum."""
        return tuple(size_of(dim, sizes) for dim in spec.shape or ())

    def sizes(self, feeds: Feeds) -> dict[str, int]:
        """The size of each symbol in feeds."""
        return {
            dim: feeds[spec.name].shape[axis]
            for spec in self.specs
            for axis, dim in enumerate(spec.shape or ())
            if dim in self.ranges and isinstance(dim, str)
        }

    def feeds(self, sizes: Mapping[str, int], seed: Sequence[int], *, padded: bool = False) -> Feeds:
        """Random feeds: tokens of the vocabulary, a mask of ones, positions that count on from the cache.

        padded: the mask hides positions, of the cache where there is one and at the end of the first text otherwise.
        """
        rng = np.random.default_rng(list(seed))
        past = sizes.get(PAST, 0)
        found: dict[str, np.ndarray[Any, Any]] = {}
        for spec in self.specs:
            shape, dtype = self.shape(spec, sizes), numpy_dtype(spec.dtype)
            if spec.name == "attention_mask":
                array = np.ones(shape, dtype)
                if padded and past > 1:
                    array[0, : past // 2] = 0
                elif padded and shape[1] > 1:
                    array[0, -(shape[1] // 2) :] = 0
            elif spec.name == "position_ids":
                array = np.broadcast_to(np.arange(past, past + shape[1], dtype=dtype), shape).copy()
            elif dtype.kind in "iu":
                array = rng.integers(0, self.vocabularies.get(spec.name, 2), shape).astype(dtype)
            else:
                array = rng.standard_normal(shape).astype(dtype)
            found[spec.name] = array
        return found

    def points(self) -> list[dict[str, int]]:
        """Sizes to compare at: all at their minimum, each at its maximum with the others small, and two between."""
        lowest = {name: bounds.minimum for name, bounds in self.ranges.items()}
        highest = {name: self._highest(bounds) for name, bounds in self.ranges.items()}
        found = [lowest]
        found += [{**lowest, name: high} for name, high in highest.items() if high > lowest[name]]
        for share, most in ((3, 12), (2, 33)):
            found.append(
                {name: low + min((highest[name] - low + 1) // share, max(most, low)) for name, low in lowest.items()}
            )
        unique = {tuple(sorted(self._within(sizes).items())) for sizes in found}
        return [dict(items) for items in sorted(unique)]

    def _highest(self, bounds: DimRange) -> int:
        if bounds.maximum is not None:
            return bounds.maximum
        return bounds.minimum + (_PROVEN_BATCH - 1 if bounds.name == BATCH else 2 * _PROVEN_BATCH)

    def _within(self, sizes: dict[str, int]) -> dict[str, int]:
        """The sizes with a cache that leaves room for the sequence."""
        if self.limit is None or PAST not in sizes:
            return sizes
        room = self.limit - sizes.get(SEQUENCE, 1)
        return {**sizes, PAST: max(min(sizes[PAST], room), self.ranges[PAST].minimum)}

    def example(self) -> dict[str, int]:
        """Sizes for the trace: small, different and never 1, of which torch.export would make a constant."""
        wanted = iter((2, 5, 3, 7, 11, 13))
        return {
            name: min(max(next(wanted), bounds.minimum * 2 if bounds.minimum > 1 else 0), self._highest(bounds))
            for name, bounds in self.ranges.items()
        }


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    """A dimension's size: a number, a symbol, or a sum of both kinds."""
    if isinstance(dim, int):
        return dim
    return sum(int(part) if part.isdigit() else sizes[part] for part in dim.split(" + "))


def past_name(layer: int, part: str) -> str:
    """The name of a cache that goes in."""
    return f"past_key_values.{layer}.{part}"


def present_name(layer: int, part: str) -> str:
    """The name of a cache that comes out."""
    return f"present.{layer}.{part}"


def inputs_of(
    model: Any,
    task: Task,
    folder: Path,
    given: list[dict[str, Any]],
    dims: Mapping[str, list[int | None]],
    caches: Sequence[tuple[tuple[int, int], tuple[int, int]]] = (),
) -> Inputs:
    """The inputs of a loaded model for the task, with what the user described in the place of what was inferred.

    caches: heads and width of the keys and of the values, by layer.
    Raises ModelError (DK681) when they are not known, UsageError (DK620) for descriptions that do not fit.
    """
    specs, ranges, limit = _inferred(model, task, folder)
    specs += [
        TensorSpec(past_name(n, part), "float32", (BATCH, heads, PAST, width))
        for n, pair in enumerate(caches)
        for part, (heads, width) in zip(("key", "value"), pair, strict=True)
    ]
    config = model.config
    described = {spec.name: spec for spec in (TensorSpec.from_dict(facts) for facts in given)}
    known = [spec.name for spec in specs]
    for name in described:
        if name not in known:
            raise UsageError(
                f"--input {name!r} is no input of {type(model).__name__} for {task.name}",
                code="DK620",
                file=folder,
                context=[format_input(spec) for spec in specs],
                hint=f"inputs: {', '.join(known)}",
            )
    numbers: dict[str, list[int | None]] = {}
    specs = [_as_described(spec, described.get(spec.name, spec), numbers, folder) for spec in specs]
    ranges = _narrowed(specs, ranges, {**dims, **numbers}, folder)
    _check_room(ranges, limit, folder)
    fixed = {name: bounds.minimum for name, bounds in ranges.items() if bounds.minimum == bounds.maximum}
    return Inputs(
        tuple(dataclasses.replace(spec, shape=_fixed(spec.shape or (), fixed)) for spec in specs),
        {name: bounds for name, bounds in ranges.items() if name not in fixed},
        limit,
        {
            "input_ids": int(getattr(config.get_text_config(), "vocab_size", 2)),
            "token_type_ids": int(getattr(config, "type_vocab_size", 2) or 2),
        },
    )


def _as_described(
    inferred: TensorSpec, given: TensorSpec, numbers: dict[str, list[int | None]], folder: Path
) -> TensorSpec:
    """The input as the user has it; a number for a symbol is noted, since other inputs share it.

    Raises UsageError (DK620) for another rank, and for another name of a symbol that inputs share.
    """
    wanted, shape = inferred.shape or (), given.shape or ()
    if len(wanted) != len(shape) or any(
        isinstance(old, str) and isinstance(new, str) and old != new for old, new in zip(wanted, shape, strict=True)
    ):
        raise UsageError(
            f"--input {given.name!r} is described as {given.describe()}, and it is {inferred.describe()}",
            code="DK620",
            file=folder,
            hint=f"keep the names of its dimensions: {format_input(inferred)}",
        )
    dims: list[int | str] = []
    for old, new in zip(wanted, shape, strict=True):
        if isinstance(old, str) and isinstance(new, int) and " + " not in old:
            numbers[old] = [new, new]
        dims.append(old if isinstance(old, str) else new)
    return TensorSpec(given.name, given.dtype, tuple(dims))


def _check_room(ranges: Mapping[str, DimRange], limit: int | None, folder: Path) -> None:
    for name in (SEQUENCE, PAST):
        most = ranges[name].maximum if name in ranges else None
        if limit is not None and most is not None and most > limit:
            raise UsageError(
                f"--dim {name} goes up to {most}, and the model has {limit} positions",
                code="DK620",
                file=folder,
                hint=f"--dim {name}={min(ranges[name].minimum, limit)}..{limit}",
            )


def _narrowed(
    specs: Sequence[TensorSpec], ranges: Mapping[str, DimRange], dims: Mapping[str, list[int | None]], folder: Path
) -> dict[str, DimRange]:
    symbols = dict.fromkeys(
        part
        for spec in specs
        for dim in spec.shape or ()
        if isinstance(dim, str)
        for part in dim.split(" + ")
        if not part.isdigit()
    )
    for name in dims:
        if name not in symbols:
            raise UsageError(
                f"--dim {name} names no dimension of the inputs",
                code="DK620",
                file=folder,
                context=[format_input(spec) for spec in specs],
                hint=f"symbols: {', '.join(symbols)}",
            )
    found = {}
    for name in symbols:
        bounds = ranges.get(name, DimRange(name, 1, None))
        if name in dims:
            low, high = dims[name]
            most = bounds.maximum if name == SEQUENCE else None
            bounds = DimRange(name, int(low or 0), high if high is not None else most)
        found[name] = bounds
    return found


def _fixed(shape: Sequence[int | str], numbers: Mapping[str, int]) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for dim in shape:
        parts = [str(numbers.get(part, part)) for part in dim.split(" + ")] if isinstance(dim, str) else [str(dim)]
        if all(part.isdigit() for part in parts):
            found.append(sum(map(int, parts)))
        else:
            found.append(" + ".join(parts))
    return tuple(found)


def _inferred(model: Any, task: Task, folder: Path) -> tuple[list[TensorSpec], dict[str, DimRange], int | None]:
    taken = inspect.signature(model.forward).parameters
    batch = DimRange(BATCH, 1, None)
    main = model.main_input_name
    if main == "input_ids":
        return _text(model, task, taken, batch)
    if main == "pixel_values":
        return [TensorSpec(main, "float32", (BATCH, *_image(model.config, folder)))], {BATCH: batch}, None
    audio = _audio(model.config, main)
    if audio is None:
        raise ModelError(
            f"the inputs of {type(model).__name__} are not known here: its main input is {main!r}",
            code="DK681",
            file=folder,
            context=[f"forward takes {', '.join(name for name in taken if name != 'kwargs')}"],
            hint="write a factory that loads the model, and describe its inputs: "
            "deploykit export model.py:factory --input ...",
        )
    shape, ranges = audio
    return [TensorSpec(main, "float32", shape)], {BATCH: batch, **ranges}, None


def _text(
    model: Any, task: Task, taken: Mapping[str, Any], batch: DimRange
) -> tuple[list[TensorSpec], dict[str, DimRange], int | None]:
    limit = position_limit(model)
    longest = min(limit or _PROVEN_LENGTH, _PROVEN_LENGTH)
    ranges = {BATCH: batch, SEQUENCE: DimRange(SEQUENCE, 1, longest)}
    specs = [TensorSpec("input_ids", "int64", (BATCH, SEQUENCE))]
    total = TOTAL if task.past else SEQUENCE
    if "attention_mask" in taken:
        specs.append(TensorSpec("attention_mask", "int64", (BATCH, total)))
    if "token_type_ids" in taken and (getattr(model.config, "type_vocab_size", 0) or 0) > 1 and not task.generates:
        specs.append(TensorSpec("token_type_ids", "int64", (BATCH, SEQUENCE)))
    if task.generates and "position_ids" in taken:
        specs.append(TensorSpec("position_ids", "int64", (BATCH, SEQUENCE)))
    if task.past:
        ranges[PAST] = DimRange(PAST, 0, longest - 1)
    return specs, ranges, limit


def position_limit(model: torch.nn.Module) -> int | None:
    """How many positions the model has: its configuration's number, less those before the first one in RoBERTa's kin.

    None when positions are relative, or nothing tells.
    """
    config: Any = model.config
    text = config.get_text_config()
    found = next(
        (
            int(value)
            for name in ("max_position_embeddings", "n_positions", "max_seq_len")
            if isinstance(value := getattr(text, name, None), int) and value > 0
        ),
        None,
    )
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if found is not None and name.endswith("position_embeddings") and padding is not None:
            return min(found, int(module.num_embeddings) - int(padding) - 1)
    return found


def _image(config: Any, folder: Path) -> tuple[int, int, int]:
    """Channels, height and width: of the configuration, else of the preprocessor."""
    channels = int(getattr(config, "num_channels", 3))
    size = getattr(config, "image_size", None) or _preprocessed(folder) or _SMALL_IMAGE
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    return channels, height, width


def _preprocessed(folder: Path) -> tuple[int, int] | int | None:
    """The size that preprocessor_config.json brings images to; None without one."""
    try:
        facts = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    sizes = [facts.get("crop_size") if facts.get("do_center_crop") else None, facts.get("size")]
    for size in sizes:
        if isinstance(size, int):
            return size
        if isinstance(size, dict):
            if "height" in size and "width" in size:
                return int(size["height"]), int(size["width"])
            edge = size.get("shortest_edge") or size.get("longest_edge")
            if edge:
                return int(edge)
    return None


def _audio(config: Any, main: str) -> tuple[tuple[int | str, ...], dict[str, DimRange]] | None:
    """The shape of sound: samples for models with a convolutional front, else frames by mel bands."""
    kernels, strides = getattr(config, "conv_kernel", None), getattr(config, "conv_stride", None)
    if main == "input_values" and kernels and strides:
        least = _receptive(kernels, strides, 2)
        return (BATCH, SEQUENCE), {SEQUENCE: DimRange(SEQUENCE, least, least * _PROVEN_FRAMES)}
    bands = getattr(config, "num_mel_bins", None)
    frames = getattr(config, "max_length", None)
    if main == "input_values" and bands and frames:
        return (BATCH, int(frames), int(bands)), {}
    positions = getattr(config, "max_source_positions", None)
    if main == "input_features" and bands and positions:
        return (BATCH, int(bands), 2 * int(positions)), {}
    return None


def _receptive(kernels: Sequence[int], strides: Sequence[int], frames: int) -> int:
    """How many samples give so many frames after convolutions without padding."""
    size = frames
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        size = (size - 1) * stride + kernel
    return size
