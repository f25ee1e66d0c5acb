"""The entry: a literal table of commands, each imported when it is used, and every way a call can end."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import importlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from deploykit.cli.ui import Ui, hush_broken_pipe, interrupted
from deploykit.errors import DeploykitError, ExitCode, UsageError
from deploykit.report import Report
from deploykit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

# Name -> (module, help). Literal, so that `deploykit --help` imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "export": ("deploykit.cli.export", "Export a model source to ONNX and prove that it computes the same."),
    "simplify": ("deploykit.cli.simplify", "Simplify an ONNX model; outputs stay equal."),
    "check": ("deploykit.cli.check", "List every problem a model has with each target, before converting."),
    "quantize": ("deploykit.cli.quantize", "Write a quantized or half-precision ONNX model for a target."),
    "convert": ("deploykit.cli.convert", "Convert to a target's own format and compare with the source."),
    "validate": ("deploykit.cli.validate", "Compare two artifacts on the same inputs."),
    "bench": ("deploykit.cli.bench", "Measure latency, throughput, memory and size of artifacts."),
    "serve": ("deploykit.cli.serve", "Serve an artifact over HTTP and gRPC (KServe v2)."),
    "package": ("deploykit.cli.package", "Lay an artifact out as a server loads it."),
    "run": ("deploykit.cli.run", "Run the whole chain, cached and resumable, into one report."),
    "inspect": ("deploykit.cli.inspect", "Show what is in a model file."),
    "doctor": ("deploykit.cli.doctor", "Show what is installed, what is missing, and how to get it."),
    "targets": ("deploykit.cli.targets", "Show what each target can do on this machine."),
    "explain": ("deploykit.cli.explain", "Explain an error code."),
    "init": ("deploykit.cli.init", "Write a starter deploykit.yaml for a model."),
}

# The parser's base class of "the user typed something wrong"; typer makes only this subclass of it public.
_ParserError: Any = typer.BadParameter.__mro__[2]


# Seconds in which one interrupt ends everything; a worker that does not end is killed after five.
_TIME_TO_END = 10.0
# Set by the shell's completion script, which calls the program without arguments.
_COMPLETION = "_DEPLOYKIT_COMPLETE"


class LazyGroup(TyperGroup):
    """The group of all commands, which imports a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Every command, in the order of a model's way."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, imported now; None for an unknown one."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(COMMANDS[cmd_name][0]).COMMAND

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in the base class, with our own error for an unknown command."""
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.5)
            raise UsageError(
                f"there is no command {args[0]!r}",
                code="DK805",
                context=[f"commands: {', '.join(COMMANDS)}"],
                hint=f"deploykit {near[0]}" if near else "deploykit --help",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands with their lines from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"deploykit {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,  # plain help: rich's Markdown and Traceback would double the time to show it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="\b\nExample: deploykit run model.onnx --to openvino,coreml --precision fp16\n"
    "Each command: deploykit COMMAND --help. An error code: deploykit explain DK312.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """A trained model goes in, verified deployable artifacts come out, and every step leaves evidence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code (see `deploykit.errors.ExitCode`)."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
    _end_on_signals()
    Ui.answered = False
    group = typer.main.get_command(app)
    try:
        if not args and _COMPLETION not in os.environ:
            typer.echo(_help_of(group), err=True)
            return ExitCode.INVALID_INPUT
        result = group.main(args, prog_name="deploykit", standalone_mode=False)
        if result == ExitCode.INTERRUPTED and not Ui.answered:  # the parser turns Ctrl-C into its exit code
            return _refuse(args, interrupted())
        sys.stdout.flush()
        return int(result or 0)
    except BrokenPipeError:
        return hush_broken_pipe()
    except KeyboardInterrupt:  # before the command itself, which reports its own, or after its answer
        return ExitCode.INTERRUPTED if Ui.answered else _refuse(args, interrupted())
    except UsageError as problem:
        return _refuse(args, problem)
    except _ParserError as problem:
        from deploykit.cli.usage import usage_error

        return _refuse(args, usage_error(problem, args))


def _open_streams() -> None:
    """A caller may have closed stdout or stderr (`>&-`): what would be written there is wanted by nobody."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - lives on


def _help_of(group: Any) -> str:
    text: str = group.get_help(group.make_context("deploykit", [], resilient_parsing=True))
    return text


def _refuse(args: list[str], problem: DeploykitError) -> int:
    """Shows a usage error; in JSON when that was asked for, though no option was parsed."""
    given = args[: args.index("--")] if "--" in args else args
    name = next((arg for arg in given if arg in COMMANDS), "deploykit")
    ui = Ui(name, json="--json" in given, quiet="--quiet" in given)
    return ui.finish(Report(name, error=problem))


def _endings() -> list[int]:
    # Windows has no SIGHUP.
    return [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _hear_no_more() -> None:
    """The interpreter gives signals their defaults back while it ends, and a late one would take our exit code away."""
    with contextlib.suppress(ValueError):
        for number in _endings():
            signal.signal(number, signal.SIG_IGN)


def _end_on_signals() -> None:
    """SIGTERM and a closed terminal end us as Ctrl-C does: staged outputs are removed, workers are ended.

    A second signal within the time that this takes is not heard, for it would leave behind what the first removes.
    """
    ending: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not ending or now - ending[0] > _TIME_TO_END:
            ending[:] = [now]
            raise KeyboardInterrupt

    atexit.unregister(_hear_no_more)
    atexit.register(_hear_no_more)
    for number in _endings():
        # Ignored from the start means that the caller wants it so: nohup, a job in the background of a script.
        if signal.getsignal(number) == signal.SIG_IGN:
            continue
        try:
            signal.signal(number, interrupt)
        except ValueError:  # not in the main thread: whoever embeds us decides
            return


if __name__ == "__main__":
    sys.exit(main())
