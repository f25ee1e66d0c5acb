from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from deploykit.cli.ui import Ui
from deploykit.errors import ExitCode, GateError, MissingDependencyError, VendorError
from deploykit.progress import Progress
from deploykit.report import Report, failure, note, warning

if TYPE_CHECKING:
    from pathlib import Path


def report(**facts) -> Report:
    return Report("check", **facts)


def test_a_passed_report_is_shown_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert Ui("check").finish(report(metrics={"nodes": 3})) == 0
    out, err = capsys.readouterr()
    assert "check: passed" in out
    assert err == ""


def test_strict_makes_a_warning_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert Ui("check").finish(report(findings=[warning("DK524", "odd")])) == 0
    assert Ui("check", strict=True).finish(report(findings=[warning("DK524", "odd")])) == 1
    assert "check: failed" in capsys.readouterr().out


@pytest.mark.parametrize(("forced", "expected"), [(ExitCode.OK, 1), (ExitCode.UNAVAILABLE, 3)])
def test_strict_wins_over_a_stated_success_only(forced: ExitCode, expected: int) -> None:
    assert (
        Ui("check", strict=True, quiet=True).finish(report(findings=[warning("DK524", "odd")], forced_exit=forced))
        == expected
    )


def test_strict_leaves_notes_alone() -> None:
    assert Ui("check", strict=True, quiet=True).finish(report(findings=[note("DK524", "fyi")])) == 0


def test_quiet_shows_failures_only_and_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Ui("check", quiet=True).finish(report(findings=[note("DK524", "fyi"), failure("DK526", "refused")]))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error[DK526]: refused\n")


def test_quiet_says_once_what_is_true_of_many_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    alike = [failure("DK201", f"Expand is refused: input 'x{at}'", node=f"n{at}", op="Expand") for at in range(3)]
    Ui("check", quiet=True).finish(report(findings=[*alike, failure("DK201", "Cast is refused", node="c", op="Cast")]))
    assert capsys.readouterr().err.splitlines() == [
        "error[DK201]: Expand is refused: input '...' (3 times)",
        "error[DK201]: Cast is refused",
    ]


def test_json_is_the_only_thing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    ui = Ui("check", json=True)
    with ui.progress() as progress:
        progress(Progress("working"))
    ui.finish(report(findings=[failure("DK526", "refused")]))
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "failed"
    assert err == ""


def raising(problem: BaseException):
    def work() -> Report:
        raise problem

    return work


@pytest.mark.parametrize(
    ("problem", "code", "status"),
    [
        (GateError("no"), 1, "failed"),
        (MissingDependencyError("no"), 3, "error"),
        (VendorError("no"), 4, "error"),
        (ZeroDivisionError("no"), 70, "error"),
        (KeyboardInterrupt(), 130, "error"),
    ],
)
def test_every_outcome_is_one_document_and_one_exit_code(
    capsys: pytest.CaptureFixture[str], problem: BaseException, code: int, status: str
) -> None:
    assert Ui("check", json=True).run(raising(problem)) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], document["status"]) == (code, status)
    assert document["findings"][0]["code"].startswith("DK")


def test_a_bug_shows_its_traceback_and_asks_to_report_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert Ui("check").run(raising(ZeroDivisionError("division"))) == 70
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "error[DK890]: deploykit failed: ZeroDivisionError: division" in err
    assert "please report it" in err


def test_an_expected_error_shows_a_traceback_only_when_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    Ui("check").run(raising(GateError("no")))
    assert "Traceback" not in capsys.readouterr().err
    Ui("check", verbose=True).run(raising(GateError("no")))
    assert "Traceback" in capsys.readouterr().err


def test_a_vendor_failure_shows_its_log_and_the_reproducing_command(capsys: pytest.CaptureFixture[str]) -> None:
    problem = VendorError("openvino failed", log=["line 1", "line 2"], reproduce="python -m deploykit.worker r.json")
    assert Ui("convert").run(raising(problem)) == 4
    err = capsys.readouterr().err
    assert "  | line 1\n  | line 2\n" in err
    assert "reproduce: python -m deploykit.worker r.json" in err


def test_verbose_shows_what_the_vendor_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from deploykit.isolation import run_isolated

    def work() -> Report:
        run_isolated("loud", "builtins:print", {"end": "a word from the vendor\n"})
        return report()

    Ui("check", quiet=True).run(work)
    assert capsys.readouterr() == ("", "")
    Ui("check", quiet=True, verbose=True).run(work)
    assert capsys.readouterr() == ("", "loud | a word from the vendor\n")


@pytest.mark.parametrize("suffix", [".json", ".html", ".md", ".xml", ".sarif"])
def test_the_report_file_is_written_in_the_format_of_its_suffix(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"r{suffix}"
    Ui("check", quiet=True, report_file=file).run(lambda: report(findings=[failure("DK526", "refused")]))
    assert "DK526" in file.read_text(encoding="utf-8")


def test_the_report_file_is_written_for_an_error_too(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    assert Ui("check", report_file=file).run(raising(MissingDependencyError("no torch"))) == 3
    assert json.loads(file.read_text(encoding="utf-8"))["exit_code"] == 3


def test_an_existing_report_file_needs_force(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text("mine", encoding="utf-8")
    worked = []
    assert Ui("check", report_file=file).run(lambda: worked.append(1) or report()) == 2
    assert (file.read_text(encoding="utf-8"), worked) == ("mine", [])
    assert Ui("check", report_file=file, force=True, quiet=True).run(report) == 0
    assert file.read_text(encoding="utf-8") != "mine"


def test_progress_in_a_log_is_one_line_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with Ui("quantize").progress() as progress:
        for index in range(3):
            progress(Progress("calibrating", f"sample {index}", index, 3))
        progress(Progress("comparing"))
    assert capsys.readouterr().err == "calibrating ...\ncomparing ...\n"


def test_progress_of_a_run_in_a_log_is_its_numbered_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with Ui("run").progress() as progress:
        for index, step in enumerate(["export", "quantize int8"]):
            progress(Progress("run", step, index, 2))
            progress(Progress("comparing", "sample 1"))
        progress(Progress("run", "", 2, 2))
    assert capsys.readouterr().err == "[1/2] export\n[2/2] quantize int8\n"


def test_a_run_counts_its_notes_unless_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    made = Report("run", findings=[note("DK502", "not here"), warning("DK524", "odd")], metrics={"rows": []})
    Ui("run").finish(made)
    brief = capsys.readouterr().out
    assert "not here" not in brief
    assert "1 notes" in brief or "1 note" in brief
    assert "odd" in brief
    Ui("run", verbose=True).finish(made)
    assert "not here" in capsys.readouterr().out


def test_quiet_has_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with Ui("quantize", quiet=True).progress() as progress:
        progress(Progress("calibrating"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_terminal_gets_a_live_line_that_leaves_nothing(deploykit_cli) -> None:
    import os
    import pty
    import subprocess

    script = (
        "from deploykit.cli.ui import Ui; from deploykit.progress import Progress\n"
        "with Ui('quantize').progress() as p:\n"
        "    p(Progress('calibrating', 'sample 1', 1, 3)); p(Progress('searching', 'node conv'))\n"
    )
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    env.pop("NO_COLOR", None)
    subprocess.run([sys.executable, "-c", script], stderr=follower, env=env, check=True)
    os.close(follower)
    drawn = os.read(leader, 100_000).decode()
    os.close(leader)
    assert "searching" in drawn
    assert "node conv" in drawn
    assert drawn.rstrip().endswith("\x1b[2K")
