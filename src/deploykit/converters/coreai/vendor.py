"""coreai-onnx and coreai-torch, called quietly, and what they raise as an error that names the node."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import warnings
from typing import TYPE_CHECKING, Any

from deploykit.lazy import versions_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LONG = 400


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Nodes that are not taken, with the reason: {name: why}; whole: the reason where no node is to blame."""

    nodes: dict[str, str] = dataclasses.field(default_factory=dict)
    whole: str = ""


def label() -> str:
    """Who says so."""
    return f"coreai-onnx {versions_of('coreai-onnx').get('coreai-onnx', '?')}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, progress bars and prints."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


def program_of(model: Path) -> tuple[Any, Refusal | None]:
    """The program that coreai-onnx makes of an ONNX file, or what it refuses."""
    import coreai_onnx

    try:
        with quiet():
            return coreai_onnx.convert(model), None
    except coreai_onnx.UnsupportedOpError as problem:
        nodes = {
            name: f"coreai-onnx has no lowering for {key}" for key, names in problem.missing.items() for name in names
        }
        return None, Refusal(nodes)
    except coreai_onnx.ConversionError as problem:
        inner = problem
        while isinstance(inner.__cause__, coreai_onnx.ConversionError):
            inner = inner.__cause__
        why = str(inner.__cause__ or inner)
        return None, Refusal({inner.node_name: _sentence(why)})
    except Exception as problem:  # MLIR's verifier, onnx's checker and the lowerings raise anything
        return None, Refusal(whole=f"{type(problem).__name__}: {_sentence(str(problem))}")


def _sentence(text: str) -> str:
    # MLIR's number for a size that varies.
    return " ".join(text.replace("-9223372036854775808", "?").split())[:_LONG]
