"""Core ML from TensorFlow by coremltools' own front-end: one function without variables (runs in a worker)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import coremltools as ct

from deploykit.converters.coreml.vendor_route import write_package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.route import Handed


def write(handed: Handed) -> dict[str, Any]:
    """A `route.Writer`: the package of a ConcreteFunction whose inputs and outputs come in the order of the specs.

    Raises VendorError (DK556) with coremltools' reason, UsageError (DK527) for a bad option.
    """

    def front(inputs: list[Any], names: Mapping[str, str], common: dict[str, Any]) -> Any:
        function = handed.program
        # This front-end finds inputs by the graph's names: they are renamed once the package is made.
        for declared, tensor in zip(inputs, function.inputs, strict=True):
            declared.name = tensor.op.name
        package = ct.convert([function], source="tensorflow", inputs=inputs, **common)
        spec = package.get_spec()
        called = {tensor.op.name: names[spec.name] for tensor, spec in zip(function.inputs, handed.inputs, strict=True)}
        called |= dict(
            zip((item.name for item in spec.description.output), (names[s.name] for s in handed.outputs), strict=True)
        )
        for old, new in called.items():
            ct.utils.rename_feature(spec, old, new)
        return ct.models.MLModel(spec, weights_dir=package.weights_dir, skip_model_load=True)

    return write_package(handed, front)
