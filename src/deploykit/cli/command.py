"""What makes a function a command: the common options, and one way out for every outcome."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploykit.cli.options import complete_report
from deploykit.cli.ui import Ui

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploykit.report import Report

_COMMON: dict[str, Any] = {
    "json": Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no result, only errors.")],
    "verbose": Annotated[
        bool, typer.Option("--verbose", "-v", help="Fold nothing; also show vendor logs and tracebacks.")
    ],
    "force": Annotated[bool, typer.Option("--force", help="Allow replacing files that exist.")],
    "strict": Annotated[bool, typer.Option("--strict", help="Warnings fail.")],
    "report": Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Also write the report; the format is the suffix's (.json .html .md .xml .sarif).",
            autocompletion=complete_report,
        ),
    ],
}
# A script may give every command the same seed; where nothing is random it is taken and not listed.
_UNUSED_SEED = Annotated[int, typer.Option("--seed", hidden=True)]


def command(*, example: str) -> Callable[[Callable[..., Report]], Any]:
    """Turns `function(ui, **options) -> Report` into a command with the common options.

    example: shown at the end of its help, without "Example:".
    """

    def decorate(function: Callable[..., Report]) -> Any:
        name = function.__name__

        @functools.wraps(function)
        def call(**values: Any) -> int:
            common = {key: values.pop(key) for key in _COMMON}
            if not takes_seed:
                del values["seed"]
            ui = Ui(name, report_file=common.pop("report"), **common)
            return ui.run(functools.partial(function, ui, **values))

        own = [p for key, p in inspect.signature(function, eval_str=True).parameters.items() if key != "ui"]
        takes_seed = any(parameter.name == "seed" for parameter in own)
        common = [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=None if key == "report" else False, annotation=a
            )
            for key, a in _COMMON.items()
        ]
        if not takes_seed:
            common.append(inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=_UNUSED_SEED))
        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        call.__signature__ = inspect.Signature([*keyword, *common])  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in [*keyword, *common]}
        return _build(name, call, example)

    return decorate


def _build(name: str, call: Callable[..., int], example: str) -> Any:
    app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
    app.command(name, epilog=f"\b\nExample: {example}", context_settings=settings)(call)
    return typer.main.get_command(app)
