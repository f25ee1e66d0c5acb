"""Node and the npm package onnxruntime-web: where they are on this machine, or what brings them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import UnavailableError, UsageError
from deploykit.place import Place
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What a page is written for where no package is installed; the operator tables are of this version too.
VERSION = "1.30.0"
NAME = "onnxruntime-web"
BROWSER = "chromium"
_BROWSER_CHOICES = ("auto", "no", "require")
# Software computes what a GPU would.
_BROWSER_SAMPLES = {"wasm": 4}
_SOFTWARE_SAMPLES = 2
_NODE_ENTRY = "dist/ort.node.min.mjs"


@dataclasses.dataclass(frozen=True, slots=True)
class Package:
    """An installed npm package."""

    folder: Path
    version: str

    @property
    def dist(self) -> Path:
        """Its scripts and WebAssembly."""
        return self.folder / "dist"

    @property
    def node_entry(self) -> Path:
        """The module that Node loads."""
        return self.folder / _NODE_ENTRY


def cache_folder() -> Path:
    """Where deploykit looks for npm packages: a folder of the user's cache."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return (Path(base) if base else Path.home() / "AppData" / "Local") / "deploykit" / "npm"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "deploykit" / "npm"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "deploykit" / "npm"


def install_command() -> str:
    """The command that brings the package for deploykit."""
    return f"npm install --prefix '{cache_folder()}' {NAME}@{VERSION}"


def find_node() -> str | None:
    """Node's program; None when it is not there."""
    return shutil.which("node")


def node_version() -> str | None:
    """The version of the Node that runs pages here ("20.20.2"); None without one."""
    if (node := find_node()) is None:
        return None
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return told.strip().removeprefix("v") or None


def find_package() -> Package | None:
    """The package in the user's cache folder, on NODE_PATH, or installed globally; the first that is whole."""
    places = [cache_folder() / "node_modules"]
    places += [Path(text) for text in os.environ.get("NODE_PATH", "").split(os.pathsep) if text]
    if (node := find_node()) is not None:
        places.append(Path(node).resolve().parent.parent / "lib" / "node_modules")
    return next((found for place in places if (found := _package(place / NAME)) is not None), None)


def _package(folder: Path) -> Package | None:
    try:
        facts = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = facts.get("name") == NAME and (folder / _NODE_ENTRY).is_file()
    return Package(folder, str(facts.get("version"))) if whole else None


def why_not() -> str | None:
    """Why pages cannot be run here, with what brings it; None when they can."""
    if find_node() is None:
        return "Node is not installed (20 or newer: https://nodejs.org, or the system's package nodejs)"
    if find_package() is None:
        return f"the npm package {NAME} is not installed: {install_command()}"
    return None


def find_browser() -> str | None:
    """Chromium or Chrome; None when neither is on the path."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return next((found for name in names if (found := shutil.which(name)) is not None), None)


def why_no_browser() -> str | None:
    """Why pages cannot be run in a browser here; None when they can."""
    return why_not() if find_browser() is not None else "neither chromium nor google-chrome is on the path"


def browser_places(settings: Mapping[str, Any]) -> tuple[Sequence[Place], Sequence[Finding]]:
    """Whether the page is run in a browser, as the option `browser` says: auto (where one is installed), no, require.

    Raises UsageError (DK527), and UnavailableError (DK502) where a browser is required and not here.
    """
    asked = str(settings.get("browser", "auto"))
    if asked not in _BROWSER_CHOICES:
        raise UsageError(f"browser is {', '.join(_BROWSER_CHOICES)}, not {asked!r}", code="DK527", target=NAME)
    missing = why_no_browser()
    if asked == "require" and missing:
        raise UnavailableError(f"the page cannot be run in a browser here: {missing}", code="DK502", target=NAME)
    if asked == "no" or missing:
        return [], [note("DK570", f"the page was not run in a browser: {missing or 'browser=no'}", target=NAME)]
    backend = str(settings.get("version", "wasm"))
    # WebGPU, WebNN and WebGL are what this browser and this machine have of them.
    excused = backend != "wasm" and asked == "auto"
    refused = f"the page did not run with {backend} in the browser here" if excused else ""
    return [Place("browser", f"{BROWSER}-{backend}", _BROWSER_SAMPLES.get(backend, _SOFTWARE_SAMPLES), refused)], []
