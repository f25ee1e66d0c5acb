"""`deploykit targets`."""

from __future__ import annotations

import deploykit
from deploykit.cli.command import command
from deploykit.cli.ui import Ui
from deploykit.report import Report


@command(example="deploykit targets")
def targets(ui: Ui) -> Report:
    """Show for each target whether this machine can check, convert and run, and what is missing."""
    return deploykit.targets()


COMMAND = targets
