"""Inputs and outputs that the IR has in another form than the model: pictures, and channels last.

Commands keep taking and giving what the model does; a door turns it into what the IR takes.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.converters.images import ImageInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import openvino as ov

    Array = np.ndarray[Any, Any]

# Where the IR keeps them, beside `interface.RT_INFO`.
_PATH = ["deploykit", "doors"]
_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


@dataclasses.dataclass(frozen=True, slots=True)
class Door:
    """One input or output.

    spec: the model's tensor. image: its preprocessing, where the IR takes pictures: uint8 [N, height, width, channels],
    red first. permutation: from the model's axes to the IR's. resizes: whether the IR takes pictures of any size.
    """

    spec: TensorSpec
    image: ImageInput | None = None
    permutation: tuple[int, ...] = ()
    resizes: bool = False

    def given(self, tensor: Array) -> Array:
        """What the IR takes for the model's tensor. Raises DataError (DK552) for one that is made of no picture."""
        if self.image is None:
            return np.ascontiguousarray(tensor.transpose(self.permutation))
        pixels = self.image.pixels(tensor).transpose(_LAST)
        return np.ascontiguousarray(pixels[..., ::-1] if self.image.rule.color == "bgr" else pixels)

    def taken(self, array: Array) -> Array:
        """The model's tensor for what the IR gives."""
        back = [self.permutation.index(axis) for axis in range(len(self.permutation))]
        return np.ascontiguousarray(array.transpose(back))

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        facts: dict[str, Any] = {"spec": self.spec.as_dict()}
        if self.image is not None:
            return facts | {"preprocess": self.image.as_dict()["preprocess"], "resizes": self.resizes}
        return facts | {"permutation": list(self.permutation)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Door:
        """The door that `as_dict` wrote."""
        spec = TensorSpec.from_dict(facts["spec"])
        if "preprocess" in facts:
            about = {"dtype": spec.dtype, "shape": spec.shape or (), "preprocess": facts["preprocess"]}
            return cls(spec, ImageInput.from_dict(spec.name, about), resizes=bool(facts.get("resizes")))
        return cls(spec, permutation=tuple(int(axis) for axis in facts["permutation"]))


def remember_doors(model: ov.Model, doors: Mapping[str, Door]) -> None:
    """Writes the doors into the model's own metadata."""
    if doors:
        facts = {name: door.as_dict() for name, door in sorted(doors.items())}
        model.set_rt_info(json.dumps(facts), _PATH)


def doors_of(model: ov.Model) -> dict[str, Door]:
    """The doors of an IR by the model's names; none of one that was made elsewhere."""
    if not model.has_rt_info(_PATH):
        return {}
    try:
        facts = json.loads(str(model.get_rt_info(_PATH).astype(str)))
        return {name: Door.from_dict(door) for name, door in facts.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # somebody else's metadata under our name


def contract_of(doors: Mapping[str, Door]) -> dict[str, Any]:
    """The preprocessing of the pictures, in JSON form."""
    return {
        name: {"preprocess": door.image.rule.model_dump(mode="json", exclude_none=True)}
        for name, door in doors.items()
        if door.image is not None
    }


def outside(specs: Sequence[TensorSpec], doors: Mapping[str, Door]) -> tuple[TensorSpec, ...]:
    """The specs as the model has them."""
    return tuple(doors[spec.name].spec if spec.name in doors else spec for spec in specs)
