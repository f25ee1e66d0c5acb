from __future__ import annotations

import asyncio
import threading
import time

import pytest

from deploykit.serving.errors import NotReadyError
from deploykit.serving.lanes import Lanes


def test_results_come_with_the_time_they_waited_and_ran() -> None:
    async def main() -> None:
        lanes = Lanes(1, name="t", limit=9)
        first, second = await asyncio.gather(lanes.run(lambda: time.sleep(0.1)), lanes.run(lambda: "done"))
        assert first.compute_seconds >= 0.1
        assert second.value == "done"
        assert second.queue_seconds >= 0.09
        assert second.compute_seconds < first.compute_seconds
        lanes.close()

    asyncio.run(main())


def test_what_the_work_raises_is_raised_to_its_waiter_alone() -> None:
    async def main() -> list[object]:
        lanes = Lanes(2, name="t", limit=9)
        done = await asyncio.gather(*(lanes.run(lambda i=i: 1 // i) for i in range(3)), return_exceptions=True)
        lanes.close()
        return done

    bad, *good = asyncio.run(main())
    assert isinstance(bad, ZeroDivisionError)
    assert [timed.value for timed in good] == [1, 0]


def test_the_event_loop_goes_on_meanwhile() -> None:
    async def main() -> int:
        lanes = Lanes(1, name="t", limit=9)
        work = asyncio.ensure_future(lanes.run(lambda: time.sleep(0.2)))
        turns = 0
        while not work.done():
            await asyncio.sleep(0.005)
            turns += 1
        lanes.close()
        return turns

    assert asyncio.run(main()) > 5


def test_a_full_queue_refuses_and_a_cancelled_waiter_makes_room() -> None:
    async def main() -> None:
        gate, ran = threading.Event(), []
        lanes = Lanes(1, name="t", limit=2)
        running = asyncio.ensure_future(lanes.run(gate.wait))
        while lanes.waiting or not running:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        queued = [asyncio.ensure_future(lanes.run(lambda i=i: ran.append(i))) for i in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(NotReadyError):
            await lanes.run(lambda: ran.append("refused"))
        queued[0].cancel()
        gate.set()
        await asyncio.gather(running, *queued, return_exceptions=True)
        assert ran == [1]
        lanes.close()

    asyncio.run(main())
