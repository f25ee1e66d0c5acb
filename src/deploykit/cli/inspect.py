"""`deploykit inspect`."""

from __future__ import annotations

import deploykit
from deploykit import io
from deploykit.cli.command import command
from deploykit.cli.options import FileArg
from deploykit.cli.ui import Ui
from deploykit.report import Report
from deploykit.target import format_of


@command(example="deploykit inspect model.onnx")
def inspect(ui: Ui, file: FileArg) -> Report:
    """Show inputs, outputs, opset, op histogram, parameters, MACs, size, dynamic dimensions, quantized or not."""
    if not (
        file.is_dir() and (file.suffix or format_of(file) is not None)
    ):  # a package folder; which kinds there are, the targets know
        io.existing_file(file)
    return deploykit.inspect(file)


COMMAND = inspect
