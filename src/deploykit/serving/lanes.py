"""Lanes: the threads that inference runs on, so that the event loop never waits for an engine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
# By this the command line finds the threads that may still be in an engine when the process ends.
THREAD_PREFIX = "deploykit-serve-"
_JOIN_SECONDS = 0.5


async def apart(work: Callable[[], T], *, name: str) -> T:
    """Runs `work` on a daemon thread of its own and gives its result, or raises what it raised.

    For what may take long: asyncio's own threads are waited for when the loop ends, however long they take.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, problem: BaseException | None) -> None:
        if future.done():  # nobody waits any more
            return
        if problem is not None:
            future.set_exception(problem)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, problem = None, None
        try:
            result = work()
        except BaseException as raised:  # raised again where it is awaited
            problem = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=run, name=f"{THREAD_PREFIX}{name}", daemon=True).start()
    return await future


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], Any]
    done: Callable[[Any], None]
    loop: asyncio.AbstractEventLoop


class Lanes:
    """A fixed number of threads and one queue before them; who fills it keeps it short.

    The threads are daemons: a stuck engine must not keep a process alive that was told twice to stop.
    """

    def __init__(self, count: int, *, name: str) -> None:
        """count: threads."""
        self.count = count
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{THREAD_PREFIX}{name}-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Runs `work` on the next free thread, and `done` with its result on the event loop that asks for it.

        work raises nothing: what can go wrong is part of its result.
        """
        self._queue.put(_Job(work, done, asyncio.get_running_loop()))

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            result = job.work()
            # The loop is closed when the server was stopped by force.
            with contextlib.suppress(RuntimeError):
                job.loop.call_soon_threadsafe(job.done, result)

    def close(self) -> None:
        """Ends the threads after the jobs that they have, and waits a moment for it."""
        for _ in self._threads:
            self._queue.put(None)
        until = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
