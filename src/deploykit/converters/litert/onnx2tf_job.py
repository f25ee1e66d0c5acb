"""onnx2tf's work, in its managed environment: an ONNX file to a LiteRT file or a SavedModel (runs there)."""

from __future__ import annotations

import importlib.metadata
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.converters.litert.onnx2tf_segments import Piece, Segments, Values

_FLEX = re.compile(r"(?:Flex|TF Select|Custom) ops: (?P<ops>[\w, .]+)")
_NO_IMAGES = "onnx2tf wanted to download calibration images, which it must not"


def convert_job(
    model: str,
    output: str,
    kind: str,
    feeds: Sequence[str],
    inputs: Sequence[Mapping[str, Any]],
    outputs: Sequence[Mapping[str, Any]],
    limit_s: float | None = None,
) -> dict[str, Any]:
    """Writes `output`: a `.tflite` file (kind "litert") or a SavedModel's folder (kind "savedmodel").

    model: prepared by `from_onnx`. feeds: two `.npz` files with sets of inputs, sizes that vary different in each.
    inputs, outputs: name in the model, `called` in the signature, dtype, and shape with null for what varies.
    limit_s: processor time after which it stops; null does not.
    Returns {"refused": [{"node", "op", "domain", "reason"}], "pieces": number of nodes of each, "versions"}; nothing is
    written where a node is refused. {"late": true} where the time was up.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import numpy as np

    from deploykit.converters.litert.onnx2tf_segments import LateError

    values = []
    for file in feeds:
        with np.load(file) as arrays:
            values.append(dict(arrays))
    try:
        return _converted(model, Path(output), kind, values, inputs, outputs, limit_s)
    except LateError:
        return {"late": True}


def _converted(
    model: str,
    output: Path,
    kind: str,
    values: Values,
    inputs: Sequence[Mapping[str, Any]],
    outputs: Sequence[Mapping[str, Any]],
    limit_s: float | None,
) -> dict[str, Any]:
    def late() -> bool:
        # Processor time, so that what converts does not depend on what else the machine does.
        return limit_s is not None and time.process_time() - started > limit_s

    started = time.process_time()
    if kind == "savedmodel":
        segments = _segments(model, values, late=late)
        if not segments.refusals:
            _save(_stitched(segments, inputs, outputs), output)
        return _facts(segments)
    segments = _segments(model, values, late=late)
    problem: Exception | None = None
    # LiteRT's converter changes some of what is right in TensorFlow: then once more, in pieces that are right there.
    for check in (None, _wrong_in_lite):
        if check is not None:
            segments = _segments(model, values, check=check, tried=segments.tried, late=late)
        if segments.refusals:
            return _facts(segments)
        try:
            content = _lite(_stitched(segments, inputs, outputs))
            if not _differs(content, values, segments, inputs, outputs):
                output.write_bytes(content)
                return _facts(segments)
        except Exception as refused:  # TensorFlow's converter has an error of its own, and lets others through
            problem = refused
    raise RuntimeError(
        "each piece is right in LiteRT, and all together are not" if problem is None else _reason(problem)
    ) from problem


def _facts(segments: Segments) -> dict[str, Any]:
    return {
        "refused": [
            {"node": found.node, "op": found.op, "domain": found.domain, "reason": found.reason}
            for found in segments.refusals
        ],
        "pieces": [piece.nodes for piece in segments.pieces],
        "versions": {name: importlib.metadata.version(name) for name in ("onnx2tf", "tensorflow")},
    }


def _segments(model: str, values: Values, **settings: Any) -> Segments:
    import onnx
    import onnx2tf
    import onnx2tf.onnx2tf
    import onnx2tf.utils.common_functions

    from deploykit.converters.litert.onnx2tf_folding import folded
    from deploykit.converters.litert.onnx2tf_segments import Segments

    def no_images() -> Any:
        raise RuntimeError(_NO_IMAGES)

    onnx2tf.onnx2tf.download_test_image_data = no_images
    onnx2tf.utils.common_functions.download_test_image_data = no_images
    segments = Segments(folded(onnx.load(model)), values, onnx2tf.convert, **settings)
    segments.build()
    return segments


def _stitched(segments: Segments, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]) -> Any:
    """A module whose `serve` computes the model under the signature's names."""
    import numpy as np
    import tensorflow as tf

    pieces, constants = segments.pieces, segments.constants()
    specs = [tf.TensorSpec(port["shape"], port["dtype"], name=port["called"]) for port in inputs]

    class Stitched(tf.Module):  # type: ignore[misc]
        """Holds the pieces' variables."""

        def __init__(self) -> None:
            super().__init__(name="deploykit")
            self.pieces = [piece.model for piece in pieces]

        @tf.function(input_signature=specs, autograph=False)  # type: ignore[untyped-decorator]
        def serve(self, *given: Any) -> dict[str, Any]:
            tensors = {port["name"]: tensor for port, tensor in zip(inputs, given, strict=True)}
            for piece in pieces:
                piece(tensors)
            results = {}
            for port in outputs:
                name = port["name"]
                found = tensors[name] if name in tensors else tf.constant(np.asarray(constants[name]))
                results[port["called"]] = tf.identity(found, name=port["called"])
            return results

    return Stitched()


