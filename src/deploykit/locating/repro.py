"""The failing part as files: a sub-model, the inputs that show the fault, and the command that does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.graph.parts import part_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.taps import Taps

    Array = np.ndarray[Any, np.dtype[Any]]


def save_repro(
    path: Path,
    reference: ir.Model,
    candidate: Taps,
    tensor: str,
    known: Mapping[str, str],
    given: Mapping[str, Array],
    own: Mapping[str, Array],
    like: Array,
    feeds: Mapping[str, Array],
    format: str,
) -> dict[str, Any]:
    """Writes the part that makes a tensor, and its inputs as `.npz` beside it.

    known: the candidate's name by the reference's. given: what the part starts from, by the reference's names, with the
    reference's values; own: the same by the candidate's names, in its types. like: the tensor in the candidate. feeds:
    of the whole model, for parts that begin at its inputs. format: of the candidate. Of an ONNX candidate SUB.onnx is
    its part and SUB.reference.onnx the other; of another one SUB.onnx is the reference's part, and the candidate's lies
    beside it where its format allows.
    Returns JSON: files (names), pair (reference's and candidate's among them; None where the candidate's part could not
    be written), data, nodes of the reference's part.
    """
    import onnx_ir as ir

    part = graph.infer_shapes(part_of(reference, [tensor], given))
    inputs = {value.name or "": value for value in part.graph.inputs if not value.is_initializer()}
    values = {name: np.asarray(given[name] if name in given else feeds[name]) for name in inputs}
    for name, value in inputs.items():
        value.shape = ir.Shape(values[name].shape)
    called = {known[name]: name for name in (*given, tensor)}
    made = candidate.save_part(path, [known[tensor]], own, called, {known[tensor]: like})
    other = path.with_name(f"{path.stem}.reference.onnx") if made and format == "onnx" else path
    files = [other.with_name(name) for name in graph.save(part, other)]
    data = path.with_suffix(".npz")
    # One sample; names of tensors may hold what no keyword argument can, a mapping passes them as they are.
    arrays: dict[str, Any] = {name: value[np.newaxis] for name, value in values.items()}
    np.savez(data, **arrays)
    return {
        "files": [file.name for file in (*made, *files, data)],
        "pair": [other.name, made[0].name] if made else None,
        "data": data.name,
        "nodes": [node.name for node in part.graph],
    }
