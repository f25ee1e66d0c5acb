"""`deploykit doctor`."""

from __future__ import annotations

import deploykit
from deploykit.cli.command import command
from deploykit.cli.ui import Ui
from deploykit.report import Report


@command(example="deploykit doctor")
def doctor(ui: Ui) -> Report:
    """Show versions, extras, CPU features and drivers, and the command that installs what is missing."""
    return deploykit.doctor()


COMMAND = doctor
