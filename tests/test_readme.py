"""The README's session, run: every `$ ` command of its console blocks, in order, and what it prints.

Numbers, times and line breaks are not compared; `...` in the README stands for any lines.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ELIDED = "..."
NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)*(e[-+]?\d+)?")
# What the machine's speed decides, and how many notes there are: another machine trains other weights.
VARIES = re.compile(r"^(verdict:|best:|\w+: passed) .*", re.MULTILINE)


@dataclasses.dataclass
class Command:
    """A line after `$ ` and the text below it."""

    line: str
    expected: str


def session() -> list[Command]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands: list[Command] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, expected = part.partition("\n")
            commands.append(Command(line, expected))
    return commands


def normal(text: str) -> str:
    """The text without its numbers, rules and line breaks."""
    return " ".join(NUMBER.sub("0", VARIES.sub(r"\1", text)).replace("─", " ").split())


def matches(expected: str, printed: str) -> bool:
    """Whether the printed text is the expected one, with anything in the place of an elision."""
    parts = [re.escape(normal(part)) for part in re.split(r"^\.\.\.$", expected, flags=re.MULTILINE)]
    return re.fullmatch(r"\s*.*\s*".join(parts), normal(printed)) is not None


@pytest.fixture
def shell(tmp_path: Path):
    """Runs a line as the README's reader does; a line that ends in `&` runs on until `kill %1`."""
    ignored = shutil.ignore_patterns("deploykit-out*", "__pycache__", "*.npz", "*.safetensors", "*.onnx")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=ignored)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # So wide that the shown columns do not depend on how many digits a measurement has.
    variables = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "104", "OMP_NUM_THREADS": "1"}
    started: list[subprocess.Popen[str]] = []

    def run(line: str) -> str:
        line = line.replace("localhost:8000", f"127.0.0.1:{port}")
        if line == "kill %1":
            started[-1].terminate()
            assert started[-1].wait(timeout=60) == 0
            return ""
        if line.endswith("&"):
            command = f"exec {line[:-1]} --http-port {port}"
            server = subprocess.Popen(
                ["bash", "-c", command], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
            )
            started.append(server)
            assert server.stdout is not None
            return server.stdout.readline()
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout

    yield run
    for server in started:
        if server.poll() is None:
            server.kill()
            server.wait()


@pytest.mark.skipif(shutil.which("bash") is None, reason="the README's commands are for bash")
def test_every_command_of_the_readme_prints_what_it_says(shell) -> None:
    commands = session()
    assert len(commands) > 10
    for command in commands:
        if command.line.startswith("curl") and shutil.which("curl") is None:
            warnings.warn(f"no curl here, not run: {command.line}", stacklevel=1)
            continue
        printed = shell(command.line)
        assert matches(command.expected, printed), f"$ {command.line}\nREADME:\n{command.expected}\nprinted:\n{printed}"


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a 1.5 ms\n...\nend\n", "a 22 ms\nmore\nend\n", True),
        ("a 1.5 ms\nend\n", "a 22 ms\nmore\nend\n", False),
        ("...\nend\n", "a\nend\n", True),
        ("a\n...\n", "a\n", True),
        ("passed 1\n", "failed 1\n", False),
        ("", "something\n", False),
    ],
)
def test_the_comparison_tells_texts_apart(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same
