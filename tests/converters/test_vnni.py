import platform
from pathlib import Path

import pytest

from deploykit.converters.vnni import OVERRIDE, saturates


@pytest.fixture(autouse=True)
def _asked_anew():
    saturates.cache_clear()
    yield
    saturates.cache_clear()


@pytest.mark.parametrize(("told", "expected"), [("0", True), ("1", False)])
def test_the_user_knows_the_cpu_that_runs_the_model(monkeypatch, told, expected):
    monkeypatch.setenv(OVERRIDE, told)
    assert saturates() is expected


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "fpu sse2 avx2 avx512_vnni", False),
        ("AMD64", "fpu avx2 avx_vnni", False),
        ("x86_64", "fpu sse2 avx2 avx512f", True),
        ("aarch64", "asimd asimddp", False),
    ],
)
def test_flags_of_the_cpu(monkeypatch, machine, flags, expected):
    monkeypatch.delenv(OVERRIDE, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"processor : 0\nflags\t\t: {flags}\n")
    assert saturates() is expected


def test_an_x86_system_that_does_not_tell_is_taken_for_one_without(monkeypatch):
    def refuse(*_, **__):
        raise FileNotFoundError

    monkeypatch.delenv(OVERRIDE, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "read_text", refuse)
    assert saturates() is True
