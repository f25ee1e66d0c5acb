"""Lanes: the threads that inference runs on, so that the event loop never waits for an engine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from deploykit.serving.errors import NotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
# By this the command line finds the threads that may still be in an engine when the process ends.
THREAD_PREFIX = "deploykit-serve-"
_JOIN_SECONDS = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """A result with the seconds it waited for a lane and the seconds it ran."""

    value: T
    queue_seconds: float
    compute_seconds: float


@dataclasses.dataclass(slots=True)
class _Job:
    work: Callable[[], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    entered: float


class Lanes:
    """A fixed number of threads and one bounded queue before them.

    The threads are daemons: a stuck engine must not keep a process alive that was told twice to stop.
    """

    def __init__(self, count: int, *, name: str, limit: int) -> None:
        """count: threads. limit: jobs that may wait; one more is refused."""
        self.count = count
        self._limit = limit
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{THREAD_PREFIX}{name}-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that no thread has taken yet."""
        return self._queue.qsize()

    async def run(self, work: Callable[[], T]) -> Timed[T]:
        """Runs `work` on the next free thread and waits for it; what it raises is raised here.

        Raises NotReadyError when too many wait already. A job whose waiter was cancelled before it began is dropped.
        """
        if self._queue.qsize() >= self._limit:
            raise NotReadyError(f"{self._limit} requests are waiting already", hint="try again in a second")
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop, time.perf_counter())
        self._queue.put(job)
        timed: Timed[T] = await job.future
        return timed

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            if job.future.cancelled():
                continue
            started = time.perf_counter()
            try:
                value, problem = job.work(), None
            except Exception as raised:  # whatever an engine raises belongs to the request that waits for it
                value, problem = None, raised
            done = Timed(value, started - job.entered, time.perf_counter() - started)
            # The loop is closed when the server was stopped by force.
            with contextlib.suppress(RuntimeError):
                job.loop.call_soon_threadsafe(_settle, job.future, done, problem)

    def close(self) -> None:
        """Ends the threads after the jobs that they have, and waits a moment for it."""
        for _ in self._threads:
            self._queue.put(None)
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))


def _settle(future: asyncio.Future[Any], done: Timed[Any], problem: Exception | None) -> None:
    if future.cancelled():
        return
    if problem is not None:
        future.set_exception(problem)
    else:
        future.set_result(done)
