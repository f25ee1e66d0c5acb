"""Taps: a session that gives inner tensors of the float model, fast enough that looking costs little more than running.

Three things keep it near the speed of the plain session (measured with `benchmarks/calibration.py`): graph optimisation
stays on, since what is an output is computed as asked whatever is fused around it; tensors that hold the same values as
another one (a Reshape, a Transpose) are not tapped; outputs are looked at where onnxruntime wrote them, without a copy.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from deploykit import graph, io
from deploykit.errors import DataError, GateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx_ir as ir

Array = np.ndarray[Any, Any]
SAMPLE_REFUSED = "DK378"
# Their output has exactly the values of their first input, in another order or shape.
SAME_VALUES = frozenset(
    {
        "DepthToSpace",
        "Dropout",
        "Flatten",
        "Identity",
        "Reshape",
        "SpaceToDepth",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


def run_tapped(
    session: ort.InferenceSession, feeds: Mapping[str, Array], wanted: Sequence[str], sample: str
) -> dict[str, Array]:
    """The wanted outputs of one run, in onnxruntime's own memory, which lives as long as they do.

    sample: what the error names. Raises DataError (DK378) when the model refuses the feeds.
    """
    try:
        if not wanted:  # an empty list would mean all
            session.run(None, dict(feeds))
            found = []
        elif all(array.dtype.kind in "fiub" for array in feeds.values()):
            # Not ascontiguousarray, which gives a scalar a dimension.
            given = {name: ort.OrtValue.ortvalue_from_numpy(np.asarray(a, order="C")) for name, a in feeds.items()}
            found = [value.numpy() for value in session.run_with_ort_values(wanted, given)]
        else:  # text has no memory that could be shared
            found = session.run(wanted, dict(feeds))
    except Exception as problem:
        if not is_onnxruntime(problem):
            raise
        shapes = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in feeds.items())
        raise DataError(
            f"the model does not run on {sample} of the calibration data: {_reason(problem)}",
            code=SAMPLE_REFUSED,
            context=[f"it was given {shapes}"],
            hint="--calib DATA with samples that the model takes; --dim NAME=MIN..MAX bounds random sizes",
        ) from problem
    return dict(zip(wanted, found, strict=True))


def sources_of(model: ir.Model, names: Sequence[str]) -> dict[str, str]:
    """For each tensor, the one that its values come from unchanged; itself where something computes it."""
    values = {value.name: value for node in model.graph for value in node.outputs}
    found: dict[str, str] = {}
    for name in names:
        value = values.get(name)
        while value is not None:
            producer = value.producer()
            if producer is None or producer.domain or producer.op_type not in SAME_VALUES or not producer.inputs:
                break
            before = producer.inputs[0]
            if before is None or before.is_initializer() or before.dtype != value.dtype:
                break
            value = before
        found[name] = name if value is None or value.name is None else value.name
    return found


@contextlib.contextmanager
def tapped_session(model: ir.Model, names: Sequence[str]) -> Iterator[ort.InferenceSession]:
    """A session of the model with the named tensors as further outputs; the model itself is as before afterwards.

    Raises GateError (DK201) when onnxruntime does not take the model.
    """
    outputs = model.graph.outputs
    known = {value.name for value in (*outputs, *model.graph.inputs)}
    values = {value.name: value for node in model.graph for value in node.outputs}
    extra = [values[name] for name in dict.fromkeys(names) if name not in known]
    with io.scratch_folder() as folder:
        path = Path(folder) / "tapped.onnx"
        before = len(outputs)
        outputs.extend(extra)
        try:
            graph.save(model, path)
        finally:
            while len(outputs) > before:
                outputs.pop()
        yield _open(path)


def _open(path: Path) -> ort.InferenceSession:
    try:
        return ort.InferenceSession(str(path), _options(), providers=["CPUExecutionProvider"])
    except Exception as problem:
        if not is_onnxruntime(problem):
            raise
        told = _reason(problem).rpartition(f"{path} failed:")[2]
        raise GateError(
            f"ONNX Runtime {ort.__version__} does not load the model, so it cannot be calibrated: {told}",
            code="DK201",
            target="onnxruntime",
            hint="deploykit check MODEL --target onnxruntime names every node that it refuses",
        ) from problem


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    # The arena and the memory pattern keep the largest sample's buffers for ever, and lengths differ.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    # Threads that spin between operators, and between two runs, take the processor from looking at the tensors.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def is_onnxruntime(problem: Exception) -> bool:
    """Whether onnxruntime raised it."""
    return type(problem).__module__.startswith("onnxruntime")


def _reason(problem: Exception) -> str:
    text = " ".join(str(problem).split())
    return text.rpartition("Status Message: ")[2][:500]
