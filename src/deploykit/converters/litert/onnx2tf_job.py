"""onnx2tf's work, in its managed environment: an ONNX file to a LiteRT file or a SavedModel (runs there)."""

from __future__ import annotations

import importlib.metadata
import os
import re
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
) -> dict[str, Any]:
    """Writes `output`: a `.tflite` file (kind "litert") or a SavedModel's folder (kind "savedmodel").

    model: prepared by `from_onnx`. feeds: two `.npz` files with sets of inputs, sizes that vary different in each.
    inputs, outputs: name in the model, `called` in the signature, dtype, and shape with null for what varies.
    Returns {"refused": [{"node", "op", "domain", "reason"}], "pieces": number of nodes of each, "versions"}; nothing is
    written where a node is refused.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import numpy as np

    values = []
    for file in feeds:
        with np.load(file) as arrays:
            values.append(dict(arrays))
    segments = _segments(model, values, None)
    facts = {
        "refused": _refused(segments),
        "pieces": [piece.nodes for piece in segments.pieces],
        "versions": _versions(),
    }
    if facts["refused"]:
        return facts
    module = _stitched(segments, inputs, outputs)
    if kind == "savedmodel":
        _save(module, Path(output))
        return facts
    try:
        Path(output).write_bytes(_lite(module))
    except Exception as problem:  # TensorFlow's converter has an error of its own, and lets others through
        # Once more, with pieces that LiteRT takes each: what is left over is the node.
        closer = _segments(model, values, _not_lite)
        facts["refused"] = _refused(closer)
        if not facts["refused"]:
            raise
        facts["whole"] = _reason(problem)
    return facts


def _segments(model: str, values: Values, check: Any) -> Segments:
    import onnx
    import onnx2tf
    import onnx2tf.onnx2tf
    import onnx2tf.utils.common_functions

    from deploykit.converters.litert.onnx2tf_segments import Segments

    def no_images() -> Any:
        raise RuntimeError(_NO_IMAGES)

    onnx2tf.onnx2tf.download_test_image_data = no_images
    onnx2tf.utils.common_functions.download_test_image_data = no_images
    loaded = onnx.load(model)
    segments = Segments(loaded, values, onnx2tf.convert, *([check] if check is not None else []))
    segments.build()
    return segments


def _refused(segments: Segments) -> list[dict[str, str]]:
    return [
        {"node": found.node, "op": found.op, "domain": found.domain, "reason": found.reason}
        for found in segments.refusals
    ]


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("onnx2tf", "tensorflow")}


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


def _save(module: Any, folder: Path) -> None:
    import tensorflow as tf

    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})


def _lite(module: Any) -> bytes:
    import tensorflow as tf

    concrete = module.serve.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    content: bytes = converter.convert()
    return content


def _not_lite(piece: Piece, values: Values) -> str:
    """Why LiteRT's converter does not take a piece; "" when it does."""
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
        def serve(self, *given: Any) -> list[Any]:
            tensors = dict(zip(piece.inputs, given, strict=True))
            piece(tensors)
            return [tensors[name] for name in piece.outputs]

    try:
        _lite(Alone())
    except Exception as problem:  # see `convert_job`
        return _reason(problem)
    return ""


def _reason(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    found = _FLEX.search(text)
    if found:
        return f"LiteRT has no operator for TensorFlow's {found['ops'].strip(' .')}"
    return f"TensorFlow's LiteRT converter refuses it: {text[:300]}"
