from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from deploykit.data import InputContract
from deploykit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploykit.data import Dataset

CONTRACT = InputContract.model_validate({"image": {"preprocess": {"resize": [4, 4], "scale": "1/255"}}})
IMAGE = "image:float32[n,3,4,4]"


def paint(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)


def test_each_npz_is_one_feed_in_natural_order(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    for length in (10, 2, 1):
        np.savez(tmp_path / f"frame_{length}.npz", x=np.full((1, length, 3), length, np.float32), y=length)
    data = opened(tmp_path, "x:float32[n,t,3]", purpose="accuracy")
    samples = list(data)
    assert [sample.name for sample in samples] == ["frame_1.npz", "frame_2.npz", "frame_10.npz"]
    assert [sample.feeds["x"].shape[1] for sample in samples] == [1, 2, 10]
    assert [sample.label for sample in samples] == [1, 2, 10]
    assert data.total == 3


def test_a_feed_without_its_leading_axis_gets_it_with_a_note(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((5, 3), np.float32))
    data = opened(tmp_path, "x:float32[n,t,3]")
    assert [sample.feeds["x"].shape for sample in data] == [(1, 5, 3)]
    assert [finding.code for finding in data.findings] == ["DK323"]


def test_a_later_file_that_does_not_fit_is_named(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 5, 3), np.float32))
    np.savez(tmp_path / "b.npz", x=np.zeros((1, 5, 4), np.float32))
    with pytest.raises(DataError, match=r"b\.npz"):
        list(opened(tmp_path, "x:float32[n,t,3]"))
    np.savez(tmp_path / "b.npz", wrong=np.zeros((1, 5, 3), np.float32), more=np.zeros(1))
    with pytest.raises(DataError, match=r"b\.npz has an array 'wrong'"):
        list(opened(tmp_path, "x:float32[n,t,3]"))


def test_a_label_that_one_file_lacks_is_named(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((1, 3), np.float32), y=1)
    np.savez(tmp_path / "b.npz", x=np.zeros((1, 3), np.float32))
    with pytest.raises(DataError, match=r"b\.npz has no label"):
        list(opened(tmp_path, "x:float32[n,3]"))


def test_real_sequences_of_unequal_lengths(tmp_path: Path, real: Path, opened: Callable[..., Dataset]) -> None:
    stored = np.load(real / "jvowels" / "jvowels_test.npz")
    labels = stored["y"]
    for index in range(len(labels)):
        np.savez(tmp_path / f"{index:03}.npz", x=stored[f"x{index:03}"][None], y=labels[index])
    session = onnxruntime.InferenceSession(str(real / "jvowels" / "jvowels_lstm.onnx"))
    data = opened(tmp_path, "x:float32[N,T,12]", purpose="accuracy")
    right = sum(int(session.run(None, sample.feeds)[0].argmax() == sample.label) for sample in data)
    assert right / len(labels) == pytest.approx(0.9730, abs=1e-4)


def test_class_folders_give_labels_in_order(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    paint(tmp_path / "dog" / "a.png", 255)
    paint(tmp_path / "cat" / "b.jpg", 0)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".DS_Store").write_text("not a class")
    data = opened(tmp_path, IMAGE, contract=CONTRACT, purpose="accuracy")
    samples = list(data)
    assert [(sample.name, sample.label) for sample in samples] == [("cat/b.jpg", 0), ("dog/a.png", 1)]
    np.testing.assert_allclose(samples[1].feeds["image"], np.ones((1, 3, 4, 4)), rtol=1e-6)
    assert [finding.message for finding in data.findings] == [
        f"{tmp_path.name}: classes are the sub-folders in order: 0 cat, 1 dog"
    ]


def test_folders_named_by_numbers_are_those_classes(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    for number in (2, 10):
        paint(tmp_path / str(number) / "a.png", number)
    data = opened(tmp_path, IMAGE, contract=CONTRACT)
    assert [sample.label for sample in data] == [2, 10]


def test_images_without_classes_have_no_labels(real: Path, opened: Callable[..., Dataset]) -> None:
    data = opened(real / "images", IMAGE, contract=CONTRACT)
    assert [sample.name for sample in data] == ["astronaut.png", "chelsea.png", "coffee.png"]
    assert not data.labelled


def test_images_need_a_contract(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    paint(tmp_path / "a.png", 0)
    with pytest.raises(DataError, match="no preprocessing") as caught:
        opened(tmp_path, IMAGE)
    assert caught.value.code == "DK310"


def test_images_need_one_input(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    paint(tmp_path / "a.png", 0)
    with pytest.raises(DataError, match="feed one input"):
        opened(tmp_path, IMAGE, "other:float32[n]", contract=CONTRACT)


def test_a_contract_whose_result_does_not_fit_is_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    paint(tmp_path / "a.png", 0)
    with pytest.raises(DataError, match=r"shape \(1, 3, 4, 4\)"):
        list(opened(tmp_path, "image:float32[n,3,5,5]", contract=CONTRACT))


def test_raw_images_in_an_npz_go_through_the_contract(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    np.savez(tmp_path / "x.npz", image=np.full((2, 8, 8, 3), 51, np.uint8), y=[0, 1])
    samples = list(opened(tmp_path / "x.npz", IMAGE, contract=CONTRACT))
    assert [sample.label for sample in samples] == [0, 1]
    np.testing.assert_allclose(samples[0].feeds["image"], np.full((1, 3, 4, 4), 0.2), rtol=1e-6)


def test_an_empty_folder_is_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    with pytest.raises(DataError, match="has no samples") as caught:
        opened(tmp_path, IMAGE, purpose="calibration")
    assert caught.value.code == "DK303"


def test_a_mixed_folder_is_refused(tmp_path: Path, opened: Callable[..., Dataset]) -> None:
    paint(tmp_path / "a.png", 0)
    np.savez(tmp_path / "a.npz", x=np.zeros(1))
    with pytest.raises(DataError, match="cannot be told"):
        opened(tmp_path, IMAGE, contract=CONTRACT)
