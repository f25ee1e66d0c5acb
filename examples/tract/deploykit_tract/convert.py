"""ONNX to tract's NNEF (runs in the worker)."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tract

from deploykit import graph
from deploykit.converters.bounds import bounds_of_input, fixed_by, unused_bounds
from deploykit.errors import GateError, VendorError
from deploykit.lazy import versions_of
from deploykit_tract.archive import dialect, pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec

_NODE = re.compile(r'node #\d+ "(?P<node>[^"]+)" (?P<op>\w+)')
_CAUSE = re.compile(r"Caused by:\s+(?:\d+: )?(?P<why>[^\n]+)")
_KINDS = {"float32": "f32", "float16": "f16", "float64": "f64", "bool": "bool"} | {
    f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
) -> dict[str, Any]:
    """Writes `output`, and returns the facts of what it is.

    dims and profiles fix a dimension that has one size left; tract takes any other range as it is.
    Raises GateError (DK526) for a node that tract refuses, VendorError (DK525) for a refusal without one.
    """
    path, final = Path(model), Path(output)
    loaded = graph.load(path)
    inputs, outputs = graph.interface(loaded)
    inputs = tuple(
        dataclasses.replace(spec, shape=fixed_by(spec, bounds_of_input(spec, dims, profiles.get(spec.name))))
        for spec in inputs
    )
    try:
        typed = _read(path, inputs)
        with tempfile.TemporaryDirectory() as scratch:
            written = Path(scratch, "model.tar")
            dialect().write_model_to_tar(typed, written)
            pack(written, final, inputs, outputs)
    except tract.TractError as problem:
        raise _refusal(path, str(problem), {node.name: node.op_type for node in loaded.graph if node.name}) from problem
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": [final.name],
        "versions": versions_of("tract"),
        "findings": [finding.as_dict() for finding in unused_bounds(inputs, dims, profiles, target="tract")],
        "metrics": {},
    }


def _read(path: Path, inputs: Sequence[TensorSpec]) -> tract.Model:
    loaded = tract.onnx().load(path)
    for index, spec in enumerate(inputs):
        if spec.shape is not None and all(isinstance(size, int) for size in spec.shape):
            shape = "".join(f"{size}," for size in spec.shape)
            loaded.set_input_fact(index, f"{shape}{_KINDS.get(spec.dtype, spec.dtype)}")
    return loaded.into_model()


def _refusal(path: Path, text: str, operators: Mapping[str, str]) -> Exception:
    """tract's message as an error: the first node that it names, and the cause without the stack of its own code.

    operators: ONNX operators by node name, since tract tells its own.
    """
    node, cause = _NODE.search(text), _CAUSE.search(text)
    why = cause["why"].strip() if cause else text.splitlines()[0].strip()
    log = text.partition("Stack backtrace")[0].strip().splitlines()
    if node is None:
        return VendorError(f"tract does not take {path.name}: {why}", code="DK525", file=path, target="tract", log=log)
    name, op = node["node"], operators.get(node["node"], node["op"])
    return GateError(
        f"tract refuses node {name!r} ({op}): {why}",
        code="DK526",
        file=path,
        node=name,
        op=op,
        target="tract",
        context=log[:5],
        hint="a symbolic dimension may be what it cannot follow: --dim NAME=SIZE fixes one",
    )
