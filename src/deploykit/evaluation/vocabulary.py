"""What the numbers of a text model's outputs stand for: read from the model itself, or from a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.errors import DataError, UsageError
from deploykit.io import existing_file

if TYPE_CHECKING:
    from collections.abc import Iterable

# PaddleOCR and RapidOCR keep the characters of a recogniser in its metadata, one a line.
METADATA = ("character", "characters", "vocabulary", "vocab")


@dataclasses.dataclass(frozen=True, slots=True)
class Vocabulary:
    """Texts by their place. source: where they come from. numbered: the places are the model's own class numbers."""

    texts: tuple[str, ...]
    source: str
    numbered: bool = False

    def table(self, classes: int, blank: int) -> list[str]:
        """The text of each of the model's classes, "" for the blank.

        A vocabulary may list every class, all but the blank, or all but the blank and the space, which then comes last
        (as PaddleOCR has it). Raises DataError (DK426) when it has another length.
        """
        texts = list(self.texts)
        place = blank % classes
        if self.numbered:
            texts += [""] * (classes - len(texts))
        elif len(texts) == classes - 2:
            texts.append(" ")
        if len(texts) == classes - 1:
            texts.insert(place, "")
        if len(texts) != classes:
            raise DataError(
                f"the vocabulary of {self.source} has {len(self.texts)} entries, and the output {classes} classes",
                code="DK426",
                hint="it lists every class, or all but the blank, or all but the blank and a space at the end",
            )
        texts[place] = ""
        return texts


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a file: an ONNX model's metadata, JSON ({text: number} or a list), or text with one a line.

    In JSON `|` is the space between words and `<...>` marks no text, as speech models have it.
    Raises InvalidFileError when it is not there, DataError (DK429) when it can't be read.
    """
    existing_file(path, "vocabulary")
    if path.suffix == ".onnx":
        found = vocabulary_of_model(path)
        if found is None:
            raise _unreadable(path, f"its metadata has none of {', '.join(METADATA)}")
        return found
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return _from_json(path, json.loads(text))
    except ValueError as problem:
        raise _unreadable(path, str(problem)) from problem
    # Not splitlines: a vocabulary may hold characters that Unicode counts as the end of a line.
    return Vocabulary(tuple(line.rstrip("\r") for line in text.removesuffix("\n").split("\n")), path.name)


def _from_json(path: Path, found: object) -> Vocabulary:
    if isinstance(found, list):
        return Vocabulary(tuple(map(str, found)), path.name)
    if not isinstance(found, dict) or not all(isinstance(n, int) and 0 <= n < 1 << 24 for n in found.values()):
        raise _unreadable(path, 'a list of texts or an object {"text": number} is needed')
    texts = [""] * (max(found.values(), default=-1) + 1)
    for text, number in found.items():
        marks = text.startswith("<") and text.endswith(">") and len(text) > 2
        texts[number] = "" if marks else text.replace("|", " ")
    return Vocabulary(tuple(texts), path.name, numbered=True)


def vocabulary_of_model(path: Path) -> Vocabulary | None:
    """The vocabulary in an ONNX model's metadata; None when it has none."""
    from deploykit import graph

    properties = graph.load(path).metadata_props
    text = next((properties[key] for key in METADATA if key in properties), None)
    return None if text is None else Vocabulary(tuple(text.removesuffix("\n").split("\n")), path.name)


def vocabulary_for(metric: str, option: str | None, models: Iterable[Path]) -> Vocabulary:
    """The vocabulary that the option names, or the first one that a model carries.

    Raises UsageError (DK425) when there is none, and what `read_vocabulary` raises.
    """
    if option is not None:
        return read_vocabulary(Path(option))
    for path in models:
        found = vocabulary_of_model(path) if path.suffix == ".onnx" else None
        if found is not None:
            return found
    raise UsageError(
        f"metric {metric!r}: the labels are texts, and what the output's classes stand for is not known",
        code="DK425",
        hint="name a file with one character a line, or the ONNX model that has them: "
        f"{metric.partition(':')[0].partition(',')[0]},vocabulary=FILE; or give token numbers as labels",
    )


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(
        f"{path.name} has no vocabulary that can be read: {why}",
        code="DK429",
        file=path,
        hint="UTF-8 text with one character or token a line, JSON, or an ONNX model with characters in its metadata",
    )
