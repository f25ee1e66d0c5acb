"""Dynamic batching: requests that wait at the same time are computed in one call of the engine.

Runs on the event loop; the engine's calls run on `Lanes`. Nothing here knows a protocol or an engine.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.serving.errors import ExpiredError, NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deploykit.runtime import Feeds, Outputs
    from deploykit.serving.lanes import Lanes

# The level of requests that ask for none; 1 goes before it.
USUAL_PRIORITY = 2

# Requests of one key have the same shapes behind the batch dimension, and the same dtypes.
Key = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How requests are put together.

    max_rows: of one call; 1 computes every request alone. max_delay: seconds that the oldest request may wait for
    others while a lane is free. preferred: sizes in rows that are computed at once, before the delay is over.
    """

    max_rows: int = 1
    max_delay: float = 0.0
    preferred: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """One request's outputs, with the seconds in the queue and in the engine.

    batch_rows: rows of the engine's call. first: whether this request stands for the call, in counts of calls.
    """

    outputs: Outputs
    queue_seconds: float
    compute_seconds: float
    batch_rows: int
    first: bool


@dataclasses.dataclass(slots=True, eq=False)
class _Ticket:
    feeds: Feeds
    rows: int
    future: asyncio.Future[Computed]
    entered: float
    priority: int
    expiry: asyncio.TimerHandle | None = None


