"""OpenVINO from PyTorch by its own front-end, of an exported program or a TorchScript module (in a worker)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openvino as ov

from deploykit.converters.openvino.direct import write_program

if TYPE_CHECKING:
    from deploykit.route import Handed


def write(handed: Handed) -> dict[str, Any]:
    """A `route.Writer`: the IR of an ExportedProgram in core operators, or of a ScriptModule.

    Raises VendorError (DK556) with OpenVINO's reason, UsageError (DK527) for a bad option.
    """
    return write_program(handed, lambda: ov.convert_model(handed.program))
