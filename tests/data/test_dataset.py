from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploykit.data import (
    CarriedState,
    InputContract,
    open_request,
    parse_input,
)
from deploykit.data.dataset import spread
from deploykit.errors import DataError, InvalidFileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploykit.data import Dataset

CARRY = InputContract.model_validate({"state": {"carry": "stateN"}})


@given(st.integers(1, 500), st.data())
def test_the_spread_is_even_ascending_and_within(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, total))
    indices = spread(total, count)
    assert len(set(indices)) == count
    assert indices == sorted(indices)
    assert 0 <= indices[0] <= indices[-1] < total
    gaps = np.diff([-1 - (total - 1 - indices[-1]), *indices])
    assert gaps.max(initial=0) - gaps.min(initial=10**9) <= 1 or count == 1


def test_fewer_samples_than_asked_for_are_all_taken(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2), np.float32))
    data = opened(tmp_path / "x.npz", "x:float32[n,2]", samples=16)
    assert len(list(data)) == data.total == 3


@pytest.mark.parametrize("compressed", [False, True])
def test_spread_samples_keep_their_labels(tmp_path: Path, opened: Callable[..., Dataset], compressed: bool) -> None:
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "x.npz", x=np.arange(100, dtype=np.float32)[:, None], y=np.arange(100))
    data = opened(tmp_path / "x.npz", "x:float32[n,1]", samples=7, purpose="calibration")
    found = [(int(sample.feeds["x"][0, 0]), int(sample.label), sample.name) for sample in data]
    assert found == [(index, index, f"sample {index}") for index in spread(100, 7)]


def test_labels_are_needed_for_accuracy(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2), np.float32))
    with pytest.raises(DataError, match="no labels") as caught:
        opened(tmp_path / "x.npz", "x:float32[n,2]", purpose="accuracy")
    assert caught.value.code == "DK307"


def test_a_label_name_that_is_nowhere_is_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2), np.float32))
    with pytest.raises(DataError, match="no labels named 'kind'"):
        opened(tmp_path / "x.npz", "x:float32[n,2]", label="kind")


def test_other_files_and_missing_ones_are_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    (tmp_path / "x.txt").write_text("1 2 3")
    with pytest.raises(DataError, match="not a kind of data"):
        opened(tmp_path / "x.txt", "x:float32[n]")
    with pytest.raises(InvalidFileError, match="no such data file"):
        opened(tmp_path / "absent.npz", "x:float32[n]")
    with pytest.raises(InvalidFileError, match="no such data file"):
        opened("nowhere", "x:float32[n]")


def test_no_samples_cannot_be_asked_for(opened: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match="0 samples"):
        opened("random", "x:float32[n]", samples=0)


def test_carried_inputs_start_with_zeros_and_are_taken_in_order(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "x.npz", input=np.arange(8, dtype=np.float32).reshape(4, 2))
    inputs = ("input:float32[batch,2]", "state:float32[2,batch,3]")
    data = opened(tmp_path / "x.npz", *inputs, contract=CARRY, samples=2)
    samples = list(data)
    assert [sorted(sample.feeds) for sample in samples] == [["input", "state"], ["input"]]
    np.testing.assert_array_equal(samples[0].feeds["state"], np.zeros((2, 1, 3), np.float32))
    assert [sample.name for sample in samples] == ["sample 0", "sample 1"]
    assert [finding.code for finding in data.findings] == ["DK329"]
    list(data)
    assert len(data.findings) == 1


def test_state_is_carried_and_reset() -> None:
    state = CarriedState({"state": "stateN"})
    with pytest.raises(DataError, match="first feed"):
        state.fill({"x": np.zeros(1)})
    assert state.fill({"state": np.zeros(2)})["state"].tolist() == [0, 0]
    state.update({"y": np.zeros(1), "stateN": np.ones(2)})
    assert state.fill({"x": np.zeros(1)})["state"].tolist() == [1, 1]
    assert state.fill({"state": np.full(2, 7)})["state"].tolist() == [7, 7]
    with pytest.raises(DataError, match="which the model does not have"):
        state.update({"y": np.zeros(1)})


def test_a_real_stream_needs_its_state(tmp_path: Path, real: Path, opened: Callable[..., Dataset]) -> None:
    stream = np.load(real / "silero_vad" / "vad_stream_dev.npz")
    sound, truth = stream["x"].astype(np.float32) / 32768, stream["y"]
    frames = np.pad(sound, (64, 0))[np.arange(len(truth))[:, None] * 512 + np.arange(576)]
    np.savez(tmp_path / "vad.npz", input=frames, sr=np.int64(16000), y=truth)
    session = onnxruntime.InferenceSession(str(real / "silero_vad" / "silero_vad.onnx"))
    inputs = ("input:float32[batch,samples]", "state:float32[2,batch,128]", "sr:int64[]")
    data = opened(tmp_path / "vad.npz", *inputs, contract=CARRY, purpose="accuracy")
    state, right, scored = CarriedState(CARRY.carry), 0, 0
    names = [output.name for output in session.get_outputs()]
    for sample in data:
        outputs = dict(zip(names, session.run(None, state.fill(sample.feeds)), strict=True))
        state.update(outputs)
        if sample.label >= 0:
            scored += 1
            right += int((outputs["output"].item() > 0.5) == bool(sample.label))
    assert scored == 632
    assert right / scored == pytest.approx(0.9446, abs=5e-4)


def test_labelled_digits_have_their_published_accuracy(real: Path, opened: Callable[..., Dataset]) -> None:
    session = onnxruntime.InferenceSession(str(real / "digits" / "digits_cnn.onnx"))
    data = opened(real / "digits" / "digits_cnn_test.npz", "input:float32[N,1,8,8]", purpose="accuracy")
    right = sum(int(session.run(None, sample.feeds)[0].argmax() == sample.label) for sample in data)
    assert right / 450 == pytest.approx(0.9933, abs=1e-4)


def test_a_request_is_opened_from_json(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input=np.arange(8, dtype=np.float32).reshape(4, 2), kind=np.arange(4))
    request = {
        "source": str(tmp_path / "x.npz"),
        "samples": 3,
        "seed": 0,
        "label": "kind",
        "dims": {"batch": [1, None]},
        "contract": CARRY.as_dict(),
        "purpose": "accuracy",
    }
    request = json.loads(json.dumps(request))
    inputs = (parse_input("input:float32[batch,2]"), parse_input("state:float32[2,batch,3]"))
    data = open_request(request, inputs)
    assert [sample.label for sample in data] == [0, 1, 2]
