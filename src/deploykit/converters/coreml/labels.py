"""Class labels: the file, the output that they belong to, and a classifier's dictionary as a vector again."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.errors import UsageError, VendorError
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Array = np.ndarray[Any, Any]
CLASSES_KEY = "deploykit.classes"
LABEL = "classLabel"
_MOST_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Classes:
    """An output that a package gives as a label and a dictionary from label to value.

    output, dtype, shape: of the model's output. label, values: names of the package's two outputs.
    """

    output: str
    dtype: str
    shape: tuple[int, ...]
    labels: tuple[str | int, ...]
    label: str = LABEL
    values: str = f"{LABEL}_probs"

    @property
    def spec(self) -> TensorSpec:
        """The model's output."""
        return TensorSpec(self.output, self.dtype, self.shape)

    def mismatches(self, function: Any) -> list[Finding]:
        """A failure (DK551) where the program does not say that it gives one value for each label."""
        for operation in function.operations:
            if operation.op_type == "classify":
                shape = operation.inputs["probabilities"].shape
                numbers = [int(size) if isinstance(size, (int, np.integer)) else str(size) for size in shape]
                if tuple(numbers) != self.shape:
                    wanted = list(self.shape)
                    text = f"class_labels: output {self.output!r} has shape {numbers} in the program, not {wanted}"
                    hint = "one call has one label: fix the sizes of the inputs, --dim NAME=1"
                    return [failure("DK551", text, target="coreml", tensor=self.output, hint=hint)]
        return []

    def vector(self, made: Mapping[str, Any]) -> Array:
        """The model's output from the dictionary, in the order of the labels.

        Raises VendorError (DK533) where the package gives other labels, or a label that has not the largest value.
        """
        values = made[self.values]
        if set(values) != set(self.labels):
            raise VendorError(
                f"{self.values!r} has {len(values)} labels, and the package {len(self.labels)} that are not all the "
                "same",
                code="DK533",
                target="coreml",
            )
        found = np.asarray([values[label] for label in self.labels], np.float64)
        told = _plain(made.get(self.label))
        if told is not None and not np.isnan(found).any() and values[told] != found.max():
            raise VendorError(
                f"{self.label!r} is {told!r}, and {self.labels[int(found.argmax())]!r} has the largest value",
                code="DK533",
                target="coreml",
            )
        return found.reshape(self.shape).astype(self.dtype)


def read_labels(option: Any) -> list[str | int]:
    """The labels of `--option class_labels=FILE`: a text file with one a line, a JSON list, or {"0": label, ...}.

    Raises UsageError: DK551 for a file that is missing or holds something else, a label twice or an empty one.
    """
    path = Path(str(option))
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise _bad(f"{path.name} has more than {_MOST_BYTES >> 20} MiB", path)
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as problem:
        raise _bad(f"cannot read {path}: {problem}", path) from problem
    labels: list[Any] = _listed(text, path) if path.suffix.casefold() == ".json" else text.splitlines()
    for place, label in enumerate(labels):
        if label == "" or (isinstance(label, str) and not label.strip()):
            raise _bad(f"label {place} of {path.name} is empty", path)
        if type(label) is not type(labels[0]) or not isinstance(label, (str, int)) or isinstance(label, bool):
            raise _bad(f"label {place} of {path.name} is {label!r}: labels are texts, or all of them integers", path)
    if not labels:
        raise _bad(f"{path.name} has no labels", path)
    _no_repetition(labels, path)
    return labels


def _listed(text: str, path: Path) -> list[Any]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise _bad(f"{path.name} is no JSON: {problem}", path) from problem
    if isinstance(found, dict) and set(found) == {str(place) for place in range(len(found))}:
        return [found[str(place)] for place in range(len(found))]
    if not isinstance(found, list):
        raise _bad(f"{path.name} holds no list of labels", path)
    return found


def _no_repetition(labels: Sequence[Any], path: Path) -> None:
    """Two classes of one name would share an entry of the dictionary, and one value would be lost."""
    first: dict[Any, int] = {}
    for place, label in enumerate(labels):
        if label in first:
            raise _bad(
                f"{path.name} has the label {label!r} twice (classes {first[label]} and {place}), and Core ML's "
                "dictionary holds a label once",
                path,
                hint=f"make them different: {label} (1), {label} (2)",
            )
        first[label] = place


