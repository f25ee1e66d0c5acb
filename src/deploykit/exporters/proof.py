"""What every proof of an export shares: the source as the reference side, the sizes, and the dimension to blame."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.comparison import compare
from deploykit.data import DimRange, Sample, open_data
from deploykit.errors import VendorError
from deploykit.exporters.diagnosis import reason
from deploykit.progress import OnProgress, silent
from deploykit.report import failure, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.parity import Tolerance
    from deploykit.report import Finding
    from deploykit.runtime import Feeds, Outputs

# Each dimension at its minimum, at its maximum, and at values between (see data.random_data); fixed shapes need fewer.
POINTS = 6
POINTS_FIXED = 4
# How many values of each dimension a proof is run at, where its range and the source allow.
_VALUES = 3
_OPEN_SPAN = 7
_TRIES = 8


class SourceSide:
    """The source as the reference side: samples that it refuses are left out, each sample is run once.

    run: outputs by name in the source's framework. name: in messages ("the module"). rows: first sizes of the first
    input in the samples that the source took.
    """

    def __init__(self, run: Callable[[Feeds], Outputs], name: str) -> None:
        self.refused: list[Finding] = []
        self.rows: set[int] = set()
        self._run = run
        self._name = name
        self._outputs: Outputs = {}

    def accepted(self, *samples: Sample | Iterable[Sample]) -> Iterator[Sample]:
        """The samples that the source takes: a size that it refuses says nothing about the export."""
        for sample in itertools.chain.from_iterable([s] if isinstance(s, Sample) else s for s in samples):
            try:
                self._outputs = self._run(sample.feeds)
            except Exception as problem:  # the user's code, and frameworks, raise what they like
                shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in sample.feeds.items())
                text = f"{self._name} itself fails on {shapes} ({reason(problem)}): not compared there"
                self.refused.append(warning("DK624", text, hint="bound the sizes it takes: --dim NAME=MIN..MAX"))
                continue
            self.rows |= {array.shape[0] for array in list(sample.feeds.values())[:1] if array.ndim}
            yield sample

    def predict(self, feeds: Feeds) -> Outputs:
        """What the source gave for the sample that was yielded last."""
        del feeds
        return self._outputs


def not_compared(finding: Finding) -> dict[str, Any]:
    """The proof's result when there was none, and why."""
    return {"outputs": [], "samples": 0, "execution": "none", "engines": {}, "findings": [finding.as_dict()]}


