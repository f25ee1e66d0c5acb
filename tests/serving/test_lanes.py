from __future__ import annotations

import asyncio
import threading
import time

from deploykit.serving.lanes import Lanes


async def run(lanes: Lanes, work) -> object:
    """The result of `work` on a lane."""
    future = asyncio.get_running_loop().create_future()
    lanes.put(work, future.set_result)
    return await future


def test_results_come_back_on_the_event_loop_that_asked() -> None:
    async def main() -> None:
        lanes = Lanes(2, name="t")
        here, seen = threading.get_ident(), []
        done = asyncio.Event()

        def arrived(result: int) -> None:
            seen.append((result, threading.get_ident()))
            done.set()

        lanes.put(threading.get_ident, arrived)
        await done.wait()
        assert seen[0][0] != here
        assert seen[0][1] == here
        lanes.close()

    asyncio.run(main())


def test_as_many_run_at_once_as_there_are_lanes() -> None:
    async def main() -> None:
        lanes = Lanes(2, name="t")
        both = threading.Barrier(2, timeout=5)  # breaks when one waits for the other to end
        assert sorted(await asyncio.gather(run(lanes, both.wait), run(lanes, both.wait))) == [0, 1]
        lanes.close()

    asyncio.run(main())


def test_the_event_loop_goes_on_meanwhile() -> None:
    async def main() -> int:
        lanes = Lanes(1, name="t")
        work = asyncio.ensure_future(run(lanes, lambda: time.sleep(0.2)))
        turns = 0
        while not work.done():
            await asyncio.sleep(0.005)
            turns += 1
        lanes.close()
        return turns

    assert asyncio.run(main()) > 5
