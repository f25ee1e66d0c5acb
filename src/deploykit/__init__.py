"""deploykit: a trained model goes in, verified deployable artifacts come out, and every step leaves evidence.

Each command of the command line is one function here, with the same name and options. Importing this package imports
nothing heavy: a function's module is loaded when the function is called.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

# The package must be imported before the function of the same name is bound over it: a later
# `import deploykit.quantize.qdq` finds it in sys.modules and leaves the attribute alone.
import deploykit.quantize  # noqa: F401
from deploykit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

_PUBLIC: dict[str, str] = {
    "export": "deploykit.api.export:export",
    "simplify": "deploykit.api.simplify:simplify",
    "check": "deploykit.api.check:check",
    "quantize": "deploykit.api.quantize:quantize",
    "convert": "deploykit.api.convert:convert",
    "validate": "deploykit.api.validate:validate",
    "bench": "deploykit.api.bench:bench",
    "serve": "deploykit.api.serve:serve",
    "package": "deploykit.api.package:package",
    "run": "deploykit.pipeline.engine:run",
    "inspect": "deploykit.api.inspect:inspect",
    "doctor": "deploykit.api.doctor:doctor",
    "targets": "deploykit.api.targets:targets",
    "explain": "deploykit.api.explain:explain",
    "init": "deploykit.api.init:init",
}


def _bind(name: str, reference: str) -> Callable[..., Any]:
    module, _, attribute = reference.partition(":")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), attribute)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__module__ = __name__
    call.__doc__ = f"See `{module}.{attribute}`."
    return call


@functools.cache
def __getattr__(name: str) -> Callable[..., Any]:
    if name in _PUBLIC:
        return _bind(name, _PUBLIC[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING:
    # What type checkers and editors see; at run time each name is bound to its module when it is called.
    from deploykit.api.bench import bench
    from deploykit.api.check import check
    from deploykit.api.convert import convert
    from deploykit.api.doctor import doctor
    from deploykit.api.explain import explain
    from deploykit.api.export import export
    from deploykit.api.init import init
    from deploykit.api.inspect import inspect
    from deploykit.api.package import package
    from deploykit.api.quantize import quantize
    from deploykit.api.serve import serve
    from deploykit.api.simplify import simplify
    from deploykit.api.targets import targets
    from deploykit.api.validate import validate
    from deploykit.pipeline.engine import run
else:
    quantize = _bind("quantize", _PUBLIC["quantize"])

__all__ = [
    "__version__",
    "bench",
    "check",
    "convert",
    "doctor",
    "explain",
    "export",
    "init",
    "inspect",
    "package",
    "quantize",
    "run",
    "serve",
    "simplify",
    "targets",
    "validate",
]
