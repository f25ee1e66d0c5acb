from __future__ import annotations

import importlib.metadata
import platform
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

import deploykit
from deploykit.api import doctor as doctor_module
from deploykit.api.doctor import cpu_features

if TYPE_CHECKING:
    from pathlib import Path


def extras(report) -> dict[str, dict]:
    return {row["name"]: row for row in report.metrics["extras"]}


def test_versions_are_those_of_the_installed_distributions() -> None:
    report = deploykit.doctor()
    assert report.metrics["core"]["onnxruntime"] == importlib.metadata.version("onnxruntime")
    assert report.metrics["machine"]["python"].startswith(platform.python_version())


def test_every_extra_of_the_project_is_there_but_all_and_dev() -> None:
    declared = set(importlib.metadata.metadata("deploykit").get_all("Provides-Extra"))
    assert set(extras(deploykit.doctor())) == declared - {"all", "dev"}


def test_a_missing_package_brings_the_command_for_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "version_of", lambda name: None if name == "openvino" else "1.0")
    report = deploykit.doctor()
    assert extras(report)["openvino"] == {
        "name": "openvino",
        "installed": False,
        "packages": {"openvino": None},
        "install": "pip install 'deploykit[openvino]'",
    }
    # NNCF compresses OpenVINO's models: its extra lacks the same package.
    assert {(found.code, found.severity, found.hint) for found in report.findings} == {
        ("DK900", "note", f"pip install 'deploykit[{extra}]'") for extra in ("openvino", "nncf")
    }
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("system", "machine", "there"),
    [("linux", "x86_64", True), ("win32", "AMD64", True), ("darwin", "arm64", False), ("linux", "aarch64", False)],
)
def test_an_extra_without_a_package_for_the_system_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, there: bool
) -> None:
    monkeypatch.setattr(doctor_module.sys, "platform", system)
    monkeypatch.setattr(doctor_module.platform, "machine", lambda: machine)
    monkeypatch.setattr(doctor_module, "version_of", lambda name: None)
    row = extras(deploykit.doctor())["tensorrt-rtx"]
    assert (row["install"] is not None) is there


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_vnni amx_int8\n", ["AVX2", "AVX-512", "AVX512-VNNI", "AMX-INT8"]),
        ("Features\t: fp asimd asimddp i8mm\n", ["DotProd", "I8MM"]),
        ("flags : fpu\n", []),
    ],
)
def test_cpu_features_from_the_kernel_s_list(tmp_path: Path, text: str, expected: list[str]) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text, encoding="utf-8")
    assert cpu_features(file) == expected


def test_a_system_without_that_file_says_nothing(tmp_path: Path) -> None:
    assert cpu_features(tmp_path / "gone") is None


def test_doctor_imports_no_backend(deploykit_cli) -> None:
    import subprocess
    import sys

    script = (
        "import sys, deploykit; deploykit.doctor(); deploykit.targets();"
        "print({'torch', 'onnx', 'onnxruntime', 'openvino', 'coremltools', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("system", "machine"),
    [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")],
)
def test_an_extra_has_what_pip_would_install_here(monkeypatch, system: str, machine: str) -> None:
    monkeypatch.setattr(doctor_module.sys, "platform", system)
    monkeypatch.setattr(doctor_module.platform, "machine", lambda: machine)
    expected: dict[str, set[str]] = {}
    for requirement in map(Requirement, importlib.metadata.requires("deploykit")):
        for extra in importlib.metadata.metadata("deploykit").get_all("Provides-Extra"):
            here = {"sys_platform": system, "platform_machine": machine, "extra": extra}
            if extra not in ("all", "dev") and "extra" in str(requirement.marker) and requirement.marker.evaluate(here):
                expected.setdefault(extra, set()).add(requirement.name)
    found = doctor_module._requirements()[1]
    assert {extra: set(names) for extra, names in found.items() if names} == expected
