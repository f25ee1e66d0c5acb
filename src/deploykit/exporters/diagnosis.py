"""Where in the user's own code something failed: the innermost frame that is not the framework's."""

from __future__ import annotations

import dataclasses
import linecache
import re
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OURS = Path(__file__).resolve().parent.parent
_LIBRARIES = tuple(
    {str(Path(sysconfig.get_paths()[name]).resolve()) for name in ("stdlib", "purelib", "platlib")} | {str(_OURS)}
)
# What frameworks wrap around the reason.
_NOISE = ("Failed to export the model", "- Modify the model", "- Debug `", "- Create an issue", "## Exception summary")


@dataclasses.dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the user's source."""

    file: str
    line: int
    function: str

    def describe(self) -> str:
        """`model.py:9 in forward: return self.head(x)`, one line."""
        code = linecache.getline(self.file, self.line).strip()
        return f"{Path(self.file).name}:{self.line} in {self.function}" + (f": {code}" if code else "")


def is_users(file: str) -> bool:
    """Whether a frame's file is neither the standard library's, nor an installed package's, nor ours."""
    if file.startswith("<"):
        return False
    return not str(Path(file).resolve()).startswith(_LIBRARIES)


def user_line(problem: BaseException) -> CodeLine | None:
    """The innermost line of the user's code that the error, its causes or its text names."""
    chain = list(_chain(problem))
    for error in reversed(chain):
        named = [
            CodeLine(match["file"], int(match["line"]), match["function"])
            for match in _FRAME.finditer(str(error))
            if is_users(match["file"])
        ]
        if named:
            return named[-1]
    for error in reversed(chain):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
        if frames:
            return CodeLine(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name)
    return None


def reason(problem: BaseException) -> str:
    """The error in one line: the innermost cause's type and first telling line, without colours and advice."""
    root = list(_chain(problem))[-1]
    lines = [line.strip() for line in _COLOUR.sub("", str(root)).splitlines()]
    telling = [line for line in lines if line and not line.startswith(_NOISE)]
    # A heading says nothing by itself.
    text = " ".join(telling[:2] if telling and telling[0].endswith(":") else telling[:1])
    return f"{type(root).__name__}: {text[:400]}" if text else type(root).__name__


def in_two_lines(problem: BaseException) -> str:
    """The reason, and below it the user's own line where there is one."""
    where = user_line(problem)
    return reason(problem) + (f"\n{where.describe()}" if where else "")


def _chain(problem: BaseException) -> Iterator[BaseException]:
    """The error and its causes, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = problem
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
