"""Random inputs that a model takes, at several sizes of each dynamic dimension."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from deploykit import graph
from deploykit.data import dim_ranges, open_data
from deploykit.errors import VendorError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx_ir as ir

    from deploykit.data import DimRange, Sample
    from deploykit.reference import Reference

# Fewer sizes than this prove too little about a dynamic dimension.
_ENOUGH = 3
# Lengths and image sizes that models are made for; 576 is a speech window with its context.
_LARGEST_ALIKE = 128
_COMMON_SIZES = (16, 32, 64, 128, 224, 256, 512, 576, 640, 1024, 4096, 16000)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is to be tried on a model, told from its graph: made before a session holds its weights a second time.

    first: samples of the declared ranges. branches: whether single integers may choose between parts of the graph.
    """

    first: Sequence[Sample]
    count: int
    branches: bool
    ranges: Mapping[str, DimRange]
    seed: int

    @classmethod
    def of(cls, model: ir.Model, dims: Mapping[str, Sequence[int | None]], seed: int, samples: int) -> Self | None:
        """samples: at most, fewer without a dynamic dimension; None where an input has no rank, so no random data."""
        inputs, _ = graph.interface(model)
        if any(spec.shape is None for spec in inputs):
            return None
        varies = any(isinstance(dim, str) for spec in inputs for dim in spec.shape or ())
        count = samples if varies else min(samples, _ENOUGH)
        ranges = dim_ranges(dims)
        first = open_data(f"random:{seed}", inputs, purpose="parity", samples=count, dims=ranges, model=model)
        branches = any(node.op_type == "If" for node in graph.all_nodes(model))
        return cls(list(first), count, branches, ranges, seed)


class Probe:
    """Random inputs that the original takes, each run once.

    The declared ranges are tried first. Where the model takes fewer sizes than it declares (a minimum length, two
    dimensions that have to be equal), sizes that are common in practice are tried until enough have been found.
    """

    def __init__(self, plan: Plan, reference: Reference) -> None:
        """outputs: the original's for the sample that was yielded last; refusal: why it took none."""
        self.refusal = ""
        self._plan = plan
        self._reference = reference
        self._ranges = plan.ranges
        self._seed = plan.seed
        self.outputs: dict[str, Any] = {}

    def samples(self) -> Iterator[Sample]:
        """At most `plan.count` samples that the original takes, and some with other values of single integers."""
        first, count = self._plan.first, self._plan.count
        found = 0
        for index, sample in enumerate(itertools.chain(first, self._common_sizes(first[-1]))):
            if found == count or (found >= _ENOUGH and index >= len(first)):
                return
            if self._takes(sample):
                found += 1
                yield (taken := self._finite(sample))
                if found == 1:
                    yield from self._other_branches(taken)

    def _other_branches(self, sample: Sample) -> Iterator[Sample]:
        """The sample with other values of single integers (a rate, a mode), where the graph has If nodes."""
        if not self._plan.branches:
            return
        for name, array in sample.feeds.items():
            if array.size != 1 or array.dtype.kind not in "iu":
                continue
            for value in sorted({0, 1, int(array.item()) // 2} - {int(array.item())}):
                other = dataclasses.replace(sample, feeds={**sample.feeds, name: np.full_like(array, value)})
                if self._takes(other):
                    yield other

    def _common_sizes(self, like: Sample) -> Iterator[Sample]:
        """Samples with each undeclared dimension at common sizes, the others at 1 and 2; then all of them alike."""
        shapes = [spec.shape or () for spec in self._reference.inputs]
        symbols = dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str))
        free = [name for name in symbols if name not in self._ranges]
        fixed = {name: self._ranges[name].minimum for name in symbols if name in self._ranges}
        for size in _COMMON_SIZES if free else ():
            for rest in (1, 2):
                for name in free:
                    yield self._sized(like, {**fixed, **dict.fromkeys(free, rest), name: size})
            if size <= _LARGEST_ALIKE:
                yield self._sized(like, {**fixed, **dict.fromkeys(free, size)})

    def _sized(self, like: Sample, sizes: Mapping[str, int]) -> Sample:
        """A sample of these sizes: fresh floats, and the integers of `like` again, which the graph takes."""
        rng = np.random.default_rng([self._seed, *sizes.values()])
        feeds = {}
        for spec in self._reference.inputs:
            shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape or ())
            array = like.feeds[spec.name]
            floats = array.dtype.kind not in "iubOSU"
            values = rng.standard_normal(shape) if floats else np.resize(array, shape)
            feeds[spec.name] = values.astype(array.dtype)
        return dataclasses.replace(like, feeds=feeds, name=", ".join(f"{name}={size}" for name, size in sizes.items()))

    def _finite(self, sample: Sample) -> Sample:
        """The sample, or its absolute values where the outputs are NaN (Sqrt, Log) and those give numbers."""
        if _all_finite(self.outputs):
            return sample
        before = self.outputs
        feeds = {name: np.abs(array) if array.dtype.kind == "f" else array for name, array in sample.feeds.items()}
        other = dataclasses.replace(sample, feeds=feeds, name=f"{sample.name}, absolute")
        if self._takes(other) and _all_finite(self.outputs):
            return other
        self.outputs = before
        return sample

    def _takes(self, sample: Sample) -> bool:
        try:
            self.outputs = self._reference.predict(sample.feeds)
        except VendorError as problem:
            self.refusal = problem.message[:300]
            return False
        return True


def _all_finite(outputs: Mapping[str, Any]) -> bool:
    arrays = [np.asarray(value) for value in outputs.values() if not isinstance(value, (list, dict))]
    return all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")
