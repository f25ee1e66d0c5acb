"""Numbers for people: as many digits as mean something, and a dash for what was not measured."""

from __future__ import annotations

import math
from typing import Any

NONE = "-"


def number(value: Any, digits: int = 3) -> str:
    """Three significant digits (`0.0123`, `1.2e-07`, `45.6`), whole numbers unrounded, text unchanged, - for None."""
    if value is None:
        return NONE
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 10**digits:
        return f"{value:,.0f}"
    if size and size < 1e-3:
        return f"{value:.1e}"
    return f"{value:.{digits}g}"


def fixed(value: Any, decimals: int) -> str:
    """A number with so many decimals, - for None."""
    return NONE if value is None else f"{value:,.{decimals}f}"


def percent(share: Any) -> str:
    """A share from 0 to 1 in percent, - for None."""
    return NONE if share is None else f"{100 * share:.1f} %"


def megabytes(size: int | None) -> str:
    """Bytes in MB (10^6), two decimals below 10."""
    if size is None:
        return NONE
    value = size / 1e6
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:,.1f}"


def or_none(value: Any) -> str:
    """The value as text, - for None and an empty one."""
    return NONE if value in (None, "") else str(value)
