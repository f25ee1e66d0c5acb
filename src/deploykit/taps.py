"""Taps: the tensors inside an artifact, read where the engine can be asked for them.

Taps live in worker processes as runtimes do; nothing here imports an engine.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from deploykit.errors import UsageError
from deploykit.target import format_of, resolve, target_of_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import onnx_ir as ir

    from deploykit.artifact import TensorSpec
    from deploykit.runtime import Feeds, Outputs, RuntimeOptions

    Array = np.ndarray[Any, np.dtype[Any]]

# By artifact format. A format that is not here shows its outputs only.
_OPENERS = {
    "onnx": "deploykit.converters.onnxruntime.taps:open_taps",
    "openvino": "deploykit.converters.openvino.taps:open_taps",
    "coreml": "deploykit.converters.coreml.taps:open_taps",
    "tvm": "deploykit.converters.tvm.taps:open_taps",
    "litert": "deploykit.converters.litert.taps:open_taps",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Inner:
    """A tensor inside an artifact.

    name: what `Taps.read` knows it by. node, op: what makes it, as the artifact calls that.
    """

    name: str
    node: str
    op: str


class Taps(abc.ABC):
    """An artifact whose inner tensors can be read, and replaced.

    tensors: by name, in the order of computation. inputs: as of the artifact's runtime. model: the graph, where the
    artifact is one of ONNX. own_names: nodes that it names itself.
    """

    execution: Literal["real", "simulated"] = "real"
    engine: str
    inputs: tuple[TensorSpec, ...]
    tensors: Mapping[str, Inner]
    model: ir.Model | None = None
    own_names: frozenset[str] = frozenset()

    def find(self, names: Iterable[str]) -> dict[str, str]:
        """The artifact's tensor for each ONNX tensor that it names: {ONNX name: own name}."""
        return {name: name for name in names if name in self.tensors}

    @abc.abstractmethod
    def read(self, feeds: Feeds, names: Sequence[str], given: Mapping[str, Array] | None = None) -> Outputs:
        """Tensors by name for feeds by input name in the declared dtypes; memory of these tensors and of the run.

        given: values that take the place of what the artifact computes for these tensors.
        """

    def save_part(
        self,
        path: Path,
        names: Sequence[str],
        given: Mapping[str, Array],
        called: Mapping[str, str],
        like: Mapping[str, Array],
    ) -> tuple[Path, ...]:
        """Writes what makes the named tensors of the given ones, in the artifact's own format; () where it cannot.

        like: values that the named tensors have. called: the name that a tensor has there as input or output. The first
        of the files is the artifact.
        """
        return ()


def can_tap(format: str | None) -> bool:
    """Whether the inner tensors of artifacts of this format can be read."""
    return format in _OPENERS


def open_taps(path: Path, options: RuntimeOptions) -> Taps:
    """Opens an artifact for reading inside, in this process: call it in a worker.

    Raises UsageError (DK456) for a format that shows its outputs only, and what opening its runtime raises.
    """
    format = format_of(path)
    if format not in _OPENERS:
        target = target_of_format(format) if format else None
        raise UsageError(
            f"the tensors inside {target.title if target else path.suffix} artifacts cannot be read",
            code="DK456",
            file=path,
            hint=f"--locate takes {', '.join(_OPENERS)} artifacts; without it the outputs are compared",
        )
    opener: Callable[[Path, RuntimeOptions], Taps] = resolve(_OPENERS[format])
    return opener(path, options)
