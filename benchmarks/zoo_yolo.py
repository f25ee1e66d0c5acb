"""A YOLO-style detector whose head ends in non-maximum suppression."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from zoo_nms import nms


def _conv(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Module:
    layers = [nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after, eps=1e-3)]
    return nn.Sequential(*layers, nn.SiLU())


class Split(nn.Module):
    """C2f: half of the channels pass through a chain whose every stage is kept."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        half = after // 2
        self.first, self.last = _conv(before, after, 1), _conv(half * 3, after, 1)
        self.inner = nn.Sequential(_conv(half, half), _conv(half, half))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        parts = list(self.first(x).chunk(2, 1))
        return self.last(torch.cat([*parts, parts[-1] + self.inner(parts[-1])], 1))


class Pyramid(nn.Module):
    """SPPF: one pool after another, all joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last, self.pool = (
            _conv(width, width // 2, 1),
            _conv(width * 2, width, 1),
            nn.MaxPool2d(5, 1, 2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """Backbone, top-down neck, two levels with distributed box edges, decoded and suppressed."""

    def __init__(self, classes: int = 4, bins: int = 8, *, suppress: bool = True) -> None:
        super().__init__()
        self.classes, self.bins, self.suppress = classes, bins, suppress
        self.stem = nn.Sequential(_conv(3, 16, 3, 2), _conv(16, 32, 3, 2), Split(32, 32))
        self.level1 = nn.Sequential(_conv(32, 48, 3, 2), Split(48, 48))
        self.level2 = nn.Sequential(_conv(48, 64, 3, 2), Pyramid(64))
        self.neck = Split(112, 48)
        self.heads = nn.ModuleList(nn.Conv2d(width, 4 * bins + classes, 1) for width in (48, 64))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: D102
        fine = self.level1(self.stem(image))
        coarse = self.level2(fine)
        fine = self.neck(torch.cat([functional.interpolate(coarse, scale_factor=2.0), fine], 1))
        boxes, scores = [], []
        for x, head, stride in zip((fine, coarse), self.heads, (8, 16), strict=True):
            batch, _, high, wide = x.shape
            edges, label = head(x).view(batch, -1, high * wide).split([4 * self.bins, self.classes], 1)
            share = edges.view(batch, 4, self.bins, high * wide).softmax(2)
            reach = (share * torch.arange(self.bins, dtype=torch.float32).view(1, 1, -1, 1)).sum(2)
            across = torch.arange(wide, dtype=torch.float32) + 0.5
            down = torch.arange(high, dtype=torch.float32) + 0.5
            middle = torch.stack([across.repeat(high), down.view(-1, 1).expand(-1, wide).reshape(-1)])
            boxes.append(torch.cat([middle - reach[:, :2], middle + reach[:, 2:]], 1) * stride)
            scores.append(label.sigmoid())
        found, sure = torch.cat(boxes, 2).transpose(1, 2), torch.cat(scores, 2)
        return (found, sure, nms(found, sure)) if self.suppress else (found, sure)


def _made(suppress: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Yolo(suppress=False).train()
    with torch.no_grad():
        for head in model.heads:  # as trained heads: scores far apart, which no rounding reorders
            head.weight.mul_(20.0)
        for _ in range(3):
            model(torch.randn(2, 3, 64, 64))
    model.suppress = suppress
    return model.eval()


def yolo() -> nn.Module:
    """Boxes and scores of every cell, and the rows that suppression keeps."""
    return _made(True)


def yolo_raw() -> nn.Module:
    """Boxes and scores of every cell."""
    return _made(False)
