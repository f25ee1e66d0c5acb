"""Recurrent and convolutional networks of speech, small and with seeded random weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class LstmRecognizer(nn.Module):
    """DeepSpeech 2: convolutions over a spectrogram, bidirectional LSTMs, a CTC head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Sequential(nn.Conv2d(1, 8, (11, 5), (2, 2), (5, 2)), nn.BatchNorm2d(8), nn.Hardtanh(0, 20))
        self.rnn = nn.LSTM(8 * 20, 24, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 29)

    def forward(self, features: torch.Tensor) -> torch.Tensor:  # noqa: D102
        x = self.conv(features[:, None]).permute(0, 2, 1, 3).flatten(2)
        return self.head(self.rnn(x)[0]).log_softmax(-1)


def lstm_recognizer() -> nn.Module:
    """The recognizer, its statistics from random batches."""
    model = LstmRecognizer().train()
    with torch.no_grad():
        model(torch.randn(4, 32, 40))
    return model.eval()


class GruDenoiser(nn.Module):
    """NSNet: log power, GRUs, a gain for every band."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(33, 32)
        self.rnn = nn.GRU(32, 24, 2, batch_first=True)
        self.last = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 33), nn.Sigmoid())

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:  # noqa: D102
        x = (spectrum.square() + 1e-6).log10()
        return self.last(self.rnn(self.first(x))[0]) * spectrum


def gru_denoiser() -> nn.Module:
    """The noise suppressor."""
    return GruDenoiser().eval()


class StatefulDetector(nn.Module):
    """A voice detector that takes and gives the state of its LSTM, chunk by chunk."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Sequential(nn.Conv1d(1, 16, 16, 8, 4), nn.ReLU(), nn.Conv1d(16, 24, 3, 2, 1), nn.ReLU())
        self.rnn = nn.LSTM(24, 16)
        self.head = nn.Linear(16, 1)

    def forward(  # noqa: D102
        self, chunk: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y, (after, cell) = self.rnn(self.conv(chunk[:, None]).permute(2, 0, 1), (h, c))
        return self.head(y).sigmoid().mean(0), after, cell


def stateful_detector() -> nn.Module:
    """The voice detector."""
    return StatefulDetector().eval()


class TemporalConvolutions(nn.Module):
    """Conv-TasNet: a learned filter bank, dilated separable convolutions, masks, and the way back to a waveform."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Conv1d(1, 32, 16, 8, bias=False), nn.ConvTranspose1d(32, 1, 16, 8, bias=False)
        self.norm, self.squeeze = nn.GroupNorm(1, 32), nn.Conv1d(32, 16, 1)
        blocks = [
            nn.Sequential(
                nn.Conv1d(16, 32, 1), nn.PReLU(), nn.GroupNorm(1, 32),
                nn.Conv1d(32, 32, 3, padding=2**k, dilation=2**k, groups=32), nn.PReLU(), nn.Conv1d(32, 16, 1),
            )
            for k in range(4)
        ]  # fmt: skip
        self.blocks, self.masks = nn.ModuleList(blocks), nn.Conv1d(16, 64, 1)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:  # noqa: D102
        mixed = functional.relu(self.encoder(audio[:, None]))
        x = self.squeeze(self.norm(mixed))
        for block in self.blocks:
            x = x + block(x)
        masks = self.masks(x).unflatten(1, (2, 32)).sigmoid()
        parts = (masks * mixed[:, None]).flatten(0, 1)
        return self.decoder(parts).view(audio.shape[0], 2, -1)


def separator() -> nn.Module:
    """The separator of two voices."""
    return TemporalConvolutions().eval()
