"""Perplexity of language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.evaluation.base import RatioMetric, class_numbers, misfit

if TYPE_CHECKING:
    from deploykit.evaluation.base import Request
    from deploykit.parity import Array


class Perplexity(RatioMetric):
    """The exponential of the mean negative log-likelihood of the right tokens, in nats; 1 is perfect.

    output [..., T, V]: logits. label [..., T]: the token that each position should predict; negative ones (-100) are
    not scored. shift=yes: the labels are the input's own tokens, and position t is held to token t + 1.
    """

    accepts = ("shift",)
    higher_is_better = False

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._shift = request.switch("shift", default=False)

    def _add(self, output: Array, label: Array) -> None:
        labels = class_numbers(self.name, label)
        if output.ndim < 2 or output.size // output.shape[-1] != labels.size:
            raise misfit(
                self.name,
                f"logits of shape {list(output.shape)} for labels of shape {list(label.shape)}",
                "give logits [batch, tokens, vocabulary] and labels [batch, tokens]",
            )
        logits = output.reshape(-1, *output.shape[-2:]).astype(np.float64)
        wanted = labels.reshape(logits.shape[:2])
        if self._shift:
            logits, wanted = logits[:, :-1], wanted[:, 1:]
        rows, tokens = logits.reshape(-1, logits.shape[-1]), wanted.ravel()
        known = tokens >= 0
        self.unscored += int(np.count_nonzero(~known))
        if known.any():
            self._score(rows[known], tokens[known])

    def _score(self, logits: Array, wanted: Array) -> None:
        if wanted.max() >= logits.shape[1]:
            raise misfit(self.name, f"token {wanted.max()} is beyond the {logits.shape[1]} that the output has")
        top = logits.max(axis=1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(logits - top).sum(axis=1))
        loss = total - logits[np.arange(len(wanted)), wanted]
        self._count(loss.sum(), len(wanted), len(wanted))

    def _value(self) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(self._ratio()))
