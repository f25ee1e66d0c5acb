"""A route from a source's own framework to a target's artifact that does not go through ONNX: what both sides share.

An exporter loads the source and hands its program over; a converter's writer, named by the target as a
`module:function` string, makes the artifact of it in the same process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec

AUTO, ONNX = "auto", "onnx"


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """One direct route, described.

    title: who converts, for messages ("coremltools, from torch.export"). writer: `module:function` of a `Writer`.
    kinds: of `exporters.sources.KINDS` that it takes.
    options: the target's options that the writer knows (`describe.*` for a family); with others given only the ONNX
    route does what was asked for.
    hides: packages that the vendor would import where it finds them, for nothing that is used here.
    preferred: whether it is taken where nobody asks for a way; otherwise the way goes through ONNX.
    beside: `module:function` of a `Beside`, which writes what goes with the artifact; None where nothing does.
    takes: what of `Target.takes` the writer gets, too; "module" for PyTorch: the module itself (`HandedModule`) instead
    of its exported program.
    """

    title: str
    writer: str
    kinds: tuple[str, ...]
    options: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()
    beside: str | None = None
    preferred: bool = True
    takes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class HandedModule:
    """A PyTorch module, and how it is called.

    module: the user's own; None where its inputs or outputs are nested. places: which argument of it each input is, in
    the order of the inputs: its position, or its name. flat: a function of the inputs in order, that gives a tuple.
    example: tensors by input. scripted: whether it is TorchScript already. decisions: the user's lines where values of
    tensors decide what the module does, in words.
    """

    module: Any
    places: tuple[int | str, ...]
    flat: Any
    example: Mapping[str, Any]
    scripted: bool
    decisions: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Handed:
    """What a writer is given.

    program: torch.export.ExportedProgram, torch.jit.ScriptModule, a `HandedModule`, a TensorFlow ConcreteFunction
    without variables whose inputs and outputs come in the order of the specs, or the bytes of a LiteRT file.
    inputs, outputs: as the export to ONNX would call them, with symbols for sizes that vary.
    options: of the target. dims: bounds by symbol, [min, max or None, *sizes]. profiles: [min, opt, max shape] by
    input. calib: a `DataRequest` to measure on, for routes that take one. precision: of the source.
    """

    program: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    output: Path
    options: Mapping[str, Any]
    dims: Mapping[str, Sequence[int | None]]
    profiles: Mapping[str, Sequence[Sequence[int]]]
    calib: Mapping[str, Any] | None = None
    precision: str = "fp32"


# Writes the artifact at `Handed.output`; the facts of a `stage.Product` as JSON, error findings where it cannot.
# Raises VendorError (DK556) where the vendor does not take the program; anything else that it raises is a bug.
Writer: TypeAlias = "Callable[[Handed], dict[str, Any]]"
# A sample's name, its feeds, and what the source gives for them.
Answered: TypeAlias = "tuple[str, Mapping[str, Any], dict[str, Any]]"
# Given the artifact, its samples (by something that has the artifact's `bounds`, as `Runtime.bounds`), the row of
# `parity.TOLERANCES`, and the target's options: {"companions": names beside the artifact, "findings": JSON}.
Beside: TypeAlias = "Callable[[Path, Callable[[Any], Iterable[Answered]], str, Mapping[str, Any]], dict[str, Any]]"


@contextlib.contextmanager
def hidden(packages: Sequence[str]) -> Iterator[None]:
    """Keeps packages that are not imported yet from being found meanwhile; afterwards they can be imported again."""
    absent = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None makes an import fail at once
    try:
        yield
    finally:
        for name in absent:
            if sys.modules.get(name, ...) is None:
                del sys.modules[name]
