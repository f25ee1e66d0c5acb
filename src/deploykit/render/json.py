"""JSON: the document of the command-line contract, stable key order, no NaN."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploykit.report import Report


def render(report: Report) -> str:
    """One JSON document with a final newline; paths that are not valid UTF-8 keep their bytes as escapes."""
    text = json.dumps(report.as_dict(), indent=2, ensure_ascii=False, allow_nan=False, default=str)
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8") + "\n"
