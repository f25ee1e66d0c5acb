"""Optional imports: an error that names the extra instead of a traceback."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from deploykit.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
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
    with lasting():
        for module in modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """For imports in a worker: what they make stays, so that the collector looks at it neither now nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def import_part(package: str, module: str) -> ModuleType:
    """Imports `package.module` without all that `package` imports for its other users.

    The package's own names are loaded when one of them is read. Raises ImportError where the package is absent.
    """
    spec = importlib.util.find_spec(package) if package not in sys.modules else None
    if spec is not None and spec.loader is not None:
        loader, stand_in = spec.loader, importlib.util.module_from_spec(spec)

        def load(name: str) -> Any:
            # `from package import name` asks for a name before it imports the module of that name.
            if name.startswith("__") or importlib.util.find_spec(f"{package}.{name}") is not None:
                raise AttributeError(name)
            with _loading:
                if vars(stand_in).pop("__getattr__", None) is not None:
                    loader.exec_module(stand_in)
            return getattr(stand_in, name)

        vars(stand_in)["__getattr__"] = load
        sys.modules[package] = stand_in
    return importlib.import_module(f"{package}.{module}")


_loading = threading.RLock()


class _Postponed(types.ModuleType):
    """Stands for a module that is imported when something of it is read."""

    def __init__(self, name: str, functions: Collection[str]) -> None:
        super().__init__(name)
        self.__spec__ = importlib.util.find_spec(name)
        self.__dict__["_functions"] = frozenset(functions)

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            if name in self._functions:
                return lambda *args, **named: getattr(self._loaded(), name)(*args, **named)
            # A package is asked for its path when a part of it is imported; the rest is about the stand-in itself.
            if name.startswith("__") and name != "__path__":
                raise AttributeError(name)
        return getattr(self._loaded(), name)

    def _loaded(self) -> types.ModuleType:
        with _loading:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            return importlib.import_module(self.__name__)


def postpone(module: str, functions: Collection[str] = ()) -> None:
    """Has `import module` succeed at once, and the module loaded when something of it is read, in this process.

    functions: names that others read while they are imported and only call later.
    For a slow package that what we use needs in rare cases only. Without effect where it is loaded or absent.
    """
    if module not in sys.modules and importlib.util.find_spec(module) is not None:
        sys.modules[module] = _Postponed(module, functions)


def postpone_sympy() -> None:
    """Postpones what is half of the graph library's import, and 33 MiB: arithmetic with symbolic sizes needs it."""
    postpone("sympy", ("Max", "Min", "Mod", "floor", "sqrt"))


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