def _concrete(module: Any) -> Any:
    """The traced `serve`, its module holding every variable that it reads.

    onnx2tf makes the layers of depthwise and grouped convolutions inside of others, where Keras does not find them.
    TensorFlow saves no variable that nothing holds; its LiteRT converter then leaves out the signature, in silence.
    """
    concrete = module.serve.get_concrete_function()
    module.held = list(concrete.variables)
    return concrete


def _save(module: Any, folder: Path) -> None:
    import tensorflow as tf
    from tensorflow.core.protobuf import fingerprint_pb2

    tf.saved_model.save(module, str(folder), signatures={"serving_default": _concrete(module)})
    # A random identifier, which changes the bytes of every build.
    file = folder / "fingerprint.pb"
    fingerprint = fingerprint_pb2.FingerprintDef()
    fingerprint.ParseFromString(file.read_bytes())
    fingerprint.uuid = ""
    file.write_bytes(fingerprint.SerializeToString(deterministic=True))


def _lite(module: Any) -> bytes:
    import tensorflow as tf

    concrete = _concrete(module)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    content: bytes = converter.convert()
    return content


def _wrong_in_lite(piece: Piece, values: Values, wanted: list[list[Any]]) -> str:
    """What is wrong with a piece as a LiteRT model; "" when nothing is."""
    import tensorflow as tf

    specs = []
    for place, name in enumerate(piece.inputs):
        shapes = [held[name].shape for held in values]
        shape = [size if size == other else None for size, other in zip(*shapes, strict=True)]
        specs.append(tf.TensorSpec(shape, values[0][name].dtype, name=f"i{place}"))

    class Alone(tf.Module):  # type: ignore[misc]
        """One piece."""

        def __init__(self) -> None:
            super().__init__()
            self.model = piece.model

        @tf.function(input_signature=specs, autograph=False)  # type: ignore[untyped-decorator]
        def serve(self, *given: Any) -> dict[str, Any]:
            tensors = dict(zip(piece.inputs, given, strict=True))
            piece(tensors)
            return {f"o{place}": tf.identity(tensors[name]) for place, name in enumerate(piece.outputs)}

    try:
        content = _lite(Alone())
    except Exception as problem:  # see `convert_job`
        return _reason(problem)
    for held, results in zip(values, wanted, strict=True):
        feeds = {f"i{place}": held[name] for place, name in enumerate(piece.inputs)}
        expected = {f"o{place}": result for place, result in enumerate(results)}
        slack = {f"o{place}": piece.slacks.get(name, 0.0) for place, name in enumerate(piece.outputs)}
        if said := _compared(content, feeds, expected, slack):
            return said
    return ""


def _differs(
    content: bytes,
    values: Values,
    segments: Segments,
    inputs: Sequence[Mapping[str, Any]],
    outputs: Sequence[Mapping[str, Any]],
) -> str:
    """What is wrong with the whole LiteRT model; "" when nothing is."""
    for feeds, results in zip(values, segments.values, strict=True):
        given = {port["called"]: feeds[port["name"]] for port in inputs}
        expected = {port["called"]: results[port["name"]] for port in outputs if port["name"] in results}
        slack = {port["called"]: segments.slacks.get(port["name"], 0.0) for port in outputs}
        if said := _compared(content, given, expected, slack):
            return said
    return ""


def _compared(content: bytes, feeds: Mapping[str, Any], expected: Mapping[str, Any], slack: Mapping[str, float]) -> str:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    from deploykit.converters.litert.onnx2tf_values import equal, sentence

    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    try:
        found = Interpreter(model_content=content, experimental_op_resolver_type=plain).get_signature_runner()(**feeds)
    except Exception as problem:  # ValueError, RuntimeError by what fails
        return f"LiteRT does not run what its converter makes of it: {sentence(problem)}"
    wrong = [name for name, wanted in expected.items() if not equal(wanted, found[name], slack[name])]
    return "LiteRT's converter makes something else of it" if wrong else ""


def _reason(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    found = _FLEX.search(text)
    if found:
        return f"LiteRT has no operator for TensorFlow's {found['ops'].strip(' .')}"
    return f"TensorFlow's LiteRT converter refuses it: {text[:300]}"
