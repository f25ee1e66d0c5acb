"""Whether an engine computes an INT8 model right: each segment between two quantizations, on the engine's own values.

A value on the border between two levels takes either one, by the order in which a sum was made. In a deep model that
spreads: two right engines can be 17 dB apart, and no limit for the whole tells that from a fault. Between one
QuantizeLinear and the next nothing spreads. So the artifact runs whole, as it is, and its integers are read; from them
the ONNX model computes the next ones, and each must be the level next to the value that it rounds.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.comparison import Side, carry_of, runtime_options, shared_samples
from deploykit.data.dtypes import cast
from deploykit.errors import GateError
from deploykit.parity import TOLERANCES, OutputComparison
from deploykit.progress import OnProgress, Progress, silent
from deploykit.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import onnx_ir as ir

    from deploykit.runtime import Runtime

    Array = np.ndarray[Any, np.dtype[Any]]

# In levels, beyond the half that rounding takes. In 600 million integers OpenVINO was at most 0.0011 beyond it (15
# models) and ONNX Runtime's integer kernels 0.019 (4 models); a scale that is 1 % wrong moves the level 64 by 0.64.
ALLOWED = 1 / 16
# Floats after the last quantization.
OUTPUTS = TOLERANCES["fp32"]
_LEVELS = ("INT8", "UINT8", "INT16", "UINT16")
_FAULTS = 5


@dataclasses.dataclass(slots=True)
class Cut:
    """A QuantizeLinear whose levels are read and given.

    tensor: its output. node: its name, and what makes its input. wrong: of `elements`, levels that are not next to the
    value. worst: distance of a level from its value in levels; 0.5 is what rounding takes.
    """

    tensor: str
    node: str
    dtype: np.dtype[Any]
    elements: int = 0
    wrong: int = 0
    worst: float = 0.0

    @property
    def given(self) -> str:
        """The input that takes the levels' place."""
        return f"{self.tensor}/given"

    @property
    def outputs(self) -> tuple[str, str]:
        """How many levels are wrong, and the largest distance."""
        return f"{self.tensor}/wrong", f"{self.tensor}/worst"


