"""Translates the parser's complaints into our errors: what is wrong, what is allowed, the nearest right name."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

# What the validator behind typer writes in front of every message.
_NOISE = "Value error, "
_REASONS = {
    "Input should be a valid integer": "is not a whole number",
    "Input should be a valid number": "is not a number",
    r"Input should be greater than or equal to (\S+)": "is too small: it should be {} or more",
    r"Input should be less than or equal to (\S+)": "is too large: it should be {} or less",
}


def usage_error(problem: Any, args: Sequence[str]) -> UsageError:
    """Our error for what typer's parser raised: DK806 option, DK807 value, DK808 missing, DK800 otherwise."""
    command = problem.ctx.command_path if getattr(problem, "ctx", None) is not None else "deploykit"
    option = getattr(problem, "option_name", None)
    help_line = f"{command} --help"
    if option is not None and type(problem).__name__ == "NoSuchOption":
        return _unknown_option(problem, str(option), command)
    param = getattr(problem, "param", None)
    if type(problem).__name__ == "MissingParameter" and param is not None:
        kind = "argument" if param.param_type_name == "argument" else "option"
        name = param.metavar or param.name.upper() if kind == "argument" else "/".join(param.opts)
        return UsageError(
            f"{command}: the {kind} {name} is missing", code="DK808", context=_usage(problem), hint=help_line
        )
    if param is not None:
        return _bad_value(problem, param, command, args)
    return UsageError(f"{command}: {_first_lower(problem.format_message())}", context=_usage(problem), hint=help_line)


def _unknown_option(problem: Any, option: str, command: str) -> UsageError:
    known = (
        [name for param in problem.ctx.command.get_params(problem.ctx) for name in param.opts] if problem.ctx else []
    )
    near = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
    return UsageError(
        f"{command} has no option {option!r}",
        code="DK806",
        context=_usage(problem),
        hint=f"did you mean {near[0]}?" if near else f"{command} --help",
    )


def _bad_value(problem: Any, param: Any, command: str, args: Sequence[str]) -> UsageError:
    is_option = param.param_type_name == "option"
    name = "/".join(param.opts) if is_option else param.metavar or param.name.upper()
    choices = [str(choice) for choice in getattr(getattr(param, "type_descriptor", None), "choices", None) or ()]
    message = problem.message.removeprefix(_NOISE).rstrip(".")
    typed = _typed(args, param.opts) if is_option else None
    value = typed or _quoted(message)
    near = difflib.get_close_matches(value, choices, n=1, cutoff=0.3) if value else []
    return UsageError(
        f"{command}: {name}: {_reason(message, typed)}",
        code="DK807",
        context=[f"values: {', '.join(choices)}"] if choices and "one of" not in message else [],
        hint=f"did you mean {near[0]!r}?" if near else f"{command} --help",
    )


def _typed(args: Sequence[str], names: Sequence[str]) -> str | None:
    """What was typed for an option, the last time it was given."""
    found = None
    for index, arg in enumerate(args):
        option, equals, value = arg.partition("=")
        if option in names:
            found = value if equals else args[index + 1] if index + 1 < len(args) else None
    return found


def _reason(message: str, typed: str | None) -> str:
    """The validator's sentence in ours, with the value that it leaves out."""
    if typed is None:
        return _first_lower(message)
    for theirs, ours in _REASONS.items():
        found = re.match(theirs, message)
        if found:
            return f"{typed!r} {ours.format(*found.groups())}"
    return _first_lower(message)


def _usage(problem: Any) -> list[str]:
    return problem.ctx.get_usage().strip().splitlines() if getattr(problem, "ctx", None) is not None else []


def _quoted(message: str) -> str:
    parts = message.split("'")
    return parts[1] if len(parts) > 2 else ""


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def nearest(value: str, names: list[str]) -> str:
    """A hint that names the nearest name, or all names when none is near."""
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.3)
    return f"did you mean {near[0]!r}?" if near else f"one of {', '.join(names)}"
