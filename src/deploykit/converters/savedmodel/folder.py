"""The folder of a SavedModel: what it says of its signatures, and the model's own names, which travel in it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from deploykit.artifact import TensorSpec
from deploykit.errors import InvalidFileError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAME = "savedmodel"
SIGNATURE = "serving_default"
# SavedModel's own place for files that TensorFlow does not read.
_OURS = "assets.extra/deploykit.json"
_INIT = "__saved_model_init_op"


@dataclasses.dataclass(frozen=True, slots=True)
class Port:
    """An input or output: called by the signature, and what the model has for it."""

    called: str
    spec: TensorSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """One signature, in the model's order where the folder tells it, otherwise by name."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def meta_graph(path: Path) -> Any:
    """The graph for serving, or the first one. Raises InvalidFileError (DK528) for no whole SavedModel."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    file = path / "saved_model.pb"
    try:
        saved.ParseFromString(file.read_bytes())
    except (OSError, DecodeError) as problem:
        raise InvalidFileError(
            f"{path} is no whole SavedModel: saved_model.pb cannot be read ({problem})",
            code="DK528",
            file=path,
            hint="copy the folder again, or convert it again",
        ) from problem
    if not saved.meta_graphs:
        raise InvalidFileError(f"{path} is no whole SavedModel: it has no graph", code="DK528", file=path)
    return next((graph for graph in saved.meta_graphs if "serve" in graph.meta_info_def.tags), saved.meta_graphs[0])


def signatures_of(meta: Any) -> list[str]:
    """Names of the signatures, without TensorFlow's own."""
    return sorted(name for name in meta.signature_def if name != _INIT)


def signature_of(path: Path, meta: Any) -> Signature:
    """`serving_default`, or the only one. Raises InvalidFileError (DK528) where neither is there."""
    names = signatures_of(meta)
    name = SIGNATURE if SIGNATURE in names else names[0] if len(names) == 1 else None
    if name is None:
        raise InvalidFileError(
            f"{path} has no signature {SIGNATURE!r}",
            code="DK528",
            file=path,
            context=[f"signatures: {', '.join(names) or 'none'}"],
            hint="save the model with a signature of that name",
        )
    definition = meta.signature_def[name]
    known = _remembered(path)
    sides = []
    for kind in ("inputs", "outputs"):
        ports = {key: Port(key, _spec(key, info)) for key, info in sorted(getattr(definition, kind).items())}
        ours = [Port(row["called"], TensorSpec.from_dict(row["spec"])) for row in known.get(kind, ())]
        # Of a folder that was saved again since, what lies beside it says nothing.
        sides.append(tuple(ours) if {port.called for port in ours} == set(ports) else tuple(ports.values()))
    return Signature(name, sides[0], sides[1])


def _spec(name: str, info: Any) -> TensorSpec:
    import tensorflow as tf

    dims = info.tensor_shape
    shape = (
        None
        if dims.unknown_rank
        else tuple(int(dim.size) if dim.size >= 0 else f"{name}_{axis}" for axis, dim in enumerate(dims.dim))
    )
    return TensorSpec(name, tf.dtypes.as_dtype(info.dtype).name, shape)


def remember(path: Path, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    """Writes the model's own specs, in order, beside what TensorFlow reads."""
    facts = {
        kind: [{"called": port.called, "spec": port.spec.as_dict()} for port in ports]
        for kind, ports in (("inputs", inputs), ("outputs", outputs))
    }
    file = path / _OURS
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _remembered(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads((path / _OURS).read_text(encoding="utf-8"))
        for kind in ("inputs", "outputs"):
            for row in facts[kind]:
                TensorSpec.from_dict(row["spec"])
                str(row["called"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}  # not made here
    return dict(facts)
