"""What runs a bfloat16 ONNX model here: OpenVINO where the CPU computes in bfloat16, otherwise rounding in onnxruntime.

onnxruntime's CPU provider (1.32) has no bfloat16 kernel for MatMul, Conv, Add, Softmax and most others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from deploykit import graph, io, lazy
from deploykit.errors import DeploykitError
from deploykit.quantize.families import CONTROL_FLOW
from deploykit.quantize.half_formats import BFLOAT16, HalfFormat
from deploykit.quantize.prepare import names_in, unique_name
from deploykit.report import Finding, note, warning
from deploykit.runtime import Runtime, RuntimeOptions, open_runtime
from deploykit.target import get_target, resolve

if TYPE_CHECKING:
    from deploykit.artifact import TensorSpec
    from deploykit.runtime import Feeds, Kernel, Outputs

ENGINE = "openvino"
_CAPABILITY = "BF16"
_OUTLINE = 300


def open_bfloat16(path: Path) -> tuple[Runtime | None, list[Finding]]:
    """The model in an engine that computes in bfloat16, or in one that rounds to it after every operator.

    Returns the runtime (its `execution` says which it is; None when neither takes the model) and what is to be said.
    Call it in a worker.
    """
    why = _why_not_openvino()
    if why is None:
        try:
            runtime: Runtime = resolve(str(get_target(ENGINE).runtime))(path, RuntimeOptions())
        except (DeploykitError, RuntimeError) as problem:  # what OpenVINO raises for operators that it does not read
            why = f"OpenVINO does not take the model ({' '.join(str(problem).split())[:_OUTLINE]})"
        else:
            return runtime, []
    try:
        simulated = RoundingRuntime(path)
    except DeploykitError as problem:
        text = f"the bfloat16 model was not run: {why}, and onnxruntime does not simulate it ({problem})"
        return None, [warning("DK316", text, hint="deploykit validate, where an engine runs it")]
    text = f"bfloat16 was simulated: {why}; {simulated.engine} computed in float32 and rounded every result to bfloat16"
    hint = "" if lazy.installed("openvino") else f"{get_target(ENGINE).install} on a CPU with bfloat16 instructions"
    return simulated, [note("DK316", text, hint=hint)]


def _why_not_openvino() -> str | None:
    if not lazy.installed("openvino"):
        return "OpenVINO is not installed, and onnxruntime has few bfloat16 kernels for CPUs"
    import openvino as ov

    if _CAPABILITY not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return "this CPU has no bfloat16 instructions"
    return None


def about_kernels(runtime: Runtime, feeds: Feeds) -> list[Finding]:
    """In which precision the engine's kernels ran, by its own account."""
    kernels: list[Kernel] | None = runtime.kernels(feeds) if runtime.execution == "real" else None
    if not kernels:
        return []
    heavy = [kernel for kernel in kernels if kernel.macs] or kernels
    inside = sum(kernel.precision == "bf16" for kernel in heavy)
    text = f"{runtime.engine} ran {inside} of {len(heavy)} kernels that multiply in bfloat16"
    return [note("DK315", text)]


class RoundingRuntime(Runtime):
    """A half-precision model in onnxruntime: each operator computes in float32, and its result is rounded to half.

    Also for float16, where onnxruntime's own session removes casts between nodes and so never overflows between them.
    """

    execution = "simulated"

    def __init__(self, path: Path, form: HalfFormat = BFLOAT16) -> None:
        """Loads the model; raises what the runtime of onnxruntime does."""
        model = graph.load(path)
        graph.infer_shapes(model)
        compute_in_float(model, form)
        with io.scratch_folder() as folder:
            rounded = Path(folder) / path.name
            graph.save(model, rounded)
            # Optimising would remove pairs of casts, and with them the rounding.
            self._inner = open_runtime(rounded, RuntimeOptions(optimize=False))
        self.engine = f"{self._inner.engine}, rounding to {form.title}"
        self.inputs: tuple[TensorSpec, ...] = self._inner.inputs
        self.outputs: tuple[TensorSpec, ...] = self._inner.outputs

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, in the artifact's own dtypes; feeds by input name in the declared dtypes."""
        return self._inner.predict(feeds)

    def close(self) -> None:
        """Frees the session."""
        self._inner.close()


def compute_in_float(model: ir.Model, form: HalfFormat = BFLOAT16) -> None:
    """Rewrites a half-precision model in place: operators take and give float32, with Casts from and to half around."""
    taken = names_in(model)
    for scope in list(model.graphs()):
        casts: dict[ir.Value, ir.Value] = {}
        for node in list(scope):
            if node.op_type == "Cast" or (node.op_type in CONTROL_FLOW and not node.domain):
                continue
            for index, value in enumerate(list(node.inputs)):
                if value is not None and value.dtype == form.dtype:
                    if value not in casts:
                        cast = _cast(model, value, ir.DataType.FLOAT, taken)
                        scope.insert_before(node, [cast])
                        casts[value] = cast.outputs[0]
                    node.replace_input_with(index, casts[value])
            _float_attributes(node, form)
            for value in node.outputs:
                if value.dtype == form.dtype:
                    _round_output(model, node, value, taken, form)


def _float_attributes(node: ir.Node, form: HalfFormat) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == form.dtype:
            array = attribute.as_tensor().numpy().astype("float32")
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(array))


def _round_output(model: ir.Model, node: ir.Node, value: ir.Value, taken: set[str], form: HalfFormat) -> None:
    """The node gives float32 under a new name, and a Cast behind it gives the old one."""
    cast = _cast(model, value, form.dtype, taken)
    rounded = cast.outputs[0]
    value.replace_all_uses_with(rounded, replace_graph_outputs=True)
    cast.replace_input_with(0, value)
    value.name, rounded.name = rounded.name, value.name
    value.type = ir.TensorType(ir.DataType.FLOAT)
    assert node.graph is not None
    node.graph.insert_after(node, [cast])


def _cast(model: ir.Model, value: ir.Value, dtype: ir.DataType, taken: set[str]) -> ir.Node:
    name = unique_name(model.graph, f"{value.name}_rounded", taken)
    node = ir.node("Cast", [value], attributes={"to": int(dtype)}, num_outputs=1, name=f"{name}/Cast")
    node.outputs[0].name = name
    node.outputs[0].type = ir.TensorType(dtype)
    node.outputs[0].shape = value.shape
    return node
