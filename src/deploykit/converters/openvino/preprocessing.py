"""`--option preprocess=true` and `--option layout=NHWC`: preprocessing and layout as operators of the IR."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
from openvino.preprocess import ColorFormat, PrePostProcessor, ResizeAlgorithm

from deploykit.converters.images import ImageInput, told
from deploykit.converters.openvino.doors import _LAST, Door
from deploykit.data.contract import InputContract
from deploykit.data.images import prepare
from deploykit.errors import UsageError, VendorError
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.openvino.options import Settings
    from deploykit.data.contract import PreprocessSpec

_PIXEL_TYPES = ("float32", "float16", "uint8", "int32", "int64")
_HOW = (
    "give it in deploykit.yaml: inputs.{name}.preprocess: {{scale: 1/255, mean: [...], std: [...], color: rgb, "
    "layout: nchw}}"
)


def doors_for(
    settings: Settings,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    contract: Mapping[str, Any] | None,
) -> dict[str, Door]:
    """The inputs and outputs that get another form, by name.

    contract: preprocessing in JSON form. Raises UsageError: DK550 for an input that cannot be a picture, DK527.
    """
    found: dict[str, Door] = {}
    if settings.preprocess:
        known = InputContract.model_validate(contract or {})
        rules = {spec.name: known.preprocess_of(spec.name) for spec in inputs}
        named = {name: rule for name, rule in rules.items() if rule is not None}
        if not named:
            raise UsageError(
                "preprocess=true, and no input has a preprocessing: nobody knows what the model takes for a pixel",
                code="DK550",
                target="openvino",
                hint=_HOW.format(name=inputs[0].name if inputs else "NAME"),
            )
        for spec in inputs:
            if spec.name in named:
                found[spec.name] = _picture(spec, named[spec.name])
    if settings.layout is not None:
        found |= _layouts(settings.layout, inputs, outputs, found)
    return found


def _picture(spec: TensorSpec, rule: PreprocessSpec) -> Door:
    shape = spec.shape or ()
    image = ImageInput(spec.name, spec.dtype, shape, rule)
    about = f"input {spec.name!r} ({spec.describe()})"
    if len(shape) != 4 or spec.dtype not in _PIXEL_TYPES:
        raise _bad(f"{about} cannot be pictures: it is no [N, channels, height, width] of numbers")
    _, channels, height, width = image.placed(shape)
    if channels != image.channels:
        raise _bad(
            f"{about} has {channels} channels where a {rule.color} picture has {image.channels} ({rule.layout})",
            "set color and layout of its preprocessing",
        )
    if rule.scale == 0:
        raise _bad(f"{about}: a scale of 0 makes every pixel the same")
    for what, numbers in (("mean", rule.mean), ("std", rule.std)):
        if numbers is not None and len(numbers) not in (1, image.channels):
            raise _bad(f"{about}: {what} has {len(numbers)} numbers for {image.channels} channels")
    exact = rule.scale in (None, 1.0) and rule.mean is None and rule.std is None
    if np.dtype(spec.dtype).kind in "iu" and not exact:
        raise _bad(f"{about}: scale, mean and std make fractions, and the input takes integers")
    # A crop, or one side of a resize, follows from the picture's proportions: those stay the caller's.
    resizes = isinstance(rule.resize, tuple) and rule.crop is None and rule.resize == (height, width)
    return Door(spec, image, resizes=resizes)


def _layouts(
    asked: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], taken: Mapping[str, Door]
) -> dict[str, Door]:
    """`NHWC` for every input of rank 4, or `NAME:NHWC` for inputs and outputs by name."""
    by_name = {spec.name: spec for spec in (*inputs, *outputs)}
    chosen: list[TensorSpec] = []
    for text in [part.strip() for part in asked.split(",") if part.strip()]:
        name, _, layout = text.rpartition(":")
        if layout.upper() != "NHWC" or (name and name not in by_name):
            raise UsageError(
                f"layout {text!r} is not NHWC, or NAME:NHWC with the name of an input or output",
                code="DK527",
                target="openvino",
                context=[f"names: {', '.join(by_name)}"],
                hint="--option layout=NHWC",
            )
        chosen += [by_name[name]] if name else [spec for spec in inputs if len(spec.shape or ()) == 4]
    wrong = [spec for spec in chosen if len(spec.shape or ()) != 4]
    if wrong or not chosen:
        told_of = wrong[0].describe() if wrong else "none of the inputs is"
        raise UsageError(
            f"layout={asked}: only tensors of rank 4 have their channels moved, and {told_of}",
            code="DK527",
            target="openvino",
            hint="name a tensor [N, channels, height, width], or leave layout away",
        )
    return {spec.name: Door(spec, permutation=_LAST) for spec in chosen if spec.name not in taken}


def embed(
    model: ov.Model, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], doors: Mapping[str, Door]
) -> ov.Model:
    """The model with the doors in it; inputs and outputs in the model's order."""
    if not doors:
        return model
    steps = PrePostProcessor(model)
    for place, spec in enumerate(inputs):
        door = doors.get(spec.name)
        if door is None:
            continue
        port = steps.input(place)
        if door.image is None:
            port.tensor().set_layout(ov.Layout("NHWC"))
            port.model().set_layout(ov.Layout("NCHW"))
        else:
            _embed_picture(port, door, model.inputs[place].get_element_type())
    for place, spec in enumerate(outputs):
        if spec.name in doors:
            steps.output(place).model().set_layout(ov.Layout("NCHW"))
            steps.output(place).tensor().set_layout(ov.Layout("NHWC"))
    return steps.build()


