"""`deploykit targets`: what each target can do on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit import lazy
from deploykit.bundling import why_not_built
from deploykit.environments import is_ready, state_of
from deploykit.report import Report
from deploykit.target import get_target, target_names, unavailable, uninstallable

if TYPE_CHECKING:
    from deploykit.target import Target

_BUNDLED = "convert writes a build bundle for a machine that has it"


def targets() -> Report:
    """Which targets can be checked, converted to and run here, and what is missing where one cannot.

    Returns a report whose metrics are {"targets": [{"name", "title", "suffix", "versions", "precisions", "check",
    "convert", "run", "bundle", "missing"}]}; the four are booleans, `missing` is text, empty when nothing is. bundle:
    `convert` writes a folder that another machine builds the artifact from.
    Imports no backend.
    """
    return Report("targets", metrics={"targets": [_row(get_target(name)) for name in target_names()]})


def _row(target: Target) -> dict[str, Any]:
    absent = [package for package in target.packages if not lazy.installed(package)]
    installed = not absent
    reason = unavailable(target) if installed else None
    missing = []
    if absent:
        missing.append(uninstallable(target) or target.install)
    built = why_not_built(target) if installed else None
    if built is not None:
        reason = f"{built}: {_BUNDLED}" if target.converter is not None else target.elsewhere
    elif not target.converts(None):
        reason = f"checked here, made elsewhere: {target.elsewhere}"
    elif target.runtime is None and not reason:
        reason = f"nothing runs {target.title} artifacts here"
    if reason:
        missing.append(reason)
    lacking = bool(target.environment) and not is_ready(target.environment)
    if lacking:
        missing.append(f"from ONNX: {_bringing(target.environment)}")
    # A table speaks of a target also where its engine is not installed.
    told = bool(target.tables) or target.measured is not None
    return {
        "name": target.name,
        "title": target.title,
        "suffix": target.suffix,
        "versions": list(target.versions),
        "precisions": list(target.precisions),
        "check": told or (target.support is not None and installed),
        # From other sources than ONNX its routes need no environment.
        "convert": (target.converter is not None or bool(target.routes))
        and installed
        and built is None
        and (not lacking or bool(target.routes)),
        "bundle": target.bundle is not None and built is not None,
        "run": target.runtime is not None and installed and reason is None,
        "missing": "; ".join(missing),
    }


def _bringing(environment: str) -> str:
    """The command that makes an environment, or why there is none."""
    found = state_of(environment, measured=False)
    return found.refusal or f"deploykit doctor --install {environment}"
