"""Boxes and pixels: against pycocotools on its own form of data, scikit-learn, and hand-made numbers."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from sklearn.metrics import jaccard_score

from deploykit.errors import DataError, UsageError
from deploykit.evaluation import make_metric

RNG = np.random.default_rng(11)


def boxes(count):
    corner = RNG.uniform(0, 80, (count, 2))
    return np.concatenate([corner, corner + RNG.uniform(5, 20, (count, 2))], axis=1)


def images(count=12):
    """(predicted boxes, scores, classes, labels) of each image: shifted truths and some inventions."""
    found = []
    for _ in range(count):
        true = boxes(RNG.integers(1, 5))
        kinds = RNG.integers(0, 3, len(true))
        said = np.concatenate([true + RNG.normal(0, 1.5, true.shape), boxes(2)])
        classes = np.concatenate([kinds, RNG.integers(0, 3, 2)])
        scores = RNG.uniform(0.1, 1, len(said)).astype(np.float32)
        found.append((said.astype(np.float32), scores, classes, np.concatenate([true, kinds[:, None]], axis=1)))
    return found


def coco(found):
    """AP and AP50 of pycocotools, its data written by hand."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def xywh(box):
        return [float(v) for v in (*box[:2], *(box[2:4] - box[:2]))]

    truth = COCO()
    labels = [(image, row) for image, item in enumerate(found) for row in item[3]]
    truth.dataset = {
        "info": {},
        "images": [{"id": image} for image in range(len(found))],
        "categories": [{"id": kind} for kind in range(3)],
        "annotations": [
            {"id": i + 1, "image_id": image, "category_id": int(row[4]), "bbox": xywh(row), "area": 1.0, "iscrowd": 0}
            for i, (image, row) in enumerate(labels)
        ],
    }
    said = [
        {"image_id": image, "category_id": int(kind), "bbox": xywh(box), "score": float(score)}
        for image, item in enumerate(found)
        for box, score, kind in zip(*item[:3], strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        result = COCOeval(truth, truth.loadRes(said), "bbox")
        result.evaluate()
        result.accumulate()
        result.summarize()
    return result.stats[:2]


def over(name, feeds):
    metric = make_metric(name)
    for outputs, label in feeds:
        metric.add(outputs, label)
    return metric.value()


def test_average_precision_is_cocos_in_every_form_of_outputs(capsys):
    found = images()
    ap, ap50 = coco(found)
    assert 0.1 < ap < ap50 < 0.99  # neither all right nor all wrong
    parts = [({"b": b[None], "s": s[None], "c": c[None]}, label) for b, s, c, label in found]
    rows = [({"y": np.concatenate([b, s[:, None], c[:, None]], axis=1)[None]}, label) for b, s, c, label in found]
    named = [({"b": b, "s": s, "c": c.astype(np.float32), "other": s}, label) for b, s, c, label in found]
    for feeds, tail in [(parts, ""), (rows, ""), (rows, ":y"), (named, ",boxes=b,scores=s,classes=c")]:
        assert over(f"map{tail}", feeds) == pytest.approx(ap, abs=1e-6)
        assert over(f"map50{tail}", feeds) == pytest.approx(ap50, abs=1e-6)
    assert capsys.readouterr().out == ""


def test_a_batch_with_padding_and_other_forms_of_boxes():
    found = images(4)
    ap = coco(found)[0]
    most = max(len(item[0]) for item in found)
    true = max(len(item[3]) for item in found)

    def padded(array, rows, value):
        return np.concatenate([array, np.full((rows - len(array), *array.shape[1:]), value, array.dtype)])

    batch = {name: np.stack([padded(item[i], most, 0) for item in found]) for i, name in enumerate("bsc")}
    labels = np.stack([padded(item[3], true, -1) for item in found])
    assert over("map", [(batch, labels)]) == pytest.approx(ap, abs=1e-6)

    def centred(box):
        size = box[..., 2:4] - box[..., :2]
        return np.concatenate([box[..., :2] + size / 2, size, box[..., 4:]], axis=-1)

    moved = {**batch, "b": centred(batch["b"])}
    assert over("map,format=cxcywh", [(moved, centred(labels))]) == pytest.approx(ap, abs=1e-4)


def test_boxes_by_hand():
    one = np.array([[0, 0, 10, 10, 2.0]])
    right = {"y": np.array([[[0, 0, 10, 10, 0.9, 2.0]]])}
    half = {"y": np.array([[[0, 0, 10, 6.0, 0.9, 2.0]]])}  # IoU 0.6: right at 0.50, 0.55 and 0.60 of ten thresholds
    assert over("map", [(right, one)]) == pytest.approx(1)
    assert over("map", [(half, one)]) == pytest.approx(0.3)
    assert over("map50", [(half, one)]) == pytest.approx(1)
    assert over("map", [({"y": np.zeros((1, 0, 6))}, one)]) == 0.0


def test_boxes_that_cannot_be_told_are_asked_for():
    b, s, c, label = images(1)[0]
    with pytest.raises(UsageError, match="which output holds the boxes") as caught:
        over("map", [({"a": b, "b": b, "s": s, "c": c}, label)])
    assert caught.value.code == "DK428"
    with pytest.raises(UsageError, match="which output holds the boxes"):
        over("map", [({"raw": np.zeros((1, 84, 8400), np.float32)}, label)])
    for outputs, wrong in [({"b": b, "s": s, "c": c}, label[:, :4]), ({"y": np.zeros((2, 3, 6))}, label)]:
        with pytest.raises(DataError, match="labels of shape") as caught:
            over("map", [(outputs, wrong)])
        assert caught.value.code == "DK423"
    with pytest.raises(DataError, match="rows of 6"):
        over("map:b", [({"b": b}, label)])
    with pytest.raises(DataError, match="no image has a true box"):
        over("map", [({"b": b, "s": s, "c": c}, np.zeros((0, 5)))])


def test_mean_iou_as_scikit_learn_counts_it_in_every_layout():
    scores = RNG.standard_normal((6, 5, 8, 9)).astype(np.float32)
    labels = RNG.integers(0, 5, (6, 8, 9))
    labels[:, 0] = 255
    labels[0, 1] = -1
    known = (labels >= 0) & (labels < 255)
    best = scores.argmax(axis=1)
    expected = jaccard_score(labels[known], best[known], average="macro")
    each = [({"y": scores[i : i + 1]}, labels[i]) for i in range(6)]
    assert over("miou", each) == pytest.approx(expected)
    for output in (scores, scores.transpose(0, 2, 3, 1), best[:, None], best):
        assert over("miou", [({"y": output}, labels)]) == pytest.approx(expected)
    labels[known] = np.where(labels[known] == 4, 3, labels[known])
    without = [({"y": np.where(best == 4, 3, best)}, labels)]  # a class that nobody has
    assert over("miou", without) == pytest.approx(
        jaccard_score(labels[known], np.where(best == 4, 3, best)[known], average="macro")
    )


def test_mean_iou_of_one_probability_and_by_hand():
    mask = np.array([[[[0.9, 0.2], [0.6, 0.4]]]], np.float32)
    label = np.array([[1, 0], [0, 0]])
    # class 1: 1 of 2, class 0: 2 of 3
    assert over("miou", [({"y": mask}, label)]) == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert over("miou,ignore=0", [({"y": mask}, label)]) == pytest.approx(1.0)


def test_a_nan_is_no_class_and_later_classes_are_kept_apart():
    scores = np.full((1, 2, 1, 2), np.nan, np.float32)
    scores[0, :, 0, 0] = (0, 1)
    more = np.zeros((1, 4, 1, 2), np.float32)
    more[0, 3] = 1
    feeds = [({"y": scores}, np.array([[1, 1]])), ({"y": more}, np.array([[3, 3]]))]
    assert over("miou", feeds) == pytest.approx((1 / 2 + 1) / 2)


def test_pixels_that_do_not_fit_are_told():
    with pytest.raises(DataError, match=r"\[1, 5, 4, 4\] for labels of shape \[1, 8, 8\]") as caught:
        over("miou", [({"y": np.zeros((1, 5, 4, 4), np.float32)}, np.zeros((8, 8), int))])
    assert "nearest" in caught.value.hint
    with pytest.raises(DataError, match="needs the shape"):
        over("miou", [({"y": np.zeros((1, 5, 4), np.float32)}, np.zeros(4, int))])
