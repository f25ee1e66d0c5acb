from __future__ import annotations

import concurrent.futures
import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import deploykit
from deploykit import environments
from deploykit.environments import ENVIRONMENTS, Environment, facts_of, interpreter_of, pins, state_of
from deploykit.environments import making as making_module
from deploykit.environments.making import install, remove
from deploykit.errors import ExitCode, UnavailableError, UsageError
from deploykit.isolation import run_alone

if TYPE_CHECKING:
    from deploykit.progress import Progress

NAME = "tiny"


def wheel(folder: Path, version: str) -> None:
    """A package that says its version and whether it sees what it must not."""
    info = f"tiny_tool-{version}.dist-info"
    code = (
        f"import importlib.util\n"
        f"def answer():\n"
        f"    return ['{version}', importlib.util.find_spec('numpy') is not None]\n"
    )
    with zipfile.ZipFile(folder / f"tiny_tool-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny_tool.py", code)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-tool\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of one small wheel, which pip's own configuration finds; the folder of environments."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "1.0")
    wheel(wheels, "2.0")
    monkeypatch.setattr(environments, "ENVIRONMENTS", {NAME: Environment(NAME, "tiny-tool", "these tests", 1)})
    wanted = tmp_path / "tiny.txt"
    wanted.write_text("tiny-tool==1.0  # and nothing else\n")
    for module in (environments, making_module):
        monkeypatch.setattr(module, "pins_file", lambda name: wanted)
    folder = tmp_path / "cache with spaces"
    monkeypatch.setenv("DEPLOYKIT_ENVIRONMENTS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return folder


def left(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.endswith(".lock"))


def test_an_environment_is_made_used_and_removed(tiny: Path) -> None:
    with pytest.raises(UnavailableError) as refused:
        interpreter_of(NAME, "the test")
    assert (refused.value.code, refused.value.hint) == ("DK561", "deploykit doctor --install tiny")

    made = install(NAME)
    assert (made.installed, made.outdated, left(tiny)) == ("1.0", False, [NAME])
    assert made.size_bytes > 0
    # Its interpreter answers as a worker, and sees none of our packages.
    assert run_alone(NAME, "tiny_tool:answer", {}, interpreter=interpreter_of(NAME, "the test")) == ["1.0", False]

    removed = remove(NAME)
    assert removed.installed == "1.0"
    assert not tiny.exists()
    assert remove(NAME).installed is None


def test_doctor_makes_shows_and_removes_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deploykit.api import doctor as doctor_module

    monkeypatch.setattr(doctor_module, "ENVIRONMENTS", environments.ENVIRONMENTS)
    (before,) = deploykit.doctor().metrics["environments"]
    assert (before["installed"], before["install"]) == (False, "deploykit doctor --install tiny")
    report = deploykit.doctor(install=NAME)
    (row,) = report.metrics["environments"]
    assert (row["installed"], row["version"], row["install"], row["path"]) == (True, "1.0", None, str(tiny / NAME))
    assert report.findings[0].code == "DK563"
    assert "was there already" in deploykit.doctor(install=NAME).findings[0].message
    assert "was removed" in deploykit.doctor(remove=NAME).findings[0].message
    with pytest.raises(UsageError):
        deploykit.doctor(install=NAME, remove=NAME)


def test_offline_is_exit_3_with_the_reason_and_nothing_left(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    for variable, value in (
        ("PIP_CONFIG_FILE", "/dev/null"),
        ("PIP_INDEX_URL", "http://127.0.0.1:9/simple"),
        ("PIP_RETRIES", "1"),
    ):
        monkeypatch.setenv(variable, value)
    with pytest.raises(UnavailableError) as failed:
        install(NAME)
    assert failed.value.exit_code == ExitCode.UNAVAILABLE
    assert failed.value.code == "DK562"
    assert "cannot be reached" in failed.value.message
    assert any("tiny-tool" in line for line in failed.value.context)
    assert left(tiny) == []


def test_a_failing_pip_leaves_the_environment_that_was_there(tiny: Path, tmp_path: Path) -> None:
    install(NAME)
    (tmp_path / "tiny.txt").write_text("tiny-tool==3.0\n")
    assert state_of(NAME).outdated
    with pytest.raises(UnavailableError) as outdated:
        interpreter_of(NAME, "the test")
    assert "has other versions" in outdated.value.message
    with pytest.raises(UnavailableError) as failed:
        install(NAME)
    assert "tiny-tool==3.0" in failed.value.message
    assert facts_of(tiny / NAME) is not None
    assert left(tiny) == [NAME]

    (tmp_path / "tiny.txt").write_text("tiny-tool==2.0\n")
    assert install(NAME).installed == "2.0"
    assert left(tiny) == [NAME]


def test_an_interrupt_leaves_nothing(tiny: Path) -> None:
    def interrupt(step) -> None:
        if step.item.startswith(("Processing", "Installing", "Looking")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(NAME, on_progress=interrupt)
    assert left(tiny) == []


def test_a_half_made_one_is_not_taken_for_whole(tiny: Path) -> None:
    (tiny / NAME / "bin").mkdir(parents=True)
    (tiny / NAME / "bin" / "python").symlink_to(sys.executable)
    (tiny / ".making-tiny-killed").mkdir()
    with pytest.raises(UnavailableError):
        interpreter_of(NAME, "the test")
    assert install(NAME).installed == "1.0"
    assert left(tiny) == [NAME]


def test_two_installs_at_once_make_one(tiny: Path) -> None:
    steps: list[Progress] = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        states = list(pool.map(lambda _: install(NAME, on_progress=steps.append), range(2)))
    assert [state.installed for state in states] == ["1.0", "1.0"]
    assert any("waiting" in step.stage for step in steps)
    assert [step.item for step in steps].count("python -m venv") == 1
    assert left(tiny) == [NAME]


def test_a_full_disk_is_said_before_anything_is_downloaded(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(UnavailableError) as failed:
        install(NAME)
    assert failed.value.code == "DK562"
    assert left(tiny) == []


def test_a_python_without_versions_is_refused_with_those_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "pins_file", lambda name: Path("/nonexistent"))
    with pytest.raises(UnavailableError) as refused:
        interpreter_of("onnx2tf", "converting")
    assert refused.value.code == "DK561"
    assert "3.11" in refused.value.message
    assert state_of("onnx2tf").as_dict()["install"] is None


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as refused:
        install("onnx2tff")
    assert refused.value.code == "DK560"
    assert refused.value.context[0].startswith("onnx2tf: ")


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_every_version_is_exact_and_the_tool_is_among_them(name: str) -> None:
    files = list(Path(environments.__file__).parent.glob(f"{name}-cp*.txt"))
    assert files
    for file in files:
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert all(line.count("==") == 1 and not set(line) & set("<>~*/") for line in lines)
        assert ENVIRONMENTS[name].distribution in {line.partition("==")[0] for line in lines}
    if sys.version_info[:2] == (3, 11):
        assert pins(name)


def test_the_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DEPLOYKIT_ENVIRONMENTS", raising=False)
    monkeypatch.setattr(environments.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environments.environments_folder() == tmp_path / "deploykit" / "environments"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert environments.environments_folder() == Path.home() / ".cache" / "deploykit" / "environments"
