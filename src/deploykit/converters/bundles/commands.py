"""The command lines of a toolchain for one model, filled in from its description."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.toolchain import Description


def chosen(found: Description, options: Mapping[str, Any]) -> dict[str, str]:
    """Every option with a value, given or by default. Raises UsageError (DK527) for a missing or a wrong one."""
    values: dict[str, str] = {}
    for name, option in found.options.items():
        value = options.get(name, option.default)
        if value is None:
            if option.required:
                raise UsageError(
                    f"option {name!r} has to be given: {option.help}",
                    code="DK527",
                    target=found.name,
                    hint=f"--option {name}=...",
                )
            continue
        text = str(value)
        known = {choice.casefold(): choice for choice in option.choices}
        if known and text.casefold() not in known:
            raise UsageError(
                f"option {name!r} is one of {', '.join(option.choices)}, not {text!r}",
                code="DK527",
                target=found.name,
                hint=f"--option {name}={option.choices[0]}",
            )
        values[name] = known.get(text.casefold(), text)
    return values


def commands(found: Description, inputs: Sequence[TensorSpec], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The steps as {"about", "run"}. names: values of placeholders, options among them."""
    joined = {
        name: join["with"].join(_of_input(join["each"], spec, join["dims_with"]) for spec in inputs)
        for name, join in found.joins.items()
    }
    values = {**names, **joined}
    return [
        {"about": step.about, "run": [text for argument in step.run for text in _filled(argument, inputs, values)]}
        for step in found.steps
        if not step.when or step.when in values
    ]


def _filled(argument: Any, inputs: Sequence[TensorSpec], values: Mapping[str, str]) -> list[str]:
    if isinstance(argument, str):
        return [argument.format_map(values)]
    if "each" in argument:
        return [_of_input(text, spec, argument["dims_with"]) for spec in inputs for text in argument["each"]]
    if argument["when"] not in values:
        return []
    return [text.format_map(values) for text in argument["args"]]


def _of_input(text: str, spec: TensorSpec, between: str) -> str:
    return text.format(name=spec.name, dims=between.join(str(size) for size in spec.shape or ()))


def script(steps: Sequence[Mapping[str, Any]], title: str) -> str:
    """The steps as a shell script that ends with the first failure and runs in its own folder."""
    lines = ["#!/bin/sh", f"# {title}: written by deploykit, see README.md", "set -eu", 'cd "$(dirname "$0")"']
    for step in steps:
        lines += [f"# {step['about']}" if step["about"] else "#", shlex.join(step["run"])]
    return "\n".join(lines) + "\n"
