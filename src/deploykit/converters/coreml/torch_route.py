"""Core ML from PyTorch by coremltools' own front-end, of an exported program or a TorchScript module (in a worker)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import coremltools as ct

from deploykit.converters.coreml.vendor_route import write_package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.route import Handed


def write(handed: Handed) -> dict[str, Any]:
    """A `route.Writer`: the package of an ExportedProgram in core operators, or of a ScriptModule.

    Raises VendorError (DK556) with coremltools' reason, UsageError (DK527) for a bad option.
    """

    def front(inputs: list[Any], names: Mapping[str, str], common: dict[str, Any]) -> Any:
        outputs = [ct.TensorType(name=names[spec.name]) for spec in handed.outputs]
        return ct.convert(handed.program, source="pytorch", inputs=inputs, outputs=outputs, **common)

    return write_package(handed, front)
