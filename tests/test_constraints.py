"""The constraints file is what the tests run with, and the ranges of pyproject.toml admit it."""

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = {
    canonicalize_name(pin.name): pin
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
    for pin in [Requirement(line)]
}
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [
    Requirement(text)
    for group in (PROJECT["dependencies"], *EXTRAS.values())
    for text in group
    if not text.startswith("deploykit[")
]


@pytest.mark.parametrize("name", sorted(PINS))
def test_a_pinned_package_is_installed_in_that_version(name):
    try:
        found = Version(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed here: make setup")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the pins are those of Python 3.11")
    assert PINS[name].specifier.contains(found.public), f"{name} {found}: make setup"


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_requirement_is_pinned_within_its_range(requirement):
    pin = PINS[canonicalize_name(requirement.name)]
    (version,) = [specifier.version for specifier in pin.specifier]
    assert requirement.specifier.contains(version)


def test_all_holds_every_extra_for_users():
    (reference,) = [Requirement(text) for text in EXTRAS["all"]]
    assert reference.extras == set(EXTRAS) - {"all", "dev"}


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_wheels_that_a_platform_lacks_have_a_marker(platform):
    machine = "x86_64" if platform == "linux" else "arm64" if platform == "darwin" else "AMD64"
    environment = {"sys_platform": platform, "platform_machine": machine, "python_version": "3.11", "extra": ""}
    wanted = {r.name for r in REQUIREMENTS if r.marker is None or r.marker.evaluate(environment)}
    assert ("tensorrt-rtx" in wanted) == (platform != "darwin")
    assert ("coremltools" in wanted) == (platform != "win32")
    assert ("tensorflow-cpu" in wanted) == (platform != "darwin")
    assert ("tensorflow" in wanted) == (platform == "darwin")
