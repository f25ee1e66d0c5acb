"""Mean average precision of detected boxes, counted by COCO's own tool."""

from __future__ import annotations

import contextlib
import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import lazy
from deploykit.errors import UsageError
from deploykit.evaluation.base import RequestedMetric, class_numbers, misfit, named_output
from deploykit.parity import as_array, kind_of

if TYPE_CHECKING:
    from deploykit.evaluation.base import Outputs, Request
    from deploykit.parity import Array

_WIDTH = 5  # of a label's row: four of the box, one of the class


class MeanAveragePrecision(RequestedMetric):
    """COCO's AP@[.50:.95] (map) or AP@.50 (map50) over classes and at most 100 boxes an image, 0 to 1.

    Outputs: boxes [N, n, 4], scores [N, n] and classes [N, n], found by their shapes and kinds or named by the options
    of these names; or one output [N, n, 6] with box, score and class in each row (`map:OUTPUT`). Scores <= 0 and
    negative classes are padding. label: [n, 5] for one image or [N, n, 5], box and class in each row; rows of a
    negative class are padding. format: xyxy (default), xywh (corner and size) or cxcywh, of outputs and labels alike.
    Boxes of both must be in the same units; sizes of objects play no part.
    """

    accepts = ("boxes", "scores", "classes", "format")

    def __init__(self, request: Request) -> None:
        """Raises MissingDependencyError without pycocotools."""
        super().__init__(request)
        lazy.require("pycocotools.cocoeval", "metrics", purpose="the metric map")
        self._column = 1 if request.text.startswith("map50") else 0
        self._format = request.choice("format", ("xyxy", "xywh", "cxcywh"), "xyxy")
        self._names = {key: request.options[key] for key in ("boxes", "scores", "classes") if key in request.options}
        self._true: list[dict[str, Any]] = []
        self._found: list[dict[str, Any]] = []

    def add(self, outputs: Outputs, label: Any) -> None:
        """Takes the images of one call and their boxes."""
        if label is None:
            self.unscored += 1
            return
        boxes, scores, classes = self._detections(outputs)
        labels = _padded(self.name, np.asarray(label, np.float64), len(boxes))
        for image, rows in enumerate(labels):
            self.scored += 1
            self._truth(rows)
            kept = (scores[image] > 0) & (classes[image] >= 0)
            for box, score, kind in zip(
                self._corner(boxes[image][kept]), scores[image][kept], classes[image][kept], strict=True
            ):
                facts = {"image_id": self.scored, "category_id": int(kind), "bbox": box.tolist()}
                self._found.append({**facts, "score": float(score)})

    def _truth(self, rows: Array) -> None:
        rows = rows[rows[:, 4] >= 0]
        kinds = class_numbers(self.name, rows[:, 4])
        for box, kind in zip(self._corner(rows[:, :4]), kinds, strict=True):
            self._true.append(
                {
                    "id": len(self._true) + 1,
                    "image_id": self.scored,
                    "category_id": int(kind),
                    "bbox": box.tolist(),
                    "area": float(box[2] * box[3]),
                    "iscrowd": 0,
                }
            )

    def _corner(self, boxes: Array) -> Array:
        """Boxes as corner and size, which COCO's tool takes."""
        boxes = boxes.astype(np.float64)
        if self._format == "xyxy":
            return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
        if self._format == "cxcywh":
            return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, 2:]], axis=1)
        return boxes

    def _detections(self, outputs: Outputs) -> tuple[Array, Array, Array]:
        arrays = {name: as_array(value) for name, value in outputs.items()}
        rows = self._rows(outputs, arrays)
        if rows is not None:
            rows = _images(rows)
            return rows[..., :4], rows[..., 4], rows[..., 5].astype(np.int64)
        boxes = self._one("boxes", outputs, {k: v for k, v in arrays.items() if _is_boxes(v, arrays)})
        boxes = _images(boxes)
        flat = {k: v for k, v in arrays.items() if v.size == boxes.shape[0] * boxes.shape[1]}
        floats = {k: v for k, v in flat.items() if kind_of(v.dtype) == "float"}
        scores = self._one("scores", outputs, floats)
        classes = self._one("classes", outputs, {k: v for k, v in flat.items() if k not in floats} or floats)
        shape = boxes.shape[:2]
        for part in (scores, classes):
            if part.size != shape[0] * shape[1]:
                raise misfit(self.name, f"boxes {list(boxes.shape)} with scores or classes {list(part.shape)}")
        return boxes, scores.reshape(shape), classes.reshape(shape).astype(np.int64)

    def _rows(self, outputs: Outputs, arrays: dict[str, Array]) -> Array | None:
        """The output that has everything in its rows; None when the parts come in outputs of their own."""
        if self.output is not None:
            chosen = named_output(self.name, outputs, self.output)
            if chosen.ndim < 2 or chosen.shape[-1] != 6:
                raise misfit(self.name, f"rows of 6 (box, score, class) are needed, and it is {list(chosen.shape)}")
            return chosen
        if self._names or len(arrays) != 1:
            return None
        (only,) = arrays.values()
        return only if only.ndim >= 2 and only.shape[-1] == 6 else None

    def _one(self, part: str, outputs: Outputs, candidates: dict[str, Array]) -> Array:
        if part in self._names:
            return named_output(self.name, outputs, self._names[part])
        if len(candidates) != 1:
            shapes = ", ".join(f"{name} {list(np.shape(value))}" for name, value in outputs.items())
            raise UsageError(
                f"metric {self.name!r}: which output holds the {part} cannot be told",
                code="DK428",
                context=[f"outputs: {shapes}"],
                hint=f"name it: map,{part}=OUTPUT; raw anchors need decoding and non-maximum suppression first",
            )
        return next(iter(candidates.values()))

    def _value(self) -> float:
        if not self._true:
            raise misfit(self.name, "no image has a true box")
        if not self._found:
            return 0.0
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        kinds = {row["category_id"] for row in (*self._true, *self._found)}
        # It prints its progress and its tables.
        with contextlib.redirect_stdout(io.StringIO()):
            truth = COCO()
            truth.dataset = {
                "info": {},
                "images": [{"id": image} for image in range(1, self.scored + 1)],
                "annotations": self._true,
                "categories": [{"id": kind} for kind in sorted(kinds)],
            }
            truth.createIndex()
            evaluation = COCOeval(truth, truth.loadRes(self._found), "bbox")
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        return float(evaluation.stats[self._column])


def _images(array: Array) -> Array:
    """[images, rows, width]: every axis before the last two counts images."""
    return array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:])


def _is_boxes(array: Array, arrays: dict[str, Array]) -> bool:
    """Whether its rows are of four with a number for each elsewhere: the scores of four boxes are such a row, too."""
    if array.ndim < 2 or array.shape[-1] != 4 or kind_of(array.dtype) != "float":
        return False
    return any(other is not array and other.size == array.size // 4 for other in arrays.values())


def _padded(name: str, label: Array, images: int) -> Array:
    """The labels as [images, rows, 5]."""
    if label.ndim == 2 and images == 1:
        label = label[None]
    if label.size == 0:
        return np.zeros((images, 0, _WIDTH))
    if label.ndim != 3 or label.shape[0] != images or label.shape[2] != _WIDTH:
        raise misfit(
            name,
            f"labels of shape {list(label.shape)} for {images} image(s)",
            "a label is [boxes, 5]: four numbers of the box and its class in each row",
        )
    return label
