"""What the jobs of one worker ask of the same model again and again, read once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deploykit import graph
from deploykit.graph.stochastic import stochastic_in

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.artifact import TensorSpec

    State = tuple[str, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Of a model as its file has it: its inputs with their own names of dimensions, nodes that draw random numbers."""

    inputs: tuple[TensorSpec, ...]
    stochastic: tuple[str, ...]


# One model each, under the state of its file: a search asks a hundred times, and never about many models.
_facts: dict[State, Facts] = {}
_loaded: dict[State, ir.Model] = {}


def facts_of(path: Path, model: ir.Model | None = None) -> Facts:
    """The facts of the model at `path`; model: what `graph.load` gave for it, unchanged, where it has been read.

    Raises as `graph.load` does.
    """
    state = _state(path)
    if state not in _facts:
        kept = model or _loaded.get(state) or graph.load(path)
        inputs, _ = graph.interface(kept)
        _facts.clear()
        _facts[state] = Facts(tuple(inputs), tuple(stochastic_in(kept)))
    return _facts[state]


def load_for_later(path: Path) -> ir.Model:
    """The model at `path`, which the next `take` gives without reading it again; it must not be changed until then."""
    _loaded.clear()
    model = _loaded[_state(path)] = graph.load(path)
    return model


def take(path: Path) -> ir.Model:
    """The model at `path`, for the caller alone, which may change it. Raises as `graph.load` does."""
    model = _loaded.pop(_state(path), None) or graph.load(path)
    _loaded.clear()
    facts_of(path, model)
    return model


def _state(path: Path) -> State:
    try:
        about = path.stat()
    except OSError:  # which reading reports as what it is
        return str(path), 0, 0
    return str(path.absolute()), about.st_size, about.st_mtime_ns
