"""A transformer block: its LayerNorm and its einsum become operators that not every target takes."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, tokens, width]; returns the same shape."""
        x = x + self.attended(self.attention(self.before_attention(x)))
        return x + self.mlp(self.before_mlp(x))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Attention of each head among the tokens; x and the result [batch, tokens, width]."""
        parts = self.query_key_value(x).unflatten(2, (3, self.heads, -1))
        query, key, value = parts.unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), value).flatten(2)
