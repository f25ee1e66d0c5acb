"""An ONNX file translated by pnnx, once for what is asked of it before and for the conversion itself."""

from __future__ import annotations

import atexit
import dataclasses
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.converters.bounds import bounds_of_input, fixed_by
from deploykit.converters.ncnn.prepare import prepare
from deploykit.converters.ncnn.tool import Translated, translate, unknown_layers
from deploykit.converters.ncnn.tracing import Traced, findings_of, trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.vendor_process import Finished
    from deploykit.report import Finding


# PyTorch's words for ONNX operators, where they differ by more than form.
_WORDS = {
    "eq": "equal", "ge": "greaterorequal", "gt": "greater", "le": "lessorequal", "lt": "less", "to": "cast",
    "logicaland": "and", "logicalor": "or", "logicalxor": "xor", "logicalnot": "not", "select": "gather",
    "scatter": "scatterelements", "upsample": "resize", "interpolate": "resize",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """What came of it.

    inputs, outputs: the interface, with a number for each dimension that has one size only. findings: what ncnn cannot
    have of it; then nothing was translated. nodes: name and operator of all, unnamed ones named. result: None where
    pnnx failed. unknown: types of layers that ncnn does not have.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    findings: tuple[Finding, ...]
    nodes: tuple[tuple[str, str, str], ...] = ()
    traced: Traced | None = None
    result: Translated | None = None
    finished: Finished | None = None
    unknown: tuple[str, ...] = ()

    def left(self) -> dict[int, str]:
        """Why a node is refused, by its place in `nodes`: what pnnx leaves of it, which is no layer of ncnn."""
        words = {_onnx_word(kind): kind for kind in self.unknown}
        places = [(place, op.lower()) for place, (_, op, _) in enumerate(self.nodes)]
        counts = Counter(layer.type for layer in self.result.layers) if self.result is not None else Counter()
        told = {}
        for place, word in places:
            if word in words:
                kind, many = words[word], sum(other == word for _, other in places)
                # pnnx numbers what it leaves and drops the names.
                which = "it" if counts[kind] >= many else f"{counts[kind]} of {many} such nodes"
                told[place] = f"pnnx leaves {which} as {kind}, which is no layer of ncnn"
        return told

    def unexplained(self) -> list[str]:
        """Types of layers that ncnn does not have, and no node of the model is called like."""
        words = {op.lower() for _, op, _ in self.nodes}
        return [kind for kind in self.unknown if _onnx_word(kind) not in words]


def _onnx_word(kind: str) -> str:
    """The ONNX operator of a layer type, in lower case: `Hardmax` stays one, others have PyTorch's words."""
    word = kind.rpartition(".")[2].replace("_", "").lower()
    return _WORDS.get(word, word)


# The last one, by what it was made of: a check and the conversion that follows it share a process.
_kept: dict[str, tuple[Attempt, tempfile.TemporaryDirectory[str]]] = {}


def attempt(
    path: Path,
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    *,
    half: bool,
) -> Attempt:
    """Translates the file. Its files stay until the next one is translated, or the process ends."""
    state = path.stat()
    key = repr((str(path.resolve()), state.st_size, state.st_mtime_ns, dict(dims), dict(profiles), half))
    if key not in _kept:
        forget()
        folder = tempfile.TemporaryDirectory(prefix="deploykit-ncnn-")
        try:
            _kept[key] = (_attempt(path, Path(folder.name), dims, profiles, half=half), folder)
        except BaseException:
            folder.cleanup()
            raise
    return _kept[key][0]


@atexit.register
def forget() -> None:
    """Removes the files of the last one."""
    while _kept:
        _kept.popitem()[1][1].cleanup()


def _attempt(
    path: Path,
    folder: Path,
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    *,
    half: bool,
) -> Attempt:
    loaded = graph.name_nodes(graph.load(path))
    inputs, outputs = graph.interface(loaded)
    limits = [bounds_of_input(spec, dims, profiles.get(spec.name)) for spec in inputs]
    inputs = tuple(
        dataclasses.replace(spec, shape=fixed_by(spec, shape)) for spec, shape in zip(inputs, limits, strict=True)
    )
    nodes = tuple((node.name or "", node.op_type, node.domain) for node in graph.all_nodes(loaded))
    findings = tuple(findings_of(inputs, outputs))
    if findings:
        return Attempt(inputs, outputs, findings, nodes)
    traced = trace(inputs, {**_by_symbol(inputs, limits), **dims})
    prepare(loaded, inputs)
    ready = folder / "model.onnx"
    graph.save(loaded, ready)
    result, finished = translate(ready, traced.shapes, half=half)
    unknown = tuple(unknown_layers(result.layers)) if result is not None else ()
    return Attempt(inputs, outputs, (), nodes, traced, result, finished, unknown)


def _by_symbol(inputs: Sequence[TensorSpec], limits: Sequence[Sequence[Any]]) -> dict[str, Sequence[int | None]]:
    """The bounds that profiles give, by the name of the dimension."""
    return {
        size: list(bound)
        for spec, bounds in zip(inputs, limits, strict=True)
        for size, bound in zip(spec.shape or (), bounds, strict=True)
        if isinstance(size, str) and bound is not None
    }
