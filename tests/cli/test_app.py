from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from deploykit.cli.app import COMMANDS, main
from deploykit.version import __version__

HEAVY = (
    "torch",
    "tensorflow",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "openvino",
    "coremltools",
    "tensorrt_rtx",
    "starlette",
    "numpy",
    "jinja2",
)


def imported_by(*arguments: str) -> tuple[int, set[str]]:
    """Exit code and top-level modules of a call in a fresh interpreter."""
    code = (
        "import json, sys; from deploykit.cli.app import main; code = main(sys.argv[1:]);"
        "open(3, 'w').write(json.dumps([code, sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    reading, writing = os.pipe()
    with os.fdopen(reading) as answer:
        script = f"import os; os.dup2({writing}, 3)\n{code}"
        subprocess.run(
            [sys.executable, "-c", script, *arguments], pass_fds=[writing], stdout=subprocess.DEVNULL, check=True
        )
        os.close(writing)
        exit_code, modules = json.loads(answer.read())
    return exit_code, set(modules)


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code, modules = imported_by(*arguments)
    assert code == 0
    assert modules & set(HEAVY) == set()
    # typer itself needs pydantic for a command's options.
    assert len(arguments) > 1 or "pydantic" not in modules


def test_help_is_instant(child_seconds) -> None:
    # At most 0.2 s on an idle machine; processor time, so that neighbours do not count.
    assert min(child_seconds("-m", "deploykit", "--help") for _ in range(5)) < 0.2


def test_every_command_is_in_the_help_with_its_line(deploykit_cli) -> None:
    text = deploykit_cli("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in text


def test_version(deploykit_cli) -> None:
    assert deploykit_cli("--version").stdout == f"deploykit {__version__}\n"


def test_no_command_shows_help_on_stderr_and_exits_2(deploykit_cli) -> None:
    done = deploykit_cli()
    assert (done.code, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


@pytest.mark.parametrize(("typed", "meant"), [("chekc", "check"), ("quantise", "quantize"), ("validte", "validate")])
def test_an_unknown_command_gets_the_nearest(deploykit_cli, typed: str, meant: str) -> None:
    done = deploykit_cli(typed)
    assert done.code == 2
    assert f"there is no command {typed!r}" in done.stderr
    assert f"hint: deploykit {meant}\n" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_gets_the_nearest_on_every_command(deploykit_cli, name: str) -> None:
    done = deploykit_cli(name, "--quite")
    assert (done.code, done.stdout) == (2, "")
    assert f"deploykit {name} has no option '--quite'" in done.stderr
    assert "did you mean --quiet?" in done.stderr


def test_a_usage_error_is_json_where_that_was_asked_for(deploykit_cli) -> None:
    done = deploykit_cli("check", "--json", "--targt", "x")
    assert (done.code, done.json["exit_code"], done.json["status"]) == (2, 2, "error")
    assert done.json["command"] == "check"
    assert done.json["findings"][0]["code"] == "DK806"


def test_json_before_a_file_of_that_name_is_no_option(deploykit_cli) -> None:
    done = deploykit_cli("validate", "--", "--json", "b.onnx")
    assert done.code == 2
    assert done.stdout == ""
    assert "no such reference: --json" in done.stderr


def test_console_script_and_module_are_the_same(deploykit_cli) -> None:
    from pathlib import Path

    script = Path(sys.executable).with_name("deploykit")
    done = subprocess.run(
        [script, "--help"], env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == deploykit_cli("--help").stdout


def test_the_command_line_can_be_called_from_python(capsys) -> None:
    assert main(["explain", "DK801"]) == 0
    assert "There is no such target" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m deploykit explain | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("code")
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM to catch")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_130_and_says_so(number: signal.Signals) -> None:
    script = (
        "import time, deploykit, deploykit.cli.app as app;"
        "deploykit.doctor = lambda **_: (print('ready', flush=True), time.sleep(60));"
        "raise SystemExit(app.main(['doctor', '--quiet']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "error[DK891]: interrupted" in errors


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_exists_for_the_shell(deploykit_cli, shell: str) -> None:
    done = deploykit_cli(_DEPLOYKIT_COMPLETE=f"source_{shell}")
    assert done.code == 0
    assert "_DEPLOYKIT_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("deploykit che", {"check"}),
        ("deploykit check --target open", {"openvino"}),
        ("deploykit check m.onnx --to ", {"onnxruntime", "openvino", "tensorrt-rtx", "coreml", "all"}),
        ("deploykit convert m.onnx --to core", {"coreml"}),
        ("deploykit run m.onnx --to openvino,core", {"openvino,coreml"}),
        ("deploykit explain DK80", {"DK801", "DK802"}),
        ("deploykit quantize --precision fp", {"fp16"}),
        ("deploykit check --rep", {"--report"}),
        ("deploykit run --only quan", {"quantize"}),
    ],
)
def test_completion_knows_commands_targets_and_codes(deploykit_cli, typed: str, expected: set[str]) -> None:
    words = typed.split(" ")
    done = deploykit_cli(_DEPLOYKIT_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1))
    assert done.code == 0, done.stderr
    assert expected <= set(done.stdout.splitlines())
