"""Optional imports: an error that names the extra instead of a traceback."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING

from deploykit.errors import MissingDependencyError

if TYPE_CHECKING:
    from types import ModuleType


def require(module: str, extra: str, *, purpose: str = "") -> ModuleType:
    """Imports `module`, or raises MissingDependencyError with the command that installs `deploykit[extra]`."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        if problem.name is not None and problem.name.partition(".")[0] != module.partition(".")[0]:
            raise missing(module, extra, purpose, f"it is installed but does not import: {problem}") from problem
        raise missing(module, extra, purpose) from problem


def missing(module: str, extra: str, purpose: str = "", why: str = "") -> MissingDependencyError:
    """The error for a package that is not there (not raised here)."""
    needed = f" for {purpose}" if purpose else ""
    package = module.partition(".")[0]
    return MissingDependencyError(
        f"the package {package!r} is needed{needed}, and {why or 'it is not installed'}",
        hint=f"pip install 'deploykit[{extra}]'",
    )


def load_early(modules: list[str]) -> None:
    """Imports what is there of the modules: what a worker does before it is needed."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def installed(module: str) -> bool:
    """Whether the top-level package can be found, without importing it."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def version_of(distribution: str) -> str | None:
    """Installed version of a distribution, without importing it; None when absent."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions_of(*distributions: str) -> dict[str, str]:
    """Installed versions of those of the distributions that are installed."""
    return {name: version for name in distributions if (version := version_of(name)) is not None}
