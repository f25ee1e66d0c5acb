"""Requests computed together: which, when, and that each gets its own answer."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploykit.serving.batching import Batcher, BatchPolicy
from deploykit.serving.errors import ExpiredError, NotReadyError
from deploykit.serving.lanes import Lanes


class Engine:
    """Doubles; keeps the shapes of its calls; refuses negative values, and waits at a gate while it is shut."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.values: list[list[float]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, feeds):
        assert self.gate.wait(10)
        self.calls.append(feeds["x"].shape)
        self.values.append(feeds["x"].reshape(-1).tolist())
        if (feeds["x"] < 0).any():
            raise ValueError("negative")
        return {"y": feeds["x"] * 2}


def rows(*values, width=1):
    return {"x": np.repeat(np.asarray(values, np.float32)[:, None], width, axis=1)}


def run(scenario, policy, *, lanes=1, limit=99, batched=("x",)):
    """Runs `scenario(batcher, engine)`; the engine."""

    async def main():
        engine = Engine()
        pool = Lanes(lanes, name="t")
        batcher = Batcher(pool, engine, policy, batched, limit=limit)
        try:
            await scenario(batcher, engine)
        finally:
            engine.gate.set()
            batcher.close()
            pool.close()
        return engine

    return asyncio.run(main())


async def ask(batcher, *feeds, **more):
    return await asyncio.gather(*(batcher.predict(one, **more) for one in feeds), return_exceptions=True)


def test_what_waits_together_is_one_call_and_each_gets_its_rows():
    async def scenario(batcher, engine):
        made = await ask(batcher, rows(1), rows(2, 3), rows(4))
        assert [one.outputs["y"].tolist() for one in made] == [[[2]], [[4], [6]], [[8]]]
        assert [one.batch_rows for one in made] == [4, 4, 4]
        assert [one.first for one in made] == [True, False, False]

    assert run(scenario, BatchPolicy(8)).calls == [(4, 1)]


def test_no_call_has_more_rows_than_allowed_but_for_a_request_that_has():
    async def scenario(batcher, engine):
        await ask(batcher, rows(1), rows(2, 3), rows(4), rows(*range(5)))

    assert run(scenario, BatchPolicy(3)).calls == [(3, 1), (1, 1), (5, 1)]


def test_one_row_a_call_computes_everything_alone():
    async def scenario(batcher, engine):
        await ask(batcher, rows(1), rows(2))

    assert run(scenario, BatchPolicy(1)).calls == [(1, 1), (1, 1)]
    assert run(scenario, BatchPolicy(8), batched=()).calls == [(1, 1), (1, 1)]


def test_other_shapes_and_types_are_not_merged():
    async def scenario(batcher, engine):
        other = {"x": np.ones((1, 1), np.float64)}
        made = await ask(batcher, rows(1), rows(2, width=2), other, rows(3))
        assert made[1].outputs["y"].tolist() == [[4, 4]]
        assert made[2].outputs["y"].dtype == np.float64

    assert sorted(run(scenario, BatchPolicy(8)).calls) == [(1, 1), (1, 2), (2, 1)]


def test_a_bad_request_fails_alone():
    async def scenario(batcher, engine):
        made = await ask(batcher, *(rows(value) for value in (1, 2, -1, 3, 4, 5, 6, 7, 8)))
        assert isinstance(made.pop(2), ValueError)
        assert [float(one.outputs["y"][0, 0]) for one in made] == [2, 4, 6, 8, 10, 12, 14, 16]
        assert all(one.batch_rows == 1 and one.first for one in made)

    assert run(scenario, BatchPolicy(16)).calls == [(9, 1), *[(1, 1)] * 9]


def test_an_engine_that_does_not_keep_rows_is_asked_one_by_one():
    async def main():
        pool = Lanes(1, name="t")
        batcher = Batcher(pool, lambda f: {"y": f["x"].sum(0, keepdims=True)}, BatchPolicy(8), ("x",), limit=9)
        made = await ask(batcher, rows(1), rows(2))
        pool.close()
        return [one.outputs["y"].tolist() for one in made]

    assert asyncio.run(main()) == [[[1]], [[2]]]


def test_the_delay_waits_for_company_and_no_longer():
    async def scenario(batcher, engine):
        first = asyncio.ensure_future(batcher.predict(rows(1)))
        await asyncio.sleep(0.05)
        assert not first.done()
        assert batcher.waiting == 1
        second = await batcher.predict(rows(2))
        assert (await first).batch_rows == second.batch_rows == 2
        assert (await first).queue_seconds >= 0.2
        assert second.queue_seconds < (await first).queue_seconds

    assert run(scenario, BatchPolicy(8, max_delay=0.25)).calls == [(2, 1)]


