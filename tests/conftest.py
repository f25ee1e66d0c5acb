"""Fixtures for every test: the command line as a user has it, and models that lie beside the checkout."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"

# A run in the background of a script has been told to ignore Ctrl-C, and would hand that on to the commands under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclasses.dataclass(frozen=True)
class CliResult:
    """What a user's shell sees."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.stdout)
        return document


class DeploykitCli(Protocol):
    def __call__(self, *arguments: object, cwd: Path | None = None, timeout: float = 300, **env: str) -> CliResult: ...


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of models and cases beside the checkout; skips where it is not."""
    folder = Path(os.environ.get("DEPLOYKIT_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no models beside the checkout: {folder}")
    return folder


@pytest.fixture(scope="session")
def shared_model(shared: Path) -> Callable[[str], Path]:
    """The path of a model in it, as in `shared_model("digits/digits_cnn.onnx")`; skips where it is not."""

    def find(name: str) -> Path:
        path = shared / "models" / name
        if not path.exists():
            pytest.skip(f"no such model beside the checkout: {name}")
        return path

    return find


@pytest.fixture(scope="session")
def deploykit_cli() -> DeploykitCli:
    """Runs the command line in a process of its own: `deploykit_cli("check", model, "--json", cwd=folder)`."""

    def call(*arguments: object, cwd: Path | None = None, timeout: float = 300, **env: str) -> CliResult:
        variables = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **env}
        done = subprocess.run(
            [sys.executable, "-m", "deploykit", *map(str, arguments)],
            cwd=cwd,
            env=variables,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=timeout,
            check=False,
        )
        return CliResult(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def child_seconds() -> Callable[..., float]:
    """Processor seconds (user and system) of `python ARGUMENTS`, its output thrown away."""

    def measure(*arguments: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    return measure


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares text with a file under tests/golden; DEPLOYKIT_UPDATE_GOLDEN=1 writes the file instead."""

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if os.environ.get("DEPLOYKIT_UPDATE_GOLDEN"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"no golden file {name}: run the test with DEPLOYKIT_UPDATE_GOLDEN=1"
        assert text == file.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A file with the header of a TensorRT-RTX plan that holds nothing else: whole, and not run on most machines."""
    magic, size, version = b"vtrt", (64).to_bytes(8, "little"), bytes([1, 7, 1, 116])
    path = tmp_path / "made.engine"
    path.write_bytes((magic + bytes(12) + size + version + magic).ljust(64, b"\0"))
    return path
