"""Metrics against scikit-learn and plain numpy."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn import metrics as reference

from deploykit.errors import DataError, UsageError
from deploykit.evaluation import METRICS, drop, make_metric

RNG = np.random.default_rng(3)
SCORES = RNG.standard_normal((200, 7)).astype(np.float32)
LABELS = RNG.integers(0, 7, 200)


def over(name, outputs, labels):
    metric = make_metric(name)
    for output, label in zip(outputs, labels, strict=True):
        metric.add({"y": output[None]}, label)
    return metric


def test_top1_and_f1_and_top5_as_scikit_learn_counts_them():
    predicted = SCORES.argmax(axis=1)
    assert over("top1", SCORES, LABELS).value() == pytest.approx(100 * reference.accuracy_score(LABELS, predicted))
    assert over("f1", SCORES, LABELS).value() == pytest.approx(reference.f1_score(LABELS, predicted, average="macro"))
    assert over("top5", SCORES, LABELS).value() == pytest.approx(
        100 * reference.top_k_accuracy_score(LABELS, SCORES, k=5)
    )


def test_binary_probability_auc_and_f1():
    probability = RNG.random((300, 1)).round(2)  # rounded: ties occur
    labels = (RNG.random(300) < probability[:, 0]).astype(int)
    assert over("auc", probability, labels).value() == pytest.approx(reference.roc_auc_score(labels, probability[:, 0]))
    said = probability[:, 0] >= 0.5
    assert over("top1", probability, labels).value() == pytest.approx(100 * reference.accuracy_score(labels, said))
    assert over("f1", probability, labels).value() == pytest.approx(reference.f1_score(labels, said))
    both = np.concatenate([1 - probability, probability], axis=1)
    assert over("auc", both, labels).value() == pytest.approx(reference.roc_auc_score(labels, probability[:, 0]))


def test_errors_and_cosine():
    target = RNG.standard_normal((50, 4))
    output = target + 0.1 * RNG.standard_normal((50, 4))
    assert over("mae", output, target).value() == pytest.approx(np.abs(output - target).mean())
    assert over("rmse", output, target).value() == pytest.approx(np.sqrt(((output - target) ** 2).mean()))
    norms = np.linalg.norm(output, axis=1) * np.linalg.norm(target, axis=1)
    assert over("cosine", output, target).value() == pytest.approx(((output * target).sum(axis=1) / norms).mean())


def test_a_batch_counts_each_row():
    metric = make_metric("top1")
    metric.add({"y": SCORES[:64]}, LABELS[:64])
    metric.add({"y": SCORES[64:]}, LABELS[64:])
    assert metric.value() == over("top1", SCORES, LABELS).value()
    assert metric.scored == 200


def test_the_first_float_output_is_scored_unless_one_is_named():
    outputs = {"label": np.array([3]), "a": np.array([[0.9, 0.1]]), "b": np.array([[0.1, 0.9]])}
    for name, expected in [("top1", 0.0), ("top1:b", 100.0), ("top1:label", 0.0)]:
        metric = make_metric(name)
        metric.add(outputs, 1)
        assert metric.value() == expected, name


def test_an_output_of_labels_is_compared_as_it_is():
    metric = make_metric("top1")
    metric.add({"label": np.array(["cat", "dog"], object)}, np.array(["cat", "cat"]))
    assert metric.value() == 50.0


def test_unscored_samples_are_counted_not_scored():
    metric = over("top1", SCORES[:3], [None, -1, int(SCORES[2].argmax())])
    assert (metric.value(), metric.scored, metric.unscored) == (100.0, 1, 2)
    with pytest.raises(DataError, match="no sample has a label"):
        over("top1", SCORES[:2], [None, None]).value()


def test_nan_is_never_right():
    assert over("top1", np.full((2, 1), np.nan), [0, 1]).value() == 0.0
    assert over("f1", np.full((2, 3), np.nan), [0, 1]).value() == 0.0


def test_labels_that_do_not_fit_are_told():
    with pytest.raises(DataError, match="3 label"):
        make_metric("top1").add({"y": SCORES[:2]}, LABELS[:3])
    with pytest.raises(DataError, match="class numbers"):
        make_metric("top1").add({"y": SCORES[:1]}, np.array([0.5]))
    with pytest.raises(UsageError, match="no output 'z'"):
        make_metric("top1:z").add({"y": SCORES[:1]}, 1)


@pytest.mark.parametrize(("classes", "label"), [(10, 10), (10, 1000), (1, 2)])
def test_a_label_beyond_the_classes_is_another_models(classes, label):
    with pytest.raises(DataError) as caught:
        over("top1", [np.zeros((1, classes))], [np.array(label)])
    assert caught.value.code == "DK423"
    assert str(label) in caught.value.message


def test_unknown_metric_suggests_the_nearest():
    with pytest.raises(UsageError) as caught:
        make_metric("top")
    assert "'top" in caught.value.hint
    assert set(METRICS) == {line.partition(":")[0] for line in caught.value.context}


def test_a_file_with_a_metric_may_have_dataclasses_and_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", sys.path.copy())
    (tmp_path / "beside_the_metric.py").write_text("")
    (tmp_path / "typed.py").write_text(
        "from __future__ import annotations\nimport dataclasses\nimport beside_the_metric\n"
        "@dataclasses.dataclass\nclass Limits:\n    low: float = 2.0\n"
        "def above(outputs, label):\n    return outputs['y'][0, 0] > Limits().low\n"
    )
    assert over(f"{tmp_path}/typed.py:above", np.array([[3.0], [1.0]]), [0, 0]).value() == 0.5


def test_custom_metric_by_sample_and_by_set(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "def first(outputs, label):\n    return outputs['y'][0, 0] - label\n"
        "first.higher_is_better = False\n"
        "def whole(outputs, labels):\n    return len(outputs) * 100 + sum(labels)\n"
        "def broken(outputs, label):\n    return outputs['nope']\n"
    )
    monkeypatch.chdir(tmp_path)
    outputs = np.array([[3.0], [5.0]])
    metric = over("mine.py:first", outputs, [1, 2])
    assert metric.value() == 2.5
    assert not metric.higher_is_better
    assert over(f"{tmp_path}/mine.py:whole", outputs, [1, 2]).value() == 203
    assert over("mine:first", outputs, [1, 2]).value() == 2.5
    with pytest.raises(DataError, match=r"'mine.py:broken' failed: KeyError"):
        over("mine.py:broken", outputs, [1, 2])
    with pytest.raises(UsageError, match="no function 'absent'"):
        make_metric("mine.py:absent")
    with pytest.raises(UsageError, match="FileNotFoundError"):
        make_metric("other.py:first")


def test_drop_is_positive_when_worse_either_way():
    assert drop(make_metric("top1"), 99.0, 98.5) == pytest.approx(0.5)
    assert drop(make_metric("mae"), 1.0, 1.5) == pytest.approx(0.5)
    assert drop(make_metric("mae"), 1.0, float("nan")) == float("inf")