def classes_for(
    options: Mapping[str, Any], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], sizes: Mapping[str, int]
) -> Classes | None:
    """The output that becomes a classifier's; None without class_labels.

    sizes: symbols with one size. Raises UsageError (DK551).
    """
    wanted = options.get("class_output")
    if options.get("class_labels") is None:
        if wanted is not None:
            raise _bad("class_output names the output of class_labels, and those are not given", None)
        return None
    labels = read_labels(options["class_labels"])
    by_name = {spec.name: spec for spec in outputs}
    if wanted is None and len(outputs) > 1:
        raise _bad(f"the model has {len(outputs)} outputs ({', '.join(by_name)})", None, "--option class_output=NAME")
    spec = next(iter(outputs)) if wanted is None else by_name.get(str(wanted))
    if spec is None:
        raise _bad(f"there is no output {wanted!r}", None, f"the outputs: {', '.join(by_name)}")
    fed = {size for item in inputs for size in item.shape or () if isinstance(size, str)}
    known = [sizes.get(size, size) if isinstance(size, str) else size for size in spec.shape or ()]
    open_sizes = [size for size in known if isinstance(size, str) and size in fed]
    # A size that no input has is told by the program: `Classes.mismatches`.
    shape = tuple(1 if isinstance(size, str) else size for size in known)
    if spec.shape is None or open_sizes:
        hint = " ".join(f"--dim {size}=1" for size in open_sizes)
        raise _bad(f"output {spec.name!r} ({spec.describe()}) varies in size, and one call has one label", None, hint)
    if spec.dtype not in ("float32", "float16"):
        raise _bad(f"output {spec.name!r} is {spec.dtype}, and values of classes are floats", None)
    count = math.prod(int(size) for size in shape)
    if count != len(labels) or max(map(int, shape), default=1) != count:
        raise _bad(
            f"output {spec.name!r} ({spec.describe()}) has {count} values, and there are {len(labels)} labels",
            Path(str(options["class_labels"])),
            "one label for each value, in the order of the model's classes",
        )
    taken = {item.name for item in (*inputs, *outputs)}
    label = LABEL
    while label in taken or f"{label}_probs" in taken:
        label += "_"
    return Classes(spec.name, spec.dtype, tuple(map(int, shape)), tuple(labels), label, f"{label}_probs")


def write_classes(spec: Any, classes: Classes | None) -> None:
    """Keeps in the package which output of the model its label and dictionary stand for."""
    if classes is not None:
        facts = {"output": classes.output, "dtype": classes.dtype, "shape": list(classes.shape)}
        spec.description.metadata.userDefined[CLASSES_KEY] = json.dumps(facts, sort_keys=True)


def classes_in(spec: Any, function: Any) -> Classes | None:
    """A classifier's output as the model had it; of a package made elsewhere, a vector under the dictionary's name."""
    description = spec.description
    if not description.predictedFeatureName:
        return None
    label, values = description.predictedFeatureName, description.predictedProbabilitiesName
    labels = next(
        (tuple(_label(item) for item in found) for found in map(_labels_of, function.operations) if found is not None),
        (),
    )
    kept = description.metadata.userDefined
    facts = json.loads(kept[CLASSES_KEY]) if CLASSES_KEY in kept else {}
    return Classes(
        facts.get("output", values),
        facts.get("dtype", "float32"),
        tuple(facts.get("shape", (len(labels),))),
        labels,
        label,
        values,
    )


def _labels_of(operation: Any) -> Any:
    return operation.inputs["classes"].val if operation.op_type == "classify" else None


def _plain(label: Any) -> Any:
    """An integer that comes as an array of rank 0."""
    return label.item() if isinstance(label, (np.ndarray, np.generic)) else label


def _label(item: Any) -> str | int:
    found = getattr(item, "val", item)
    return str(found) if isinstance(found, str) else int(found)


def _bad(why: str, path: Path | None, hint: str = "") -> UsageError:
    usual = "class_labels=FILE is a text file with one label a line, or a JSON list"
    return UsageError(f"class_labels: {why}", code="DK551", target="coreml", file=path, hint=hint or usual)