def test_a_full_batch_and_a_preferred_size_do_not_wait():
    async def scenario(batcher, engine):
        async with asyncio.timeout(5):
            await ask(batcher, rows(1), rows(2))
            await ask(batcher, *(rows(value) for value in range(4)))

    assert run(scenario, BatchPolicy(4, max_delay=60, preferred=(2,))).calls == [(2, 1), (4, 1)]


def test_a_group_that_waits_for_company_does_not_hold_up_a_full_one():
    async def scenario(batcher, engine):
        lonely = asyncio.ensure_future(batcher.predict(rows(1, width=3)))
        await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await ask(batcher, rows(1), rows(2))
        assert not lonely.done()
        lonely.cancel()

    run(scenario, BatchPolicy(2, max_delay=60))


def test_priorities_go_first_and_the_older_of_equal_ones():
    async def scenario(batcher, engine):
        engine.gate.clear()
        running = asyncio.ensure_future(batcher.predict(rows(0)))
        await asyncio.sleep(0.02)
        order = [(1, 3), (2, 0), (3, 1), (4, 2), (5, 1)]  # value, priority; 0 counts as 2
        waiting = [asyncio.ensure_future(batcher.predict(rows(value), priority=level)) for value, level in order]
        await asyncio.sleep(0.02)
        engine.gate.set()
        await asyncio.gather(running, *waiting)

    assert run(scenario, BatchPolicy(1)).values == [[0], [3], [5], [2], [4], [1]]


def test_a_full_queue_refuses_and_a_client_that_left_makes_room():
    async def scenario(batcher, engine):
        engine.gate.clear()
        running = asyncio.ensure_future(batcher.predict(rows(0)))
        await asyncio.sleep(0.02)
        queued = [asyncio.ensure_future(batcher.predict(rows(value))) for value in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(NotReadyError, match="2 requests are waiting"):
            await batcher.predict(rows(3))
        queued[0].cancel()
        await asyncio.sleep(0)
        assert batcher.waiting == 1
        engine.gate.set()
        await asyncio.gather(running, *queued, return_exceptions=True)

    assert run(scenario, BatchPolicy(1), limit=2).values == [[0], [2]]


def test_a_timeout_in_the_queue_is_an_error_and_one_while_computing_is_not():
    async def scenario(batcher, engine):
        engine.gate.clear()
        running = asyncio.ensure_future(batcher.predict(rows(0), timeout=0.05))
        await asyncio.sleep(0.02)
        with pytest.raises(ExpiredError, match="longer than its timeout"):
            await batcher.predict(rows(1), timeout=0.05)
        assert batcher.waiting == 0
        engine.gate.set()
        assert (await running).outputs["y"].tolist() == [[0]]

    assert run(scenario, BatchPolicy(1)).values == [[0]]


def test_closing_tells_those_who_wait():
    async def scenario(batcher, engine):
        engine.gate.clear()
        running = asyncio.ensure_future(batcher.predict(rows(0)))
        await asyncio.sleep(0.02)
        waiting = asyncio.ensure_future(batcher.predict(rows(1)))
        await asyncio.sleep(0)
        batcher.close()
        with pytest.raises(NotReadyError, match="unloaded"):
            await waiting
        engine.gate.set()
        assert (await running).batch_rows == 1

    run(scenario, BatchPolicy(1))


@settings(deadline=None, max_examples=40)
@given(
    requests=st.lists(
        st.tuples(st.lists(st.integers(-1, 9), min_size=1, max_size=4), st.integers(1, 2)), min_size=1, max_size=12
    ),
    most=st.integers(1, 6),
    lanes=st.integers(1, 3),
    delay=st.sampled_from([0.0, 0.002]),
)
def test_a_batched_answer_is_the_single_answer(requests, most, lanes, delay):
    async def scenario(batcher, engine):
        made = await ask(batcher, *(rows(*values, width=width) for values, width in requests))
        for (values, width), one in zip(requests, made, strict=True):
            if min(values) < 0:
                assert isinstance(one, ValueError)
            else:
                np.testing.assert_array_equal(one.outputs["y"], rows(*values, width=width)["x"] * 2)
        assert batcher.waiting == 0

    engine = run(scenario, BatchPolicy(most, delay), lanes=lanes)
    assert all(shape[0] <= max(most, *(len(values) for values, _ in requests)) for shape in engine.calls)
