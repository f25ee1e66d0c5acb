import json
import os

import pytest

from deploykit.converters.onnxruntime_web import package
from deploykit.converters.onnxruntime_web.package import NAME, VERSION
from deploykit.errors import UnavailableError, UsageError


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """A machine without Node, package and browser."""
    for name in ("PATH", "NODE_PATH", "XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    return tmp_path


def program(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def installed(folder, version=VERSION):
    place = folder / NAME
    (place / "dist").mkdir(parents=True)
    (place / "package.json").write_text(json.dumps({"name": NAME, "version": version}))
    (place / "dist" / "ort.node.min.mjs").write_text("")


def test_what_is_missing_is_said_with_what_brings_it(empty):
    assert "Node is not installed" in package.why_not()
    program(empty / "nothing", "node")
    reason = package.why_not()
    assert reason == f"the npm package {NAME} is not installed: {package.install_command()}"
    assert f"{NAME}@{VERSION}" in reason
    assert str(package.cache_folder()) in reason


def test_package_in_the_cache_folder_is_found_before_others(empty, monkeypatch):
    program(empty / "nothing", "node")
    installed(empty / "elsewhere", "1.0.0")
    monkeypatch.setenv("NODE_PATH", os.pathsep.join([str(empty / "none"), str(empty / "elsewhere")]))
    assert package.find_package().version == "1.0.0"
    installed(package.cache_folder() / "node_modules")
    assert package.find_package().version == VERSION
    assert package.why_not() is None


def test_half_a_package_is_none(empty):
    installed(package.cache_folder() / "node_modules")
    package.find_package().node_entry.unlink()
    assert package.find_package() is None


def test_browser_that_is_not_here_is_said_or_required(empty):
    program(empty / "nothing", "node")
    installed(package.cache_folder() / "node_modules")
    places, (said,) = package.browser_places({})
    assert not places
    assert (said.code, said.severity) == ("DK570", "note")
    assert "chromium" in said.message
    with pytest.raises(UnavailableError, match="chromium"):
        package.browser_places({"browser": "require"})


def test_browser_runs_the_backend_that_the_page_is_for(empty):
    program(empty / "nothing", "node")
    program(empty / "nothing", "chromium")
    installed(package.cache_folder() / "node_modules")
    (place,), said = package.browser_places({"version": "webgpu"})
    assert place.provider == "chromium-webgpu"
    assert "webgpu" in place.refused
    assert not said
    assert not package.browser_places({"version": "wasm"})[0][0].refused
    assert not package.browser_places({"version": "webgpu", "browser": "require"})[0][0].refused
    assert package.browser_places({"browser": "no"})[0] == []
    with pytest.raises(UsageError) as caught:
        package.browser_places({"browser": "firefox"})
    assert caught.value.code == "DK527"
