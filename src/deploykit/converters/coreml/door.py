"""What goes into a package and comes out of it, under the names, types and forms that its model had."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.coreml.images import image_shapes, images_in
from deploykit.converters.coreml.labels import classes_in
from deploykit.converters.coreml.shapes import Flexibility, shapes_in, typed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.coreml.inspect import Opened
    from deploykit.runtime import Feeds, Outputs

    Array = np.ndarray[Any, Any]

NAMES_KEY = "deploykit.onnx_names"


class Door:
    """The interface of an opened package, as its model had it.

    inputs, outputs: an image is the tensor that the model takes, a classifier's label and dictionary are the vector
    that it gives. names: the package's by the model's, where they differ. images, classes: what the package has
    instead, images by the package's name. bounds: [min, max, *sizes] of each axis that varies. contract: the
    preprocessing of the images, in JSON form.
    """

    def __init__(self, opened: Opened) -> None:
        """Reads the specification, and what `convert` has kept in it."""
        from deploykit.converters.coreml.inspect import interface_of

        spec, facts = opened.spec, opened.facts
        self.names = names_in(spec)
        back = {made: name for name, made in self.names.items()}
        self.images = images_in(spec)
        self.classes = classes_in(spec, opened.function)
        self._flexibility = package_shapes(spec).renamed(back)
        self.bounds = self._flexibility.bounds()
        self.inputs = tuple(_renamed(interface_of(facts, "inputs"), back))
        self.outputs = tuple(_renamed(interface_of(facts, "outputs"), back))
        self.contract = {
            back.get(name, name): {"preprocess": image.rule.model_dump(mode="json", exclude_none=True)}
            for name, image in self.images.items()
        }

    def name(self, name: str) -> str:
        """The package's name of an input or output."""
        return self.names.get(name, name)

    def given(self, feeds: Feeds) -> dict[str, Array]:
        """The model's feeds as the package takes them; images are pixels uint8 [1, channels, height, width].

        Raises DataError: DK547 a shape that is not allowed, DK548 an integer beyond 32 bits, DK552 a tensor that is no
        picture.
        """
        made = {}
        for spec in self.inputs:
            array = np.asarray(feeds[spec.name])
            if self.name(spec.name) not in self.images:
                array = typed(array, spec)
                # A scalar of the model is a vector of one in the package.
                array = array.reshape(1) if not array.ndim else array
            made[spec.name] = array
        self._flexibility.check({name: array.shape for name, array in made.items()})
        return {
            place: self.images[place].pixels(array) if place in self.images else array
            for place, array in ((self.name(name), array) for name, array in made.items())
        }

    def taken(self, made: Mapping[str, Any]) -> Outputs:
        """What the package gave, as the model gives it. Raises VendorError (DK533) for inconsistent classes."""
        found = {}
        for spec in self.outputs:
            if self.classes is not None and spec.name == self.classes.output:
                found[spec.name] = self.classes.vector(made)
                continue
            array = np.asarray(made[self.name(spec.name)]).astype(spec.dtype)
            # Core ML has no arrays of rank 0: it gives a vector of one, or a number.
            found[spec.name] = array.reshape(()) if spec.shape == () and array.size == 1 else array
        return found


def _renamed(specs: Sequence[TensorSpec], back: Mapping[str, str]) -> list[TensorSpec]:
    return [dataclasses.replace(spec, name=back.get(spec.name, spec.name)) for spec in specs]


def package_shapes(spec: Any) -> Flexibility:
    """The shapes of all inputs by the package's names, those of images as the model's tensors have them."""
    arrays, pictures = shapes_in(spec), image_shapes(spec, images_in(spec))
    return Flexibility(
        {**arrays.usual, **pictures.usual},
        {**arrays.ranges, **pictures.ranges},
        {**arrays.shapes, **pictures.shapes},
    )


def names_in(spec: Any) -> dict[str, str]:
    """The package's name by the model's, for those that Core ML could not have; none in packages made elsewhere."""
    found = spec.description.metadata.userDefined
    return dict(json.loads(found[NAMES_KEY])) if NAMES_KEY in found else {}


def write_names(spec: Any, names: Mapping[str, str], order: Sequence[str]) -> None:
    """Keeps in the package which names it has changed; nothing where there are none."""
    changed = {name: names[name] for name in order if names[name] != name}
    if changed:
        spec.description.metadata.userDefined[NAMES_KEY] = json.dumps(changed)
