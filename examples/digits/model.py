"""A small CNN for 8x8 grey images of handwritten digits."""

import torch
from torch import nn


class DigitsCNN(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(2 * width * 2 * 2, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """image [batch, 1, 8, 8], values 0..1; returns logits [batch, 10]."""
        return self.classifier(self.features(image).flatten(1))
