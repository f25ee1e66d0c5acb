import dataclasses

import pytest

from deploykit.data import Sample
from deploykit.data.holdout import calibrating, held_out, verifying, widened


@dataclasses.dataclass
class FakeDataset:
    total: int | None


def request(samples=None, contract=None):
    return {"samples": samples, "contract": contract}


SAMPLES = [Sample({}, None, str(index)) for index in range(10)]


@pytest.mark.parametrize(
    ("total", "asked", "held"),
    [(10, None, 0), (63, None, 0), (64, None, 8), (200, None, 16), (528, None, 16), (8, 8, 0), (24, 8, 16), (10, 8, 2)],
)
def test_how_many_are_held_out(total, asked, held):
    positions = held_out(FakeDataset(total), request(asked))
    assert len(positions) == held
    assert all(0 <= position < total for position in positions)


def test_nothing_is_held_out_where_state_is_carried_or_the_total_is_unknown():
    carried = request(contract={"state": {"carry": "stateN"}})
    assert held_out(FakeDataset(500), carried) == frozenset()
    assert held_out(FakeDataset(None), request()) == frozenset()
    assert widened(carried)["samples"] == 512
    assert widened(request(8))["samples"] == 24


def test_a_sample_calibrates_or_verifies_never_both():
    held = frozenset({2, 7})
    calibrated = [sample.name for sample in calibrating(SAMPLES, held)]
    verified = [sample.name for sample in verifying(SAMPLES, held, 16)]
    assert verified == ["2", "7"]
    assert sorted(calibrated + verified) == [sample.name for sample in SAMPLES]


def test_without_held_out_samples_the_first_ones_verify():
    assert [sample.name for sample in verifying(SAMPLES, frozenset(), 3)] == ["0", "1", "2"]
