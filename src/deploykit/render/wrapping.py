"""Text broken into lines for a terminal: what hangs below a mark is indented, and a command is never broken."""

from __future__ import annotations

import re
import textwrap

# In the place of a space at which no line may end. Texts that are shown hold no control characters (`printable`).
_HELD = "\x00"
# A command, and a quoted name with the word before it: a name is often as long as a line.
_UNBROKEN = re.compile(r"`[^`\n]+`|\b(?:node|tensor) '[^']*'")
_LEAST = 24


def wrapped(text: str, width: int, *, first: str = "", rest: str = "") -> str:
    """The text in lines of at most `width` columns, where words allow it.

    first: before the first line. rest: before each further one. What stands in backquotes stays on one line however
    long it is, so that it works when it is copied: the terminal itself wraps it.
    """
    held = _UNBROKEN.sub(lambda found: found.group().replace(" ", _HELD), text)
    lines = textwrap.wrap(
        held,
        max(width, _LEAST),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_HELD, " ") if lines else first.rstrip()