@dataclasses.dataclass(slots=True)
class Proof:
    """One comparison of a source with its exported file, over every dimension.

    predict: outputs of the exported file by name. specs: the source's inputs. symbols: their dimensions. model: the
    exported file, which tells what integers it takes; None: nothing tells. given: samples that are compared besides
    random ones. adapt: what is done with each random sample.
    """

    side: SourceSide
    predict: Callable[[Feeds], Outputs]
    specs: Sequence[TensorSpec]
    symbols: Mapping[str, DimRange]
    model: Path | None
    seed: int
    tolerance: Tolerance
    given: Sequence[Sample] = ()
    adapt: Callable[[Iterable[Sample]], Iterable[Sample]] | None = None
    way: str = ""
    seen: dict[str, set[int]] = dataclasses.field(default_factory=dict)

    def run(self, on_progress: OnProgress = silent) -> dict[str, Any]:
        """JSON as `comparison.compare` returns, with "proven": the values of each dimension that were compared.

        A difference that hangs on a dimension is a failure DK688 that names it. Never raises for a file that refuses an
        input that the source takes: that is DK625.
        """
        points = POINTS if self.symbols else POINTS_FIXED
        try:
            result = compare(
                self.side.predict,
                self.predict,
                self._recorded(self.side.accepted(self.given, self._flips(), self._random(points), self._more())),
                tolerance=self.tolerance,
                total=points + len(self.given),
                on_progress=on_progress,
            )
        except VendorError as problem:
            text = f"the exported file refuses an input that the source takes: {problem.message[:300]}"
            result = not_compared(failure("DK625", text, hint=self.way))
        wrong = not result["samples"] or any(not row["passed"] for row in result["outputs"])
        findings = [finding.as_dict() for finding in (*self.side.refused, *(self._blamed() if wrong else ()))]
        proven = {name: sorted(sizes) for name, sizes in self.seen.items()}
        return {**result, "proven": proven, "findings": [*findings, *result["findings"]]}

    def _random(self, points: int, dims: Mapping[str, DimRange] | None = None) -> Iterable[Sample]:
        dims = self.symbols if dims is None else dims
        dataset = open_data(
            f"random:{self.seed}", tuple(self.specs), purpose="parity", samples=points, dims=dims, model=self.model
        )
        return self.adapt(dataset) if self.adapt else dataset

    def _flips(self) -> Iterator[Sample]:
        """A given sample with every float positive, then negative: what branches on a sum or a sign goes both ways."""
        for sample in self.given[:1]:
            for sign, name in ((1, "positive"), (-1, "negative")):
                feeds = {
                    key: sign * np.abs(array) if np.issubdtype(array.dtype, np.floating) else array
                    for key, array in sample.feeds.items()
                }
                yield Sample(feeds, None, f"{sample.name}, {name}")

    def _recorded(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            yield sample  # compared when the next one is asked for, or has raised
            for name, size in self.sizes(sample.feeds).items():
                self.seen.setdefault(name, set()).add(size)

    def sizes(self, feeds: Feeds) -> dict[str, int]:
        """The size of each symbol in a sample."""
        return {
            dim: size
            for spec in self.specs
            if spec.name in feeds
            for dim, size in zip(spec.shape or (), feeds[spec.name].shape, strict=False)
            if isinstance(dim, str)
        }

    def _more(self) -> Iterator[Sample]:
        """Samples for dimensions that have not been at three values, at both bounds and at 1 (evaluated lazily)."""
        for name, bounds in self.symbols.items():
            for size in _values_of(bounds):
                seen = self.seen.get(name, set())
                if size in seen or (len(seen) >= _VALUES and size not in (bounds.minimum, bounds.maximum)):
                    continue
                yield from self._random(1, {**self._middle(), name: DimRange(name, size, size)})

    def _middle(self) -> dict[str, DimRange]:
        """A size of each symbol that was right, otherwise of its range."""
        found = {}
        for name, bounds in self.symbols.items():
            seen = sorted(self.seen.get(name, ())) or [max(bounds.minimum, min(2, bounds.maximum or 2))]
            found[name] = DimRange(name, seen[len(seen) // 2], seen[len(seen) // 2])
        return found

    def _blamed(self) -> Iterator[Finding]:
        """The dimensions on which it depends whether the file is right: each at several values, the others fixed."""
        base = next((sizes for sizes in self._bases() if self._right(sizes)), None)
        if base is None:
            return
        for name, bounds in self.symbols.items():
            verdicts = {size: self._right({**base, name: size}) for size in (*_values_of(bounds), base[name])}
            bad = sorted(size for size, right in verdicts.items() if right is False)
            good = sorted(size for size, right in verdicts.items() if right)
            if bad:
                text = f"dimension {name!r} was frozen in the file: wrong at {_some(bad)}, right at {_some(good)}"
                hint = f"the module computes with this size as a number: change that, or fix it: --dim {name}={good[0]}"
                yield failure("DK688", text, hint=hint)

    def _bases(self) -> Iterator[dict[str, int]]:
        for sample in self.given:
            yield self.sizes(sample.feeds)
        for sample in itertools.islice(self._random(_TRIES), _TRIES):
            yield self.sizes(sample.feeds)

    def _right(self, sizes: Mapping[str, int]) -> bool | None:
        """Whether both sides agree at the sizes; None where the source refuses them."""
        dims = {name: DimRange(name, size, size) for name, size in sizes.items()}
        side = SourceSide(self.side._run, self.side._name)
        samples = list(side.accepted(self._random(1, dims)))
        if not samples:
            return None
        try:
            result = compare(side.predict, self.predict, samples, tolerance=self.tolerance)
        except VendorError:
            return False
        return all(row["passed"] for row in result["outputs"])


def _values_of(bounds: DimRange) -> list[int]:
    """Minimum, maximum, 1 where it is in range, and values between, different; all of a set of sizes."""
    if bounds.sizes:
        return list(bounds.sizes)
    high = bounds.minimum + _OPEN_SPAN if bounds.maximum is None else bounds.maximum
    middle = (bounds.minimum + high) // 2
    wanted = (bounds.minimum, high, 1, 2, middle, middle + 1)
    return list(dict.fromkeys(size for size in wanted if bounds.minimum <= size <= high))


def _some(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes[:_TRIES])) or "no other"
