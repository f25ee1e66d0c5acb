"""OpenVINO from TensorFlow by its own front-end: one function without variables (runs in a worker)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openvino as ov

from deploykit.converters.openvino.direct import write_program

if TYPE_CHECKING:
    from deploykit.route import Handed


def write(handed: Handed) -> dict[str, Any]:
    """A `route.Writer`: the IR of a ConcreteFunction whose inputs and outputs come in the order of the specs.

    Raises VendorError (DK556) with OpenVINO's reason, UsageError (DK527) for a bad option.
    """

    def front() -> ov.Model:
        function = handed.program
        ends = ([tensor.op.name for tensor in tensors] for tensors in (function.inputs, function.outputs))
        # Of a function it asks for a signature, which a pruned one does not have.
        return _ordered(ov.convert_model(function.graph), *ends)

    return write_program(handed, front)


def _ordered(model: ov.Model, inputs: list[str], outputs: list[str]) -> ov.Model:
    """The model with the function's inputs and outputs, in its order: the front-end takes every end of the graph."""

    def place(names: set[str], order: list[str]) -> int:
        return next(
            (at for at, name in enumerate(order) if any(n.partition(":")[0] == name for n in names)), len(order)
        )

    parameters = sorted(model.get_parameters(), key=lambda node: place(node.output(0).get_names(), inputs))
    results = sorted(model.get_results(), key=lambda node: place(node.input_value(0).get_names(), outputs))
    kept = [node for node in results if place(node.input_value(0).get_names(), outputs) < len(outputs)]
    return ov.Model(kept, parameters, model.get_friendly_name())
