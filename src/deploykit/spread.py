"""How far a model lies from itself when its values move by roundings: what no engine's comparison can fall short of."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.comparison import carry_of, compare, runtime_options, shared_samples
from deploykit.parity import TOLERANCES
from deploykit.progress import OnProgress, silent
from deploykit.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

# Four units in the last place of a float32: two orders of summation differ by as much.
NUDGE = 2.0**-21
_DRAWS = 4


def spread_job(
    model: str,
    data: dict[str, Any],
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """SQNR in dB of each output between an ONNX model and itself with values a rounding apart, in a worker.

    data: a `DataRequest`. options: as for `comparison.compare_job`. Each QuantizeLinear's scale is moved by `NUDGE`, up
    or down as `seed` draws it: a value on the border between two levels takes the other one, as it does in an engine
    that sums in another order. Both run in onnxruntime with graph optimisation off. Outputs that do not move, and those
    that are no floats, are left out.
    """
    from deploykit.data import open_request

    wanted = dataclasses.replace(runtime_options(options), optimize=False)
    with tempfile.TemporaryDirectory(prefix="deploykit-spread-") as folder:
        moved = Path(folder) / "moved.onnx"
        loaded = graph.load(Path(model))
        nudge(loaded, seed)
        graph.save(loaded, moved)
        first, second = open_runtime(Path(model), wanted), open_runtime(moved, wanted)
        try:
            samples = open_request(data, first.inputs, model=Path(model))  # type: ignore[arg-type]
            found = compare(
                first,
                second,
                samples,
                tolerance=TOLERANCES["int8-parent"],
                carry=carry_of(data),
                on_progress=on_progress,
            )
        finally:
            first.close()
            second.close()
    return {row["name"]: row["sqnr_db"] for row in found["outputs"] if row["sqnr_db"] is not None}


def movement_job(
    reference: str,
    candidate: str,
    data: dict[str, Any],
    options: Mapping[str, Any] | None = None,
    every_size: bool = False,
    on_progress: OnProgress = silent,
) -> dict[str, float]:
    """How far the outputs of an fp32 ONNX model move, beyond rtol, when its weights move by `NUDGE`, in a worker.

    candidate: the artifact beside it, whose sizes the samples keep to. data, options, every_size: as for
    `comparison.compare_job`. Each element of each weight is moved up or down, as drawn; the largest "excess"
    (`parity.OutputComparison.result`) of four draws by output name, both sides in onnxruntime with graph optimisation
    off. An engine is right when its result is that of a model whose values are a few roundings apart (backward
    stability: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 1.5).
    """
    paths, wanted = (Path(reference), Path(candidate)), runtime_options(options)
    exact = dataclasses.replace(wanted, optimize=False)
    first, other = open_runtime(paths[0], exact), open_runtime(paths[1], wanted)
    found: dict[str, float] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="deploykit-movement-") as folder:
            moved = Path(folder) / "moved.onnx"
            for seed in range(_DRAWS):
                loaded = graph.load(paths[0])
                if not nudge_weights(loaded, seed):
                    break
                graph.save(loaded, moved)
                second = open_runtime(moved, exact)
                try:
                    result = compare(
                        first,
                        second,
                        shared_samples(data, first, other, paths, every_size=every_size),
                        tolerance=TOLERANCES["fp32"],
                        carry=carry_of(data),
                        on_progress=on_progress,
                    )
                finally:
                    second.close()
                for row in result["outputs"]:
                    found[row["name"]] = max(found.get(row["name"], 0.0), row.get("excess", 0.0))
    finally:
        first.close()
        other.close()
    return found


def nudge_weights(model: ir.Model, seed: int = 0) -> int:
    """Moves each element of each float32 constant of rank 2 and more by `NUDGE`, up or down as drawn.

    What has one axis may be sizes or scales of a Resize. Returns how many tensors were moved.
    """
    import onnx_ir as ir

    rng, count = np.random.default_rng(seed), 0

    def moved(tensor: ir.TensorProtocol | None) -> ir.TensorProtocol | None:
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 2:
            return None
        values = tensor.numpy()
        signs = rng.integers(0, 2, values.shape, dtype=np.int8) * np.float32(2) - np.float32(1)
        return ir.tensor(values * (np.float32(1) + signs * np.float32(NUDGE)), name=tensor.name)

    for value in model.graph.initializers.values():
        if (tensor := moved(value.const_value)) is not None:
            value.const_value = tensor
            count += 1
    for node in model.graph.all_nodes():
        attribute = node.attributes.get("value") if node.op_type == "Constant" and not node.domain else None
        if attribute is not None and (tensor := moved(attribute.as_tensor())) is not None:
            node.attributes["value"] = ir.AttrTensor("value", tensor)
            count += 1
    return count


def nudge(model: ir.Model, seed: int = 0) -> int:
    """Moves the constant scale of every QuantizeLinear of the main graph by `NUDGE`, and that of no DequantizeLinear.

    Up and down as drawn. Returns how many were moved.
    """
    import onnx_ir as ir

    rng, count = np.random.default_rng(seed), 0
    for node in [node for node in model.graph if node.op_type == "QuantizeLinear"]:
        scale = node.inputs[1].const_value if node.inputs[1] is not None else None
        if scale is None or node.domain:
            continue
        values = scale.numpy()
        factor = 1.0 + math.copysign(NUDGE, rng.random() - 0.5)
        name = f"{node.name or node.outputs[0].name}_nudged_{count}"
        tensor = ir.tensor((values * factor).astype(values.dtype), name=name)
        value = ir.Value(name=name, shape=ir.Shape(values.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        model.graph.register_initializer(value)
        node.replace_input_with(1, value)
        count += 1
    return count
