"""IR files with the same bytes for the same model: names that OpenVINO numbers as it goes are numbered anew."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path

# OpenVINO names what it adds `Constant_5593`: the number counts everything the process has ever made.
_LAYER = re.compile(r'^(\s*<layer id="\d+" name=")([A-Z][A-Za-z0-9]*)_(\d+)(.*?)(" type=".*)$')

# A model without a name of its own, by how many the process has made.
_NET = re.compile(r'^(<net name="Model)\d+(" version=".*)$')


def normalise(xml: Path, known: AbstractSet[str]) -> None:
    """Renumbers generated layer names in the order of the file, and takes the number from a generated name of it.

    known: names from the ONNX file, which stay. Nothing else in an IR refers to a layer by name: edges and port maps
    use ids, and tensors keep the names of the ONNX values.
    """
    renumbered = xml.with_name(xml.name + ".new")
    names: dict[str, str] = {}
    taken = set(known)
    with (
        xml.open(encoding="utf-8", newline="") as source,
        renumbered.open("w", encoding="utf-8", newline="\n") as target,
    ):
        for line in source:
            text = _NET.sub(r"\1\2", line.rstrip("\r\n"))
            found = _LAYER.match(text)
            if found and _unescape(f"{found[2]}_{found[3]}{found[4]}") not in known:
                text = f"{found[1]}{_renamed(found[2], found[3], names, taken)}{found[4]}{found[5]}"
            target.write(text + "\n")
    renumbered.replace(xml)


def _renamed(stem: str, number: str, names: dict[str, str], taken: set[str]) -> str:
    before = f"{stem}_{number}"
    if before not in names:
        count = len(names)
        while f"{stem}_{count}" in taken:
            count += 1
        names[before] = f"{stem}_{count}"
        taken.add(names[before])
    return names[before]


def _unescape(text: str) -> str:
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"), ("&amp;", "&")):
        text = text.replace(entity, character)
    return text