def segments_job(
    reference: str,
    candidate: str,
    data: dict[str, Any],
    options: Mapping[str, Any] | None = None,
    every_size: bool = False,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Each segment of a quantized ONNX model against an artifact made of it, on the artifact's own values, in a worker.

    data, options, every_size: as for `comparison.compare_job`. A sample is one run of the artifact with its integers as
    outputs and one of the ONNX model cut at each QuantizeLinear: the time of a plain comparison, and its memory with
    the integers of a sample besides.
    Returns JSON: segments (0 where the engine shows no integers), samples, elements, wrong, worst (levels), outputs
    (rows of the JSON contract, on the artifact's own values), faults (the first segments with wrong levels).
    Raises what opening and running both raise; GateError (DK409) for integers of another type or shape.
    """
    paths, wanted = (Path(reference), Path(candidate)), runtime_options(options)
    model = graph.load(paths[0])
    names = tuple(str(node.outputs[0].name) for node in quantizers(model))
    engine = open_runtime(paths[1], dataclasses.replace(wanted, taps=names))
    parent: Runtime | None = None
    try:
        cuts = cut(model, engine.taps)
        with tempfile.TemporaryDirectory(prefix="deploykit-segments-") as folder:
            segmented = Path(folder) / "segments.onnx"
            graph.save(model, segmented)
            del model
            parent = open_runtime(segmented, dataclasses.replace(wanted, optimize=False))
            levels = {one.given for one in cuts}
            # What samples are made of; the levels are given besides.
            parent.inputs = tuple(spec for spec in parent.inputs if spec.name not in levels)
            samples = shared_samples(data, parent, engine, paths, every_size=every_size)
            side, ours = Side(engine, carry_of(data), "candidate"), Side(parent, None, "reference")
            rows: dict[str, OutputComparison] = {}
            count = 0
            for sample in samples:
                on_progress(Progress("comparing segments", sample.name, count, samples.total))
                feeds = side.feeds(sample)
                made = side.predict(feeds, sample.name)
                side.keep(made)
                known = {spec.name: cast(feeds[spec.name], spec, sample.name)[0] for spec in parent.inputs}
                found = ours.predict({**known, **_levels(cuts, made)}, sample.name)
                _count(cuts, found, made)
                for name in (spec.name for spec in engine.outputs):
                    rows.setdefault(name, OutputComparison(name, OUTPUTS)).add(found[name], made[name])
                count += 1
    finally:
        engine.close()
        if parent is not None:
            parent.close()
    return {
        "segments": len(cuts),
        "samples": count,
        "elements": sum(one.elements for one in cuts),
        "wrong": sum(one.wrong for one in cuts),
        "worst": max((one.worst for one in cuts), default=0.0),
        "outputs": [row.result() for row in rows.values()],
        "faults": [
            {"tensor": one.tensor, "node": one.node, "elements": one.elements, "wrong": one.wrong, "worst": one.worst}
            for one in cuts
            if one.wrong
        ][:_FAULTS],
    }


def quantizers(model: ir.Model) -> list[ir.Node]:
    """QuantizeLinear nodes of the main graph that quantize what is computed, by one known scale, to 8 or 16 bits."""
    return [node for node in model.graph if node.op_type == "QuantizeLinear" and not node.domain and _can_be_cut(node)]


def _can_be_cut(node: ir.Node) -> bool:
    value, scale, *rest = node.inputs
    zero = rest[0] if rest else None
    if value is None or scale is None or value.const_value is not None or node.outputs[0].is_graph_output():
        return False
    if any(one is not None and (one.const_value is None or one.const_value.size != 1) for one in (scale, zero)):
        return False
    if zero is None:
        return node.attributes.get_int("output_dtype", 0) == 0  # uint8
    return zero.const_value is not None and zero.const_value.dtype.name in _LEVELS


def cut(model: ir.Model, tensors: Collection[str]) -> list[Cut]:
    """Cuts a model behind each QuantizeLinear that makes one of these tensors; in the order of the graph.

    What reads the levels reads `Cut.given`, a new input, instead; the QuantizeLinear gives way to `Cut.outputs`, which
    count and measure the given levels that are more than a half and `ALLOWED` from the value that was to be rounded.
    """
    return [_cut(model, node) for node in quantizers(model) if node.outputs[0].name in tensors]


def _cut(model: ir.Model, node: ir.Node) -> Cut:
    import onnx_ir as ir

    value, scale, *rest = node.inputs
    zero = rest[0].const_value if rest and rest[0] is not None else None
    kind = ir.DataType.UINT8 if zero is None else zero.dtype
    assert value is not None
    assert scale is not None
    assert scale.const_value is not None
    producer = value.producer()
    made = f"{producer.name or producer.op_type} ({producer.op_type})" if producer else "the model's input"
    found = Cut(str(node.outputs[0].name), made, kind.numpy())
    given = ir.Value(name=found.given, type=ir.TensorType(kind))
    node.outputs[0].replace_all_uses_with(given)
    model.graph.inputs.append(given)
    limits = np.iinfo(found.dtype)
    tape = _Tape(model, found.tensor)
    real = tape.add("Cast", value, to=ir.DataType.FLOAT)
    real = tape.add("Div", real, tape.constant(scale.const_value.numpy().item()))
    real = tape.add("Add", real, tape.constant(0.0 if zero is None else zero.numpy().item()))
    real = tape.add("Max", tape.add("Min", real, tape.constant(limits.max)), tape.constant(limits.min))
    # Of another shape, the levels are no counterpart: an Add would spread one over the other.
    distance = tape.add("Abs", tape.add("Sub", real, tape.add("Cast", given, to=ir.DataType.FLOAT)))
    within = tape.add("Less", distance, tape.constant(0.5 + ALLOWED))
    beyond = tape.add("Cast", tape.add("Not", within), to=ir.DataType.FLOAT)  # NaN is beyond
    tape.output(tape.add("ReduceSum", beyond, keepdims=0), found.outputs[0])
    tape.output(tape.add("ReduceMax", distance, keepdims=0), found.outputs[1])
    tape.output(tape.add("Shape", real), _shape(found))
    model.graph.remove(node, safe=True)
    return found


def _shape(one: Cut) -> str:
    return f"{one.tensor}/shape"


class _Tape:
    """Nodes that are put at the end of a graph one after the other."""

    def __init__(self, model: ir.Model, name: str) -> None:
        """name: in front of the names of values."""
        self._graph, self._name, self._count = model.graph, name, 0

    def add(self, operator: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        import onnx_ir as ir

        node = ir.node(operator, list(inputs), attributes=attributes)
        node.outputs[0].name = self._next()
        self._graph.append(node)
        return node.outputs[0]

    def constant(self, number: float) -> ir.Value:
        import onnx_ir as ir

        name = self._next()
        tensor = ir.tensor(np.float32(number), name=name)
        value = ir.Value(name=name, shape=ir.Shape([]), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def output(self, value: ir.Value, name: str) -> None:
        import onnx_ir as ir

        value.name = name
        value.type = ir.TensorType(ir.DataType.INT64 if name.endswith("/shape") else ir.DataType.FLOAT)
        self._graph.outputs.append(value)

    def _next(self) -> str:
        self._count += 1
        return f"{self._name}/segment/{self._count}"


def _levels(cuts: Collection[Cut], made: Mapping[str, Array]) -> dict[str, Array]:
    """What the engine computed, as inputs of the cut model."""
    for one in cuts:
        if made[one.tensor].dtype != one.dtype:
            what = f"{one.tensor!r} is {made[one.tensor].dtype} in the engine, {one.dtype} in the model"
            raise GateError(what, code="DK409", tensor=one.tensor)
    return {one.given: made[one.tensor] for one in cuts}


def _count(cuts: Collection[Cut], found: Mapping[str, Array], made: Mapping[str, Array]) -> None:
    for one in cuts:
        shape, levels = tuple(found[_shape(one)].tolist()), made[one.tensor]
        if shape != levels.shape:
            what = f"{one.tensor!r} has shape {list(levels.shape)} in the engine, {list(shape)} in the model"
            raise GateError(what, code="DK409", tensor=one.tensor)
        wrong, worst = (float(found[name]) for name in one.outputs)
        one.elements += levels.size
        one.wrong += int(wrong)
        one.worst = max(one.worst, worst)
