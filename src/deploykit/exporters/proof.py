"""What every proof of an export shares: the source as the reference side, and how many sizes it is run at."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from deploykit.data import Sample
from deploykit.exporters.diagnosis import reason
from deploykit.report import warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from deploykit.report import Finding
    from deploykit.runtime import Feeds, Outputs

# Each dimension at its minimum, at its maximum, and at values between (see data.random_data); fixed shapes need fewer.
POINTS = 6
POINTS_FIXED = 4


class SourceSide:
    """The source as the reference side: samples that it refuses are left out, each sample is run once.

    run: outputs by name in the source's framework. name: in messages ("the module").
    """

    def __init__(self, run: Callable[[Feeds], Outputs], name: str) -> None:
        self.refused: list[Finding] = []
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
            yield sample

    def predict(self, feeds: Feeds) -> Outputs:
        """What the source gave for the sample that was yielded last."""
        del feeds
        return self._outputs


def not_compared(finding: Finding) -> dict[str, Any]:
    """The proof's result when there was none, and why."""
    return {"outputs": [], "samples": 0, "execution": "none", "engines": {}, "findings": [finding.as_dict()]}
