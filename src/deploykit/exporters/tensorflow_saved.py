"""TensorFlow SavedModel folders: a TF2 signature, or through the TF1 loader where TF2's does not take the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.ops import gen_lookup_ops as lookup_ops
from tf2onnx import tf_loader
from tf2onnx.tf_utils import get_hash_table_info

from deploykit.errors import InvalidFileError, UsageError
from deploykit.exporters.diagnosis import reason
from deploykit.exporters.tensorflow_graph import (
    Frozen,
    Port,
    TensorflowModel,
    as_array,
    dtype_of,
    freeze,
    layout_of,
    not_converted,
    onnx_from_frozen,
    sizes_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs

_USUAL = "serving_default"
_SERVE = "serve"


def load_saved(path: Path, signature: str | None) -> TensorflowModel:
    """A SavedModel's signature; None takes `serving_default`, or the only one.

    Raises InvalidFileError (DK611) when no loader takes the folder, UsageError (DK652) for a signature that is not
    there or has to be named.
    """
    meta = _meta_graph(path)
    if not meta.object_graph_def.nodes:
        return _from_tf1(path, meta, signature)
    try:
        loaded = tf.saved_model.load(str(path), tags=list(meta.meta_info_def.tags))
    except Exception as newer:  # files of older Keras refer to objects that TF2's loader no longer makes
        try:
            return _from_tf1(path, meta, signature)
        except UsageError:
            raise
        except Exception as older:
            raise _unreadable(path, newer) from older
    return _from_tf2(loaded, path, signature)


def _meta_graph(path: Path) -> Any:
    """The graph for serving, or the first one."""
    file = path / "saved_model.pb"
    if not file.is_file():
        raise InvalidFileError(
            f"{path} has its graph as text (saved_model.pbtxt): TensorFlow's loaders read saved_model.pb",
            code="DK611",
            file=path,
            hint="save the model again with tf.saved_model.save",
        )
    saved = saved_model_pb2.SavedModel()
    try:
        saved.ParseFromString(file.read_bytes())
    except Exception as problem:  # protobuf's DecodeError
        raise _unreadable(path, problem) from problem
    if not saved.meta_graphs:
        raise _unreadable(path, ValueError("saved_model.pb has no graph"))
    return next((meta for meta in saved.meta_graphs if _SERVE in meta.meta_info_def.tags), saved.meta_graphs[0])


def _unreadable(path: Path, problem: Exception) -> InvalidFileError:
    return InvalidFileError(
        f"{path} cannot be read by TensorFlow {tf.__version__}: {reason(problem)}",
        code="DK611",
        file=path,
        hint="save it again: tf.saved_model.save(model, folder), or model.export(folder) with Keras 3",
    )


def choose(names: Iterable[str], wanted: str | None, path: Path) -> str:
    """The signature that is meant; raises UsageError (DK652) with what there is."""
    there = [name for name in names if not name.startswith("_")]
    chosen = wanted or (_USUAL if _USUAL in there else there[0] if len(there) == 1 else None)
    if chosen in there:
        return str(chosen)
    what = f"{path} has no signature {wanted!r}" if wanted else f"{path} has not one signature to take"
    raise UsageError(
        what,
        code="DK652",
        file=path,
        context=[f"signatures: {', '.join(there) or 'none'}"],
        hint=f"--signature {there[0]}" if there else "save the model with a signature: model.export(folder)",
    )


def _from_tf2(loaded: Any, path: Path, signature: str | None) -> TensorflowModel:
    function = loaded.signatures[choose(loaded.signatures, signature, path)]
    given = function.structured_input_signature[1]
    # Both sides are flattened in the order of their names.
    inputs = tuple(Port(name, dtype_of(given[name]), sizes_of(given[name].shape)) for name in sorted(given))
    results = function.structured_outputs
    outputs = tuple(Port(name, dtype_of(results[name]), sizes_of(results[name].shape)) for name in sorted(results))

    def run(feeds: Feeds) -> Outputs:
        values = function(**{port.name: tf.constant(feeds[port.name]) for port in inputs})
        return {port.name: as_array(values[port.name]) for port in outputs}

    captured = {tensor.name for tensor in function.graph.internal_captures}
    tensors = [tensor.name for tensor in function.inputs if tensor.name not in captured]
    frozen = freeze(
        loaded,
        function,
        dict(zip(tensors, (port.name for port in inputs), strict=True)),
        dict(zip((tensor.name for tensor in function.outputs), (port.name for port in outputs), strict=True)),
    )
    return _as_model(inputs, outputs, run, frozen)


def _from_tf1(path: Path, meta: Any, signature: str | None) -> TensorflowModel:
    """A session on the graph as it was saved; it lives as long as the model."""
    chosen = meta.signature_def[choose(sorted(meta.signature_def), signature, path)]
    facts = [(name, info, True) for name, info in sorted(chosen.inputs.items())]
    facts += [(name, info, False) for name, info in sorted(chosen.outputs.items())]
    session = tf.compat.v1.Session(graph=tf.Graph())
    try:
        with session.graph.as_default():
            tf.compat.v1.saved_model.load(session, list(meta.meta_info_def.tags), str(path))
            tensors = {info.name: session.graph.get_tensor_by_name(info.name) for _, info, _ in facts}
    except Exception as problem:  # TensorFlow's own classes
        raise _unreadable(path, problem) from problem
    ports = [
        (Port(name, dtype_of(tensors[info.name]), sizes_of(tensors[info.name].shape)), info.name, is_input)
        for name, info, is_input in facts
    ]
    inputs = {tensor: port for port, tensor, is_input in ports if is_input}
    outputs = {tensor: port for port, tensor, is_input in ports if not is_input}

    def run(feeds: Feeds) -> Outputs:
        given = {tensor: feeds[port.name] for tensor, port in inputs.items()}
        values = session.run(list(outputs), given)
        return {port.name: as_array(value) for port, value in zip(outputs.values(), values, strict=True)}

    return _as_model(tuple(inputs.values()), tuple(outputs.values()), run, _freeze_session(session, inputs, outputs))


def _freeze_session(session: Any, inputs: dict[str, Port], outputs: dict[str, Port]) -> Frozen:
    with session.graph.as_default():
        # A call that is itself an output is not inlined, and a signature's function would stay closed.
        ends = {tf.identity(session.graph.get_tensor_by_name(name)).name: port for name, port in outputs.items()}
    names = list(inputs), list(ends)
    try:
        graph_def = tf_loader.freeze_session(session, *names)
        tables = _tables(session, graph_def)
        # As a function of TF2, since only those have what a signature calls inlined.
        whole = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
        function = whole.prune(*([whole.graph.get_tensor_by_name(name) for name in side] for side in names))
        with tf.device("/cpu:0"):
            graph_def = tf_loader.from_function(function, *names)
    except Exception as problem:  # TensorFlow's own classes
        raise not_converted(problem) from problem
    return Frozen(
        graph_def,
        {tensor: port.name for tensor, port in inputs.items()},
        {tensor: port.name for tensor, port in ends.items()},
        tables,
    )


def _tables(session: Any, graph_def: Any) -> dict[bytes, Any]:
    """Keys and values of the lookup tables by name; tf2onnx 1.17's own reading calls what TensorFlow 2 has not."""
    found = {}
    with session.graph.as_default():
        for info in get_hash_table_info(graph_def):
            if info.shared_name is None:
                continue
            table = lookup_ops.hash_table_v2(info.key_dtype, info.val_dtype, shared_name=info.shared_name)
            found[info.shared_name] = session.run(
                lookup_ops.lookup_table_export_v2(table, info.key_dtype, info.val_dtype)
            )
    return found


def _as_model(inputs: tuple[Port, ...], outputs: tuple[Port, ...], run: Any, frozen: Frozen) -> TensorflowModel:
    return TensorflowModel(
        inputs,
        outputs,
        run,
        lambda opset: onnx_from_frozen(frozen, opset),
        f"TensorFlow {tf.__version__}",
        lambda: layout_of(frozen.graph_def),
        frozen=frozen,
    )
