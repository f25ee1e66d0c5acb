"""Non-maximum suppression as a PyTorch operator of its own, which PyTorch alone has not."""

from __future__ import annotations

import torch

MOST, OVERLAP, LOWEST = 20, 0.5, 0.25


@torch.library.custom_op("zoo::nms", mutates_args=())
def nms(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Rows (image, class, box) that remain. boxes: [N, count, (x1, y1, x2, y2)]. scores: [N, classes, count]."""
    rows = []
    for image in range(boxes.shape[0]):
        for label in range(scores.shape[1]):
            rows += [[image, label, box] for box in _kept(boxes[image], scores[image, label])]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)


def _kept(boxes: torch.Tensor, scores: torch.Tensor) -> list[int]:
    left, kept = torch.where(scores > LOWEST)[0], []
    left = left[scores[left].argsort(descending=True, stable=True)]
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while len(left) and len(kept) < MOST:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        low, high = boxes[left, :2].maximum(boxes[best, :2]), boxes[left, 2:].minimum(boxes[best, 2:])
        common = (high - low).clamp(min=0).prod(1)
        left = left[common <= OVERLAP * (areas[left] + areas[best] - common)]
    return kept


@nms.register_fake
def _(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    count = torch.library.get_ctx().new_dynamic_size()
    return boxes.new_empty((count, 3), dtype=torch.int64)
