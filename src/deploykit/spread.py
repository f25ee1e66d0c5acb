"""How far a quantized model lies from itself: what no engine's comparison with it can fall short of."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import graph
from deploykit.comparison import carry_of, compare, runtime_options
from deploykit.parity import TOLERANCES
from deploykit.progress import OnProgress, silent
from deploykit.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

# Four units in the last place of a float32: two orders of summation differ by as much.
NUDGE = 2.0**-21


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