def _embed_picture(port: Any, door: Door, kind: ov.Type) -> None:
    image = door.image
    assert image is not None
    rule = image.rule
    tensor = port.tensor()
    tensor.set_element_type(ov.Type.u8)
    tensor.set_layout(ov.Layout("NHWC"))
    tensor.set_color_format(ColorFormat.GRAY if rule.color == "gray" else ColorFormat.RGB)
    port.model().set_layout(ov.Layout("NHWC" if rule.layout == "nhwc" else "NCHW"))
    if door.resizes:
        tensor.set_spatial_dynamic_shape()
    work = port.preprocess()
    if rule.color == "bgr":
        work.convert_color(ColorFormat.BGR)
    if door.resizes:
        work.resize(ResizeAlgorithm.RESIZE_BILINEAR_PILLOW)
    if rule.scale is None and rule.mean is None and rule.std is None:
        work.convert_element_type(kind)
        return
    work.convert_element_type(ov.Type.f32)
    # Its `scale` divides.
    if rule.scale is not None:
        work.scale(1.0 / rule.scale)
    if rule.mean is not None:
        work.mean(_a_channel(rule.mean, image.channels))
    if rule.std is not None:
        work.scale(_a_channel(rule.std, image.channels))
    work.convert_element_type(kind)


def _a_channel(numbers: Sequence[float], channels: int) -> list[float]:
    return list(numbers) * channels if len(numbers) == 1 else list(numbers)


def prove(doors: Mapping[str, Door]) -> None:
    """Compares what the operators make of pictures with what every other command makes of them.

    The resize rounds to whole pixel values as Pillow does, and may take the neighbouring one. Raises VendorError
    (DK588) where the tensors differ by more.
    """
    rng = np.random.default_rng(0)
    for name, door in doors.items():
        if door.image is None:
            continue
        rule, shape = door.image.rule, door.spec.shape or ()
        sizes = [size if isinstance(size, int) else 24 for size in door.image.placed(shape)[2:]]
        step = abs(door.image.affine[0]) / min(door.image.affine[2] or (1.0,))
        fixed = _Alone(door, sizes)
        model = fixed.model()
        run = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        for height, width in [sizes, *([[sizes[0] * 2 + 3, sizes[1] + 5]] if door.resizes else [])]:
            picture = rng.integers(0, 256, (1, height, width, door.image.channels), dtype=np.uint8)
            expected = fixed.expected(picture[0])
            found = np.asarray(run(picture)[0])
            allowed = step * 1.001 if (height, width) != tuple(sizes) else 0.0
            away = np.abs(found.astype(np.float64) - expected)
            if found.shape != expected.shape or (away > allowed + 1e-5 * np.abs(expected).max() + 1e-6).any():
                raise VendorError(
                    f"OpenVINO's preprocessing of input {name!r} differs from the contract by {away.max():g}",
                    code="DK588",
                    target="openvino",
                    context=[f"preprocessing: {told(rule)}", f"picture of {height} x {width}"],
                    hint="leave preprocess=true away: deploykit's commands do the same outside of the IR",
                )


class _Alone:
    """The preprocessing alone, at fixed sizes, and what it has to give."""

    def __init__(self, door: Door, sizes: Sequence[int]) -> None:
        assert door.image is not None
        self._door, self._image = door, door.image
        self._shape = tuple(int(size) for size in self._image.unplaced((1, self._image.channels, *sizes)))

    def model(self) -> ov.Model:
        """A model of nothing but this input."""
        from openvino import opset13 as ops

        kind = ov.Type(np.dtype(self._door.spec.dtype))
        parameter = ops.parameter(list(self._shape), kind, name=self._door.spec.name)
        bare = ov.Model([ops.result(parameter)], [parameter], "preprocessing")
        return embed(bare, [self._door.spec], [], {self._door.spec.name: self._door})

    def expected(self, picture: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What `InputContract.apply` gives."""
        left = {} if self._door.resizes else {"resize": None, "crop": None}
        rule = self._image.rule.model_copy(update=left)
        spec = dataclasses.replace(self._door.spec, shape=self._shape)
        return prepare(picture, rule, spec).astype(np.float64)


def changes(doors: Mapping[str, Door], inputs: Sequence[TensorSpec]) -> list[Finding]:
    """What callers of the IR see differently."""
    known = {spec.name for spec in inputs}
    return [_change(name, door, "input" if name in known else "output") for name, door in doors.items()]


def _change(name: str, door: Door, kind: str) -> Finding:
    if door.image is None:
        return note(
            "DK529",
            f"{kind} {name!r} has its channels last in the IR: [N, height, width, channels]",
            target="openvino",
            tensor=name,
            hint="deploykit's commands keep taking and giving what the model does",
        )
    rule = door.image.rule
    left = [word for word in ("resize", "crop") if getattr(rule, word) is not None and not door.resizes]
    done = told(rule if door.resizes else rule.model_copy(update={"resize": None, "crop": None}))
    size = "of any size" if door.resizes else "of the model's size"
    return note(
        "DK529",
        f"input {name!r} is uint8 [N, height, width, {door.image.channels}] in the IR, pictures {size}"
        f"{'' if door.image.channels == 1 else ', red first'}; it does {done} itself"
        + (f", not {' and '.join(left)}" if left else ""),
        target="openvino",
        tensor=name,
        hint="deploykit's commands keep taking what the model takes",
    )


def _bad(why: str, hint: str = "leave preprocess=true away") -> UsageError:
    return UsageError(why, code="DK550", target="openvino", hint=hint)
