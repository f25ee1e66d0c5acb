"""What an fp32 program computes on data: the largest magnitudes, and the smallest ones where something divides."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.coreml.frontend import door_type
from deploykit.data import CarriedState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.coreml.precision import Candidate
    from deploykit.converters.coreml.simulator.halves import HalfInterpreter
    from deploykit.converters.images import ImageInput
    from deploykit.data import Sample

Array = np.ndarray[Any, Any]
# The argument that must not become 0, by operator.
DIVISORS = {"real_div": "y", "inverse": "x", "log": "x", "sqrt": "x", "rsqrt": "x"}
# They square their input, or its distance from the mean.
_SQUARES = frozenset({"layer_norm", "instance_norm", "l2_norm", "local_response_norm"})
# What is summed inside, by operator: partial sums may be large where the whole is not.
_SUMS = {"reduce_sum": 1, "reduce_mean": 1, "reduce_l2_norm": 2, "reduce_log_sum": 1}


@dataclasses.dataclass(slots=True)
class Evidence:
    """What was measured, over all samples.

    peaks: the largest finite magnitude of a variable, by its name. smallest: the smallest that is not 0, of variables
    that something divides by. inside: the largest magnitude that an operation passes through, and what that is.
    work: multiply-accumulates, and ten for each element of other results.
    """

    peaks: dict[str, float] = dataclasses.field(default_factory=dict)
    smallest: dict[str, float] = dataclasses.field(default_factory=dict)
    inside: dict[str, tuple[float, str]] = dataclasses.field(default_factory=dict)
    work: float = 0.0

    def note(self, operation: Any, arguments: Mapping[str, Any], results: Sequence[Any]) -> None:
        """Takes down one evaluation."""
        self.work += _work(operation.op_type, arguments, results)
        for variable, value in zip(operation.outputs, results, strict=True):
            self._note_peak(variable.name, value)
        for name, given in operation.inputs.items():
            if given is not None and not isinstance(given, (list, tuple)) and given.name not in self.peaks:
                self._note_peak(given.name, arguments[name])
        kind = operation.op_type
        if kind in DIVISORS:
            self._note_smallest(operation.inputs[DIVISORS[kind]].name, arguments[DIVISORS[kind]])
        if kind in _SQUARES:
            self._note_inside(operation.name, largest(arguments["x"]) ** 2, "the square of its input")
        elif kind in _SUMS:
            total = _summed(arguments, _SUMS[kind])
            what = "the sum of squares inside it" if _SUMS[kind] == 2 else "the sum of magnitudes inside it"
            self._note_inside(operation.name, total, what)

    def _note_peak(self, name: str, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size:
            self.peaks[name] = max(self.peaks.get(name, 0.0), largest(value))

    def _note_smallest(self, name: str, value: Any) -> None:
        size = np.abs(np.asarray(value))
        size = size[size > 0]
        if size.size:
            self.smallest[name] = min(self.smallest.get(name, np.inf), float(size.min()))

    def _note_inside(self, name: str, value: float, what: str) -> None:
        self.inside[name] = (max(self.inside.get(name, (0.0, what))[0], value), what)


def _work(kind: str, arguments: Mapping[str, Any], results: Sequence[Any]) -> float:
    size = float(np.size(results[0])) if results else 0.0
    if kind in {"conv", "conv_transpose"}:
        return size * float(np.size(arguments["weight"]) / arguments["weight"].shape[0])
    if kind in {"linear", "matmul"}:
        x = arguments["x"]
        return size * float(x.shape[-1] if x.ndim else 1)
    return 10.0 * size


def largest(value: Any) -> float:
    """The largest finite magnitude."""
    size = np.abs(np.asarray(value))
    peak = float(size.max(initial=0.0))
    if np.isfinite(peak):
        return peak
    return float(size[np.isfinite(size)].max(initial=0.0))


def _summed(arguments: Mapping[str, Any], power: int) -> float:
    x = np.abs(np.asarray(arguments["x"], np.float64)) ** power
    axes = arguments.get("axes")
    over = None if axes is None else tuple(int(axis) for axis in np.atleast_1d(axes))
    total = x.sum(over)
    return float(total[np.isfinite(total)].max(initial=0.0)) if np.ndim(total) else float(total)


class Feeder:
    """Samples of the model in the names, types and shapes of its package, with state carried where it is."""

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        names: Mapping[str, str],
        carry: Mapping[str, str],
        images: Mapping[str, ImageInput],
    ) -> None:
        """inputs: of the model. names: the package's name by the model's. carry: output by input."""
        self._inputs = list(inputs)
        self._names = dict(names)
        self._back = {made: name for name, made in names.items()}
        self._carry = dict(carry)
        self._images = dict(images)

    def outputs(
        self, interpreter: HalfInterpreter, samples: Iterable[Sample], half: Mapping[Any, Collection[str]]
    ) -> Iterator[dict[str, Array]]:
        """The model's outputs for each sample, in order, with these operations in fp16."""
        state = CarriedState(self._carry)
        for sample in samples:
            interpreter.choose(half)
            found = interpreter.run(self._typed(state.fill(sample.feeds)))
            named = {self._back[name]: array for name, array in found.items()}
            state.update(named)
            yield named

    def _typed(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        made = {}
        for spec in self._inputs:
            if spec.name in self._images:
                made[self._names[spec.name]] = self._images[spec.name].pixels(np.asarray(feeds[spec.name]))
                continue
            array = np.asarray(feeds[spec.name]).astype(door_type(spec.dtype))
            # A scalar of the model is a vector of one in the package.
            made[self._names[spec.name]] = array.reshape(1) if not array.ndim else array
        return made


class ProgramSwitches:
    """The program with a switch an operation, as `half_search.Search` turns them."""

    def __init__(self, interpreter: HalfInterpreter, feeder: Feeder, known: Mapping[str, Candidate]) -> None:
        """known: the operations that can be fp16, by name."""
        self._interpreter = interpreter
        self._feeder = feeder
        self._known = dict(known)
        # Stored weights follow what reads them.
        self.nodes = [name for name, item in known.items() if not item.operation.op_type.startswith("constexpr_")]

    def run(self, samples: Sequence[Sample], on: Collection[str]) -> list[dict[str, Array]]:
        """The outputs for each sample, in order, with these operations in fp16."""
        return list(self.each(samples, on))

    def each(self, samples: Sequence[Sample], on: Collection[str]) -> Iterator[dict[str, Array]]:
        """The same, one sample at a time."""
        half = {self._known[name].operation: self._known[name].parameters for name in self.all(on)}
        yield from self._feeder.outputs(self._interpreter, samples, half)

    def all(self, on: Collection[str]) -> set[str]:
        """These operations, and the stored weights that they alone read."""
        chosen = set(on)
        for name, item in self._known.items():
            readers = [reader.name for variable in item.operation.outputs for reader in variable.child_ops]
            if item.operation.op_type.startswith("constexpr_") and readers and chosen.issuperset(readers):
                chosen.add(name)
        return chosen
