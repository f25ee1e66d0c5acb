"""Ui: how one command shows progress, results and failures, and which exit code it gives."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import traceback
from typing import TYPE_CHECKING, ClassVar

from deploykit import io
from deploykit.errors import DeploykitError, ExitCode, OutputError, UsageError
from deploykit.progress import silent
from deploykit.report import Report, merge_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploykit.progress import OnProgress


class BugError(DeploykitError):
    """deploykit itself failed; only made here, for the report."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG
    default_code: ClassVar[str] = "DK890"


class InterruptedRunError(DeploykitError):
    """Ctrl-C or SIGTERM; only made here, for the report."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERRUPTED
    default_code: ClassVar[str] = "DK891"


@dataclasses.dataclass
class Ui:
    """The common options of one call, and what follows from them."""

    command: str
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    force: bool = False
    strict: bool = False
    report_file: Path | None = None
    format: str = "table"
    result_shown: bool = False  # the command wrote to stdout itself
    answered: ClassVar[bool] = False  # this call has said how it ended, which is said once

    def run(self, work: Callable[[], Report]) -> int:
        """Does the work and shows how it ended; every outcome is one report and one exit code."""
        try:
            self._check_report_file()
            with self._vendor_logs():
                report = work()
        except DeploykitError as problem:
            report = Report(self.command, error=problem)
            if self.verbose:
                traceback.print_exc()
        except KeyboardInterrupt:
            report = Report(self.command, error=interrupted())
        except OSError as problem:
            report = Report(self.command, error=_no_room(problem) or self._traced(problem))
        except Exception as problem:  # a bug: always with its traceback, and still one JSON document
            report = Report(self.command, error=self._traced(problem))
        return self.finish(report)

    def _traced(self, problem: Exception) -> BugError:
        traceback.print_exc()
        return _bug(problem)

    def _vendor_logs(self) -> contextlib.AbstractContextManager[None]:
        if not self.verbose:
            return contextlib.nullcontext()
        from deploykit.isolation import vendor_logs
        from deploykit.render.failure import printable

        def show(worker: str, lines: list[str]) -> None:
            sys.stderr.writelines(f"{worker} | {printable(line)}\n" for line in lines)

        return vendor_logs(show)

    @contextlib.contextmanager
    def progress(self) -> Iterator[OnProgress]:
        """A listener that draws on stderr: a bar where the total is known, otherwise the item and the time so far."""
        if self.quiet or self.json:
            yield silent
            return
        from deploykit.cli.drawing import draw

        with draw() as listener:
            yield listener

    def finish(self, report: Report) -> int:
        """Shows and writes the report; returns the exit code."""
        if self.strict:
            _tighten(report)
        try:
            self._write(report)
        except DeploykitError as problem:
            report.error = report.error or problem
        try:
            self._show(report)
            sys.stdout.flush()
        except BrokenPipeError:
            hush_broken_pipe()
        except OSError as problem:  # a full disk behind `> file`
            hush_broken_pipe()
            return _unshown(problem)
        except KeyboardInterrupt:  # while the answer was being prepared, or after it
            if Ui.answered:
                raise
            report = Report(self.command, error=interrupted())
            self._show(report)
        return int(report.exit_code)

    def _show(self, report: Report) -> None:
        from deploykit import render

        if self.json or (self.format == "json" and not self.quiet):
            text = "" if self.result_shown else render.render(report, "json")
            Ui.answered = True
            sys.stdout.write(text)
            return
        from deploykit.render.failure import has_colour, printable, render_error

        Ui.answered = True
        if report.error is not None:
            sys.stderr.write(render_error(report.error, colour=has_colour(sys.stderr)))
        if report.error is not None and not report.findings and not report.metrics:
            return
        if self.quiet:
            from deploykit.render.grouping import grouped

            for group in grouped(finding for finding in report.findings if finding.severity == "error"):
                alike = f" ({len(group.findings)} times)" if len(group.findings) > 1 else ""
                sys.stderr.write(f"error[{group.findings[0].code}]: {printable(group.message)}{alike}\n")
        elif self.format != "table":
            sys.stdout.write(render.render(report, self.format))
        elif not self.result_shown:
            from deploykit.render import terminal

            # A run has notes from every step and every target; its report files hold them.
            brief = self.command == "run" and not self.verbose
            terminal.show(report, sys.stdout, brief=brief, verbose=self.verbose)

    def _check_report_file(self) -> None:
        if self.report_file is None:
            return
        from deploykit import render

        if self.report_file.suffix not in render.SUFFIXES:
            raise UsageError(
                f"--report {self.report_file.name!r}: no report format has the suffix {self.report_file.suffix!r}",
                code="DK809",
                hint=f"use one of {' '.join(render.SUFFIXES)}",
            )
        io.check_output(self.report_file, force=self.force)

    def _write(self, report: Report) -> None:
        unwritable = isinstance(report.error, OutputError) and report.error.file == str(self.report_file)
        if self.report_file is None or (report.error is not None and (unwritable or report.error.code == "DK809")):
            return
        from deploykit import render

        text = render.render(report, render.SUFFIXES[self.report_file.suffix])
        io.write_text(self.report_file, text, force=self.force)


def interrupted() -> InterruptedRunError:
    """What is reported after Ctrl-C."""
    return InterruptedRunError("interrupted: nothing half-written is left")


def _tighten(report: Report) -> None:
    warned = any(finding.severity == "warning" for finding in report.findings)
    report.tighten()
    if warned and report.forced_exit is not None:
        report.forced_exit = merge_exit([report.forced_exit, ExitCode.GATE_FAILED])


def _bug(problem: Exception) -> BugError:
    return BugError(
        f"deploykit failed: {type(problem).__name__}: {problem}",
        context=["this is a bug in deploykit, not in your model or your call"],
        hint="please report it with the traceback above, the command, and the output of: deploykit doctor --json",
    )


def _no_room(problem: OSError) -> OutputError | None:
    """The error for a disk without room for temporary files; None for anything else, which is a bug."""
    # tempfile tries to write in each folder that it knows, and gives its own error without a file.
    nowhere = isinstance(problem, FileNotFoundError) and problem.filename is None
    if not nowhere and not io.is_no_space(problem):
        return None
    return OutputError(
        f"there is no room for temporary files: {problem.strerror}",
        code="DK125",
        hint="free some space (df -h), raise the file size limit (ulimit -f), or name another folder: TMPDIR=FOLDER",
    )


def _unshown(problem: OSError) -> int:
    """Says on stderr that stdout does not take the result."""
    from deploykit.render.failure import has_colour, render_error

    error = OutputError(f"the result cannot be written to stdout: {problem.strerror}", code="DK125")
    with contextlib.suppress(OSError):
        sys.stderr.write(render_error(error, colour=has_colour(sys.stderr)))
    return error.exit_code


def hush_broken_pipe() -> int:
    """The reader of our output went away (`| head`): no message, and the interpreter must not complain at exit."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    return ExitCode.OK
