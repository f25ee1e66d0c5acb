"""What a model has done since it was loaded, in the form of the protocol's statistics extension.

Source: Triton's protocol extensions, extension_statistics.md; times in nanoseconds, sums and not means.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploykit.serving.batching import Computed


# Batch sizes that are told apart: clients choose them, and must not grow this without end.
_SIZES = 256


@dataclasses.dataclass(slots=True)
class Total:
    """How often, and for how long altogether."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        """One more."""
        self.count += 1
        self.ns += int(seconds * 1e9)


class Statistics:
    """The counts of one version of a model."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.success = Total()
        self.fail = Total()
        self.queue = Total()
        self.compute = Total()
        self.last = 0
        self.rows = 0
        self.calls = 0
        self._batches: dict[int, Total] = {}

    def answered(self, seconds: float, rows: int, computed: Computed) -> None:
        """A request of so many rows; its call of the engine may have had more, and counts once."""
        self.last = int(time.time() * 1000)
        self.rows += rows
        self.success.add(seconds)
        self.queue.add(computed.queue_seconds)
        self.compute.add(computed.compute_seconds)
        if computed.first:
            self.calls += 1
            size = max(rows, computed.batch_rows)
            if size in self._batches or len(self._batches) < _SIZES:
                self._batches.setdefault(size, Total()).add(computed.compute_seconds)

    def failed(self, seconds: float) -> None:
        """A request that got no answer."""
        self.fail.add(seconds)

    def as_dict(self, name: str, version: str) -> dict[str, Any]:
        """A row of `model_stats`."""
        nothing = dataclasses.asdict(Total())
        parts = {
            "success": self.success,
            "fail": self.fail,
            "queue": self.queue,
            "compute_infer": self.compute,
        }
        return {
            "name": name,
            "version": version,
            "last_inference": self.last,
            "inference_count": self.rows,
            "execution_count": self.calls,
            "inference_stats": {
                **{key: dataclasses.asdict(total) for key, total in parts.items()},
                # Reading and writing tensors is part of the request's own time here.
                "compute_input": nothing,
                "compute_output": nothing,
            },
            "batch_stats": [
                {
                    "batch_size": rows,
                    "compute_input": nothing,
                    "compute_infer": dataclasses.asdict(total),
                    "compute_output": nothing,
                }
                for rows, total in sorted(self._batches.items())
            ],
        }
