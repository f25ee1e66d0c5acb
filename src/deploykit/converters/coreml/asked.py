"""What a user asks of the package besides the model: images, class labels, descriptions; checked before any work."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.converters.coreml.images import images_in, write_images
from deploykit.converters.coreml.images_options import image_inputs
from deploykit.converters.coreml.labels import Classes, classes_for, classes_in, write_classes
from deploykit.converters.coreml.options import descriptions, flag, write_metadata
from deploykit.converters.images import ImageInput, told
from deploykit.data.fitting import is_symbol
from deploykit.data.stated import stated_contract
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.converters.coreml.inspect import Opened
    from deploykit.converters.coreml.shapes import Flexibility
    from deploykit.converters.profiles import Profile

_NAME = "coreml"


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """images: by the model's input. classes: the output that becomes a classifier's. texts: descriptions by name."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    images: Mapping[str, ImageInput] = dataclasses.field(default_factory=dict)
    classes: Classes | None = None
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def contract(self) -> dict[str, Any]:
        """The preprocessing of the images, in JSON form."""
        return {name: {"preprocess": image.as_dict()["preprocess"]} for name, image in self.images.items()}

    def arrays(self, inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The inputs that stay arrays."""
        return [spec for spec in inputs if spec.name not in self.images]

    def vectors(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The outputs that stay arrays."""
        return [spec for spec in outputs if self.classes is None or spec.name != self.classes.output]

    def classifier(self, names: Mapping[str, str]) -> Any:
        """The classifier as coremltools takes it, None without one; names: the package's by the model's."""
        import coremltools as ct

        if self.classes is None:
            return None
        return ct.ClassifierConfig(
            list(self.classes.labels),
            predicted_feature_name=self.classes.label,
            predicted_probabilities_output=names[self.classes.output],
        )

    def write(self, spec: Any, names: Mapping[str, str]) -> None:
        """Puts into a package's specification what commands and readers need to know of it."""
        write_images(spec, self.images, names)
        write_classes(spec, self.classes)
        classes = self.classes
        made = dict(names) | ({classes.output: classes.values, classes.label: classes.label} if classes else {})
        write_metadata(spec, self.options, {made[name]: text for name, text in self.texts.items()})

    def changes(self) -> list[Finding]:
        """What callers of the package see differently."""
        found = [
            note(
                "DK529",
                f"input {name!r} is an image of {image.rule.color} in the package; it does {_done(image)} itself"
                + (", not resize and crop" if image.rule.resize or image.rule.crop else ""),
                target=_NAME,
                tensor=name,
                hint="give it a CVPixelBuffer, or a VNCoreMLRequest, which resizes; deploykit's commands keep taking "
                "what the model takes",
            )
            for name, image in self.images.items()
        ]
        if self.classes is not None:
            found.append(
                note(
                    "DK529",
                    f"output {self.classes.output!r} is the label {self.classes.label!r} and the dictionary "
                    f"{self.classes.values!r} of {len(self.classes.labels)} labels in the package",
                    target=_NAME,
                    tensor=self.classes.output,
                    hint="deploykit's commands keep giving the vector",
                )
            )
        return found

    def facts(self, product: dict[str, Any], names: Mapping[str, str], package: Mapping[str, Any]) -> dict[str, Any]:
        """The facts of the product, images and classes as the model has them; and what the package says of itself."""
        given = {names[name]: image for name, image in self.images.items()}
        for item in product["inputs"]:
            if item["name"] in given:
                image = given[item["name"]]
                item |= {"dtype": image.dtype, "shape": list(image.shape)}
        for item in product["outputs"]:
            if self.classes is not None and item["name"] == names[self.classes.output]:
                item |= self.classes.spec.as_dict()
        said = {key: package[key] for key in ("images", "classifier", "metadata") if key in package}
        product["metrics"] |= said
        return product | ({"contract": self.contract} if self.images else {})

    def mismatches(self, opened: Opened, names: Mapping[str, str]) -> list[Finding]:
        """Failures where the reloaded package has other images or classes."""
        wanted = {names[name]: dataclasses.replace(image, name=names[name]) for name, image in self.images.items()}
        found = []
        if images_in(opened.spec) != wanted:
            found.append(failure("DK529", f"the package has other images than {', '.join(wanted)}", target=_NAME))
        if classes_in(opened.spec, opened.function) != self.classes:
            found.append(failure("DK529", "the package has other classes than class_labels", target=_NAME))
        elif self.classes is not None:
            found += self.classes.mismatches(opened.function)
        return found


def _done(image: ImageInput) -> str:
    rule = image.rule.model_copy(update={"resize": None, "crop": None})
    return told(rule)


def asked_for(
    options: Mapping[str, Any],
    model: Path,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    sizes: Mapping[str, int],
    contract: Mapping[str, Any] | None,
) -> Asked:
    """What the options ask for.

    inputs: as `with_fixed_sizes` gives them. sizes: symbols with one size. contract: preprocessing; None: that of the
    model's manifest.

    Raises UsageError: DK550 images, DK551 classes, DK527 other values.
    """
    flag(options, "device_check", default=True)
    images = image_inputs(options, inputs, sizes, contract if contract is not None else stated_contract(model))
    classes = classes_for(options, inputs, outputs, sizes)
    names = [spec.name for spec in (*inputs, *outputs)] + ([classes.label] if classes else [])
    return Asked(options, images, classes, descriptions(options, names))


def with_fixed_sizes(
    inputs: Sequence[TensorSpec], dims: Mapping[str, int], profiles: Mapping[str, Profile]
) -> tuple[list[TensorSpec], dict[str, int]]:
    """The inputs with the sizes that are fixed by a bound or a profile, and the symbols that have one size."""
    made, sizes = [], dict(dims)
    for spec in inputs:
        low, _, high = profiles.get(spec.name) or (spec.shape or (), (), spec.shape or ())
        shape: list[int | str] = []
        for size, least, most in zip(spec.shape or (), low, high, strict=True):
            if isinstance(size, str) and isinstance(least, int) and least == most:
                # What has no name is equal to nothing.
                sizes |= {size: least} if is_symbol(size) else {}
                shape.append(least)
            else:
                shape.append(dims.get(size, size) if isinstance(size, str) else size)
        made.append(dataclasses.replace(spec, shape=None if spec.shape is None else tuple(shape)))
    return made, sizes


def flexible_problems(asked: Asked, flexibility: Flexibility) -> list[Finding]:
    """Sets of sizes of an image beside those of other inputs: they belong together by position, and images do not."""
    listed = [name for name in flexibility.shapes if len(flexibility.shapes) > 1 and name in asked.images]
    return [
        failure(
            "DK550",
            f"image {name!r} and {len(flexibility.shapes) - 1} other inputs have sets of sizes, which Core ML does not "
            "tie together for images",
            target=_NAME,
            tensor=name,
            hint="give ranges: --dim NAME=MIN..MAX",
        )
        for name in listed
    ]
