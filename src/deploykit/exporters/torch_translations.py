"""`--custom-ops translations.py`: how operators of the user's own become ONNX, for both of PyTorch's exporters.

The file has a table `TRANSLATIONS`: an operator (`torch.ops.mine.scale.default`, or its name `"mine::scale"`) and the
ONNX Script function that stands for it. It may have a table `SYMBOLICS` for the TorchScript exporter: a name and a
function `(g, *args)`, as `torch.onnx.register_custom_op_symbolic` takes it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.onnx._internal.torchscript_exporter import registration

from deploykit.errors import ModelError, UsageError
from deploykit.exporters.diagnosis import reason, user_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NAME = re.compile(r"(?P<space>\w+)::(?P<op>\w+)(\.(?P<overload>\w+))?")
# What the exporters say of an operator that they do not know.
_UNTRANSLATED = (
    r"No ONNX function found for <OpOverload\(op='(?P<space>\w+)\.(?P<op>\w+)'",
    r"operator '(?P<space>\w+)::(?P<op>\w+)' to ONNX opset version \d+ is not supported",
    r"operator with unrecognized namespace (?P<space>\w+)::(?P<op>\w+)",
)
_TABLES = ("TRANSLATIONS", "SYMBOLICS")


# By operator for the dynamo exporter, by name for the TorchScript exporter.
Tables: TypeAlias = tuple[dict[Any, Any], dict[str, Any]]


def load_translations(files: Sequence[str]) -> Tables:
    """The merged tables of the files.

    Raises UsageError (DK687) for a file without a table, or an operator that does not exist; ModelError (DK610) when
    the file fails.
    """
    translations: dict[Any, Any] = {}
    symbolics: dict[str, Any] = {}
    for at, name in enumerate(files):
        path = Path(name)
        module = _imported(path, at)
        tables = [getattr(module, table, None) for table in _TABLES]
        if not any(isinstance(table, dict) and table for table in tables):
            raise UsageError(
                f"{path.name} has no table of translations",
                code="DK687",
                file=path,
                hint='TRANSLATIONS = {"mine::scale": scale}, with an ONNX Script function scale(x)',
            )
        for key, function in (tables[0] or {}).items():
            for overload in _overloads(key, path):
                translations[overload] = function
        symbolics |= tables[1] or {}
    return translations, symbolics


def _imported(path: Path, at: int) -> Any:
    spec = importlib.util.spec_from_file_location(f"deploykit_translations_{at}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", code="DK687", file=path)
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        sys.modules[spec.name] = module  # ONNX Script reads a function's source through its module
        spec.loader.exec_module(module)
    except Exception as problem:  # the user's code raises what it likes
        where = user_line(problem)
        raise ModelError(
            f"{path.name} failed: {reason(problem)}",
            code="DK610",
            file=path,
            context=[where.describe()] if where else [],
            hint="run the file by itself with the same Python",
        ) from problem
    finally:
        sys.path.remove(folder)
    return module


def _overloads(key: Any, path: Path) -> list[Any]:
    """Every overload that a key of the table means."""
    if isinstance(key, torch._ops.OpOverload):
        return [key]
    packet = key
    if isinstance(key, str):
        match = _NAME.fullmatch(key)
        packet = getattr(getattr(torch.ops, match["space"]), match["op"], None) if match else None
        if match and packet is not None and match["overload"]:
            return [getattr(packet, match["overload"])]
    if isinstance(packet, torch._ops.OpOverloadPacket):
        return [getattr(packet, name) for name in packet.overloads()]
    raise UsageError(
        f"{path.name} translates {key!r}, and there is no such PyTorch operator",
        code="DK687",
        file=path,
        hint="import the module that defines it in the file; names are 'namespace::operator'",
    )


@contextlib.contextmanager
def registered(symbolics: Mapping[str, Any], opset: int) -> Iterator[None]:
    """The TorchScript exporter knows the operators in the block."""
    for name, function in symbolics.items():
        torch.onnx.register_custom_op_symbolic(name, function, opset)
    try:
        yield
    finally:
        for name in symbolics:
            torch.onnx.unregister_custom_op_symbolic(name, opset)
            # PyTorch 2.13 leaves an empty entry, on which its next look-up fails with a ValueError.
            registration.registry._registry.pop(name, None)


def failed_translation(problem: BaseException, tables: Tables) -> str | None:
    """The translated operator at which the dynamo exporter failed; None when it failed elsewhere."""
    chain: BaseException | None = problem
    while chain is not None:
        for operator in tables[0]:
            if f"[target=torch.ops.{operator}]" in str(chain):
                return str(operator.name()).partition(".")[0]
        chain = chain.__cause__ or chain.__context__
    return None


def untranslated(problem: BaseException) -> str | None:
    """`namespace::operator` that an exporter has no ONNX form for; None when it failed for another reason."""
    chain: BaseException | None = problem
    while chain is not None:
        text = str(chain)
        for pattern in _UNTRANSLATED:
            match = re.search(pattern, text)
            if match:
                return f"{match['space']}::{match['op']}"
        chain = chain.__cause__ or chain.__context__
    return None
