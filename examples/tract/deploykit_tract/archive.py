"""The artifact: a tar of NNEF with one member more, which holds what NNEF does not keep."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import tract

from deploykit.artifact import TensorSpec
from deploykit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SPECS = "deploykit.json"
_GRAPH = "graph.nnef"
_LARGEST_TEXT = 64 << 20


def dialect() -> tract.Nnef:
    """NNEF with tract's extensions, which most ONNX graphs need; writing and reading must agree on them."""
    return tract.nnef().with_tract_extra().with_tract_transformers().with_onnx().with_extended_identifier_syntax()


def pack(written: Path, final: Path, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> None:
    """Writes `final` from the tar that tract wrote, in a fixed order and without times, with the ONNX file's specs.

    tract calls an output by the node that makes it, and after reading by yet another name; places are what stays.
    """
    specs = {"inputs": [spec.as_dict() for spec in inputs], "outputs": [spec.as_dict() for spec in outputs]}
    with tarfile.open(written) as source, tarfile.open(final, "w", format=tarfile.PAX_FORMAT) as packed:
        members = sorted((member for member in source if member.isfile()), key=lambda member: member.name)
        for member in members:
            stream = source.extractfile(member)
            if stream is not None:
                _add(packed, member.name, stream, member.size)
        text = json.dumps(specs).encode()
        _add(packed, _SPECS, io.BytesIO(text), len(text))


def _add(packed: tarfile.TarFile, name: str, stream: io.IOBase, size: int) -> None:
    member = tarfile.TarInfo(name)  # of the year 1970, and nobody's
    member.size = size
    packed.addfile(member, stream)


def specs_of(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs as in the ONNX file. Raises ModelError (DK202) for another file."""
    try:
        facts = json.loads(_text(path, _SPECS))
        inputs, outputs = (tuple(map(TensorSpec.from_dict, facts[kind])) for kind in ("inputs", "outputs"))
    except (tarfile.TarError, KeyError, ValueError, TypeError) as problem:
        raise ModelError(
            f"{path.name} is no tract model that deploykit has made: {problem}",
            code="DK202",
            file=path,
            target="tract",
            hint="deploykit convert MODEL.onnx --to tract -o OUT.nnef",
        ) from problem
    return inputs, outputs


def graph_text(path: Path) -> str:
    """The graph, as NNEF text."""
    return _text(path, _GRAPH)


def _text(path: Path, name: str) -> str:
    with tarfile.open(path, "r:") as packed:
        member = packed.getmember(name)
        stream = packed.extractfile(member) if member.size <= _LARGEST_TEXT else None
        if stream is None:
            raise KeyError(name)
        return stream.read().decode()