class Batcher:
    """The queue before a model's lanes. Use from one event loop."""

    def __init__(
        self,
        lanes: Lanes,
        call: Callable[[Feeds], Outputs],
        policy: BatchPolicy,
        batched: tuple[str, ...],
        *,
        limit: int,
    ) -> None:
        """call: the engine, from a lane's thread. batched: inputs whose first dimension is the batch, () for none.

        limit: requests that may wait; one more is refused.
        """
        self._lanes = lanes
        self._call = call
        self._batched = batched
        self.policy = policy if batched else BatchPolicy()
        self._limit = limit
        self._busy = 0
        self._waiting = 0
        self._groups: dict[Key, collections.deque[_Ticket]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pumping = False

    @property
    def waiting(self) -> int:
        """Requests that no lane has taken yet."""
        return self._waiting

    async def predict(self, feeds: Feeds, *, priority: int = 0, timeout: float | None = None) -> Computed:
        """The outputs of one request.

        priority: 1 goes before those that ask for none (0), greater numbers after them. timeout: seconds that it may
        wait; None: any. Raises NotReadyError when too many wait, ExpiredError after the timeout, and what the engine
        raises on this request alone: a failed call is repeated request by request.
        """
        if self._waiting >= self._limit:
            raise NotReadyError(f"{self._limit} requests are waiting already", hint="try again in a second")
        loop = asyncio.get_running_loop()
        rows = int(feeds[self._batched[0]].shape[0]) if self._batched else 1
        ticket = _Ticket(feeds, rows, loop.create_future(), time.perf_counter(), priority or USUAL_PRIORITY)
        key = self._key(feeds, ticket)
        self._groups.setdefault(key, collections.deque()).append(ticket)
        self._waiting += 1
        if timeout is not None:
            ticket.expiry = loop.call_later(timeout, self._expire, key, ticket)
        # After what else has arrived in this turn of the loop: it may be one call.
        if not self._pumping:
            self._pumping = True
            loop.call_soon(self._pump)
        try:
            return await ticket.future
        except asyncio.CancelledError:
            self._drop(key, ticket)
            raise

    def _key(self, feeds: Feeds, ticket: _Ticket) -> Key:
        if self.policy.max_rows <= 1:
            return (ticket.priority,)
        shapes = (part for name, array in sorted(feeds.items()) for part in (array.dtype.str, array.shape[1:]))
        return (ticket.priority, *shapes)

    def _pump(self) -> None:
        """Gives free lanes what is due, and sets a timer for what may still wait for company."""
        self._pumping = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.perf_counter()
        while self._busy < self._lanes.count and self._groups:
            due = min(self._due(now), default=None)
            if due is None:
                self._wake(min(group[0].entered for group in self._groups.values()) + self.policy.max_delay)
                break
            self._dispatch(due[-1])

    def _wake(self, when: float) -> None:
        delay = max(0.0, when - time.perf_counter())
        self._timer = asyncio.get_running_loop().call_later(delay, self._pump)

    def _due(self, now: float) -> Iterator[tuple[int, float, int, Key]]:
        """The groups whose next batch need not wait: by priority, then the oldest; the number breaks ties."""
        for number, (key, group) in enumerate(self._groups.items()):
            head = group[0]
            rows = sum(ticket.rows for ticket in self._next(group))
            full = rows >= self.policy.max_rows or rows in self.policy.preferred
            if full or now - head.entered >= self.policy.max_delay:
                yield head.priority, head.entered, number, key

    def _next(self, group: collections.deque[_Ticket]) -> list[_Ticket]:
        """What the next call of a group would hold: one request at least, however large it is."""
        chosen: list[_Ticket] = []
        rows = 0
        for ticket in group:
            if chosen and rows + ticket.rows > self.policy.max_rows:
                break
            chosen.append(ticket)
            rows += ticket.rows
        return chosen

    def _expire(self, key: Key, ticket: _Ticket) -> None:
        """The time of a request that still waits is over."""
        if self._drop(key, ticket) and not ticket.future.done():
            waited = time.perf_counter() - ticket.entered
            ticket.future.set_exception(
                ExpiredError(
                    f"the request has waited for {waited * 1e3:.0f} ms, longer than its timeout allows",
                    hint="the server is busy: ask again later, or allow more",
                )
            )

    def _drop(self, key: Key, ticket: _Ticket) -> bool:
        """Takes a request out of the queue; False when a lane has it already."""
        group = self._groups.get(key)
        if group is None or ticket not in group:
            return False
        group.remove(ticket)
        self._waiting -= 1
        self._set(key, group)
        return True

    def _set(self, key: Key, group: collections.deque[_Ticket]) -> None:
        if group:
            self._groups[key] = group
        else:
            del self._groups[key]

    def _dispatch(self, key: Key) -> None:
        group = self._groups[key]
        tickets = self._next(group)
        for ticket in tickets:
            group.popleft()
            if ticket.expiry is not None:
                ticket.expiry.cancel()
        self._set(key, group)
        self._waiting -= len(tickets)
        self._busy += 1
        started = time.perf_counter()
        self._lanes.put(
            lambda: self._computed([ticket.feeds for ticket in tickets], [ticket.rows for ticket in tickets]),
            lambda results: self._settle(tickets, results, started),
        )

    def _computed(self, feeds: Sequence[Feeds], rows: Sequence[int]) -> list[tuple[Outputs | Exception, float, int]]:
        """On a lane: for each request its outputs or its fault, the call's seconds and its rows."""
        started = time.perf_counter()
        try:
            together = feeds[0] if len(feeds) == 1 else joined(feeds)
            outputs = self._call(together)
            parts = [outputs] if len(feeds) == 1 else _split(outputs, rows)
        except Exception as problem:  # whatever the engine raises belongs to one of these requests
            if len(feeds) == 1:
                return [(problem, time.perf_counter() - started, rows[0])]
            return [part for one, size in zip(feeds, rows, strict=True) for part in self._computed([one], [size])]
        seconds, total = time.perf_counter() - started, sum(rows)
        return [(part, seconds, total) for part in parts]

    def _settle(
        self,
        tickets: Sequence[_Ticket],
        results: Sequence[tuple[Outputs | Exception, float, int]],
        started: float,
    ) -> None:
        """Back on the event loop."""
        self._busy -= 1
        for position, (ticket, (result, seconds, rows)) in enumerate(zip(tickets, results, strict=True)):
            if ticket.future.done():  # its client has left
                continue
            if isinstance(result, Exception):
                ticket.future.set_exception(result)
            else:
                first = position == 0 or rows == ticket.rows
                ticket.future.set_result(Computed(result, started - ticket.entered, seconds, rows, first))
        self._pump()

    def close(self) -> None:
        """Refuses what waits; calls that run go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for group in self._groups.values():
            for ticket in group:
                if not ticket.future.done():
                    ticket.future.set_exception(NotReadyError("the model was unloaded", hint="ask again"))
        self._groups.clear()
        self._waiting = 0


def joined(feeds: Sequence[Feeds]) -> Feeds:
    """The rows of several requests after each other."""
    return {name: np.concatenate([one[name] for one in feeds]) for name in feeds[0]}


def _split(outputs: Outputs, rows: Sequence[int]) -> list[Outputs]:
    """Each request's rows of every output. ValueError when the engine's call did not give a row for a row."""
    ends = np.cumsum(rows)
    for name, array in outputs.items():
        if not array.ndim or array.shape[0] != ends[-1]:
            raise ValueError(f"output {name!r} has shape {list(array.shape)} for {ends[-1]} rows")
    starts = [0, *ends[:-1]]
    return [{name: array[a:b] for name, array in outputs.items()} for a, b in zip(starts, ends, strict=True)]
