"""Folders of samples: one `.npz` a feed, or images with class sub-folders."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.data.fitting import fits, match_names
from deploykit.data.images import SUFFIXES
from deploykit.data.npz_file import StoredArray, open_npz
from deploykit.data.samples import Sample, Source
from deploykit.errors import DataError
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.data.contract import InputContract
    from deploykit.data.samples import Wanted

Array = np.ndarray[Any, Any]


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Sort key in which `frame_2` comes before `frame_10`."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part]


def _entries(folder: Path) -> list[Path]:
    visible = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: natural_order(entry.name))


def folder_source(folder: Path, wanted: Wanted) -> Source:
    """The samples of a folder, by what is in it.

    Raises DataError: DK303 nothing in it that is read, DK305 `.npz` files and images together, and what the sources
    raise.
    """
    entries = _entries(folder)
    feeds = [entry for entry in entries if entry.is_file() and entry.suffix.lower() == ".npz"]
    images = _images(entries)
    if feeds and images:
        raise DataError(
            f"the folder {folder.name!r} holds .npz files and images, so what a sample is cannot be told",
            code="DK305",
            file=folder,
            hint="put them into two folders",
        )
    if feeds:
        return NpzFolder(folder, feeds, wanted)
    if images:
        return ImageFolder(folder, images, wanted)
    found = ", ".join(sorted({entry.suffix or "folders" for entry in entries})) or "nothing"
    raise DataError(
        f"the folder {folder} has no samples",
        code="DK303",
        file=folder,
        context=[f"it has {found}"],
        hint="put .npz files (one a feed) or images into it",
    )


def _images(entries: Sequence[Path]) -> list[tuple[Path, str | None]]:
    """Image files with the name of their class: those of the folder itself have none."""
    found: list[tuple[Path, str | None]] = []
    for entry in entries:
        if entry.is_dir():
            found += [(file, entry.name) for file in _entries(entry) if file.suffix.lower() in SUFFIXES]
        elif entry.suffix.lower() in SUFFIXES:
            found.append((entry, None))
    return found


class NpzFolder:
    """Each `.npz` is one feed, in natural order of the names: ragged lengths, several inputs, a stream of frames."""

    def __init__(self, folder: Path, files: Sequence[Path], wanted: Wanted) -> None:
        """Looks into the first file; the others are opened when they are read."""
        self.description = folder.name
        self.findings: list[Finding] = []
        self.total: int = len(files)
        self._files = files
        self._wanted = wanted
        self._specs = {spec.name: spec for spec in wanted.inputs}
        first = open_npz(files[0])
        self.labelled = wanted.label_name in first
        self.findings += match_names(first, wanted, files[0].name)[1]

    def read(self, keep: Sequence[int] | None) -> Iterator[Sample]:
        """Yields one sample a file."""
        for index in range(self.total) if keep is None else keep:
            file = self._files[index]
            arrays = open_npz(file)
            names, _ = match_names(arrays, self._wanted, file.name)
            feeds = {owner: self._whole(arrays[name], self._specs[owner]) for name, owner in names.items()}
            yield Sample(feeds, self._label(arrays, file), file.name)

    def _label(self, arrays: dict[str, StoredArray], file: Path) -> Any:
        if not self.labelled:
            return None
        label = arrays.get(self._wanted.label_name or "")
        if label is None:
            raise DataError(
                f"{file.name} has no label {self._wanted.label_name!r}, and {self._files[0].name} has one",
                code="DK307",
                file=file,
                hint="give every file of the folder its label, or none",
            )
        return np.array(label.whole())[()]

    def _whole(self, stored: StoredArray, spec: TensorSpec) -> Array:
        array = stored.whole()
        dims = spec.shape
        if dims and dims[0] != 0 and fits((1, *array.shape), dims) and not self._is_image(array, spec):
            said = note(
                "DK323", f"{self.description}: a leading axis of 1 is added for {spec.name!r}", tensor=spec.name
            )
            if said not in self.findings:
                self.findings.append(said)
            return array[None]
        return array

    def _is_image(self, array: Array, spec: TensorSpec) -> bool:
        contract = self._wanted.contract
        return contract is not None and array.dtype == np.uint8 and contract.prepares(spec.name)


class ImageFolder:
    """Images through the preprocessing contract; the sub-folder of an image is its class.

    Labels are the classes' places in natural order, or the numbers themselves when all sub-folders are numbers.
    """

    def __init__(self, folder: Path, images: Sequence[tuple[Path, str | None]], wanted: Wanted) -> None:
        """Raises DataError: DK301 no single input for images, DK310 no preprocessing for it, DK307 classes missing."""
        self.description = folder.name
        self.findings: list[Finding] = []
        self.total: int = len(images)
        self._images = images
        self._spec = _image_input(folder, wanted)
        self._contract = _contract(wanted, self._spec)
        classes = sorted({name for _, name in images if name is not None}, key=natural_order)
        self.labelled = bool(classes)
        loose = [file for file, name in images if name is None]
        if classes and loose:
            raise DataError(
                f"{loose[0].name} lies beside the class folders of {folder.name!r}, so it has no class",
                code="DK307",
                file=loose[0],
                hint="move it into the folder of its class",
            )
        numbers = all(name.isdecimal() for name in classes)
        self._classes = {name: int(name) if numbers else place for place, name in enumerate(classes)}
        if classes and not numbers:
            said = ", ".join(f"{place} {name}" for name, place in list(self._classes.items())[:10])
            more = ", ..." if len(classes) > 10 else ""
            self.findings.append(note("DK332", f"{folder.name}: classes are the sub-folders in order: {said}{more}"))

    def read(self, keep: Sequence[int] | None) -> Iterator[Sample]:
        """Yields one sample an image."""
        for index in range(self.total) if keep is None else keep:
            file, name = self._images[index]
            label = None if name is None else self._classes[name]
            shown = file.name if name is None else f"{name}/{file.name}"
            yield Sample({self._spec.name: self._contract.apply(file, self._spec)}, label, shown)


def _image_input(folder: Path, wanted: Wanted) -> TensorSpec:
    free = [spec for spec in wanted.inputs if spec.name in wanted.required]
    if len(free) == 1:
        return free[0]
    raise DataError(
        f"the images of {folder.name!r} feed one input, and the model takes {len(free)}",
        code="DK301",
        file=folder,
        context=["the inputs: " + ", ".join(repr(spec.name) for spec in free)],
        hint="give a folder of .npz files with one array an input",
    )


def _contract(wanted: Wanted, spec: TensorSpec) -> InputContract:
    if wanted.contract is not None and wanted.contract.prepares(spec.name):
        return wanted.contract
    raise DataError(
        f"input {spec.name!r} has no preprocessing, and images need one",
        code="DK310",
        tensor=spec.name,
        context=[f"expected {spec.describe()}"],
        hint=f"set inputs.{spec.name}.preprocess in deploykit.yaml: "
        "{resize: [H, W], scale: 1/255, mean: [...], std: [...], color: rgb, layout: nchw}",
    )
