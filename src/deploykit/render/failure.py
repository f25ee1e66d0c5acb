"""An error for a person: code, sentence, place, facts, hint, and where to read more."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TextIO

from deploykit.errors import VendorError

if TYPE_CHECKING:
    from deploykit.errors import DeploykitError

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STYLES = {"error": "1;31", "place": "36", "hint": "32", "dim": "2"}


def has_colour(stream: TextIO) -> bool:
    """Whether colour codes belong on the stream: a terminal, and neither NO_COLOR nor TERM=dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """The text with control characters escaped: names out of a model file must not drive the terminal."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape", "surrogatepass").decode(), text)


def render_error(error: DeploykitError, *, colour: bool = False) -> str:
    """The error as lines of text, each ending in a newline.

    A vendor's failure also shows its last log lines and the command that runs the same call again.
    """

    def paint(style: str, text: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if colour else text

    first, *more = printable(error.message).splitlines() or [""]
    lines = [f"{paint('error', f'error[{error.code}]')}: {first}", *(f"  {line}" for line in more)]
    place = _place(error)
    if place:
        lines.append(f"  {paint('place', '-->')} {printable(place)}")
    lines += [f"  {line}" for text in error.context for line in printable(text).splitlines()]
    if isinstance(error, VendorError):
        if error.log:
            lines += ["  last lines of its log:", *(f"  {paint('dim', '|')} {printable(line)}" for line in error.log)]
        if error.reproduce:
            lines.append(f"  reproduce: {error.reproduce}")
    if error.hint:
        first, *more = printable(error.hint).splitlines()
        lines += [f"  {paint('hint', 'hint:')} {first}", *(f"        {line}" for line in more)]
    lines.append(f"  {paint('dim', f'see: deploykit explain {error.code}')}")
    return "\n".join(lines) + "\n"


def _place(error: DeploykitError) -> str:
    parts = [error.file or ""]
    if error.node is not None:
        parts.append(f"node {error.node!r}" + (f" ({error.op})" if error.op else ""))
    elif error.op:
        parts.append(f"op {error.op}")
    if error.tensor is not None:
        parts.append(f"tensor {error.tensor!r}")
    if error.target is not None:
        parts.append(f"target {error.target}")
    return ", ".join(part for part in parts if part)
