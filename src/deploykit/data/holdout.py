"""Which samples calibrate and which verify: the evidence should come from data that did not set the ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.data.dataset import spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from deploykit.data import Dataset, Sample

DEFAULT_SAMPLES = 512
HELD_OUT = 16
# With fewer samples than this, each is worth more in calibration.
ENOUGH = 64


def carried(request: Mapping[str, Any]) -> dict[str, str]:
    """{input: output} of the inputs that take an output of the previous call."""
    rules: Mapping[str, Any] = request["contract"] or {}
    return {name: rule["carry"] for name, rule in rules.items() if rule.get("carry")}


def widened(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request with room for the samples that are held out; samples that carry state can't be taken apart."""
    asked = request["samples"] or DEFAULT_SAMPLES
    return {**request, "samples": asked if carried(request) else asked + HELD_OUT}


def held_out(dataset: Dataset, request: Mapping[str, Any]) -> frozenset[int]:
    """Positions in the widened dataset that do not calibrate; empty when there are too few samples.

    What lies beyond the number that was asked for; otherwise, when none was, an eighth, at most 16, of 64 or more.
    """
    total, asked = dataset.total, request["samples"]
    if total is None or carried(request):
        return frozenset()
    count = max(total - (asked or DEFAULT_SAMPLES), 0)
    if count == 0 and asked is None and total >= ENOUGH:
        count = min(HELD_OUT, total // 8)
    return frozenset(spread(total, count)) if count else frozenset()


def calibrating(samples: Iterable[Sample], held: frozenset[int]) -> Iterator[Sample]:
    """The samples that calibrate."""
    return (sample for index, sample in enumerate(samples) if index not in held)


def verifying(samples: Iterable[Sample], held: frozenset[int], limit: int) -> Iterator[Sample]:
    """The samples that verify: those held out, or the first `limit` ones where none is."""
    for index, sample in enumerate(samples):
        if (held and index > max(held)) or (not held and index >= limit):
            return
        if not held or index in held:
            yield sample
