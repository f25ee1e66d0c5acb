"""Metrics of recognised text: character and word error rates, whole lines; CTC outputs are decoded greedily."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from deploykit import lazy
from deploykit.evaluation.base import RatioMetric, misfit
from deploykit.evaluation.vocabulary import Vocabulary, vocabulary_for
from deploykit.parity import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.evaluation.base import Request
    from deploykit.parity import Array

    Tokens: TypeAlias = str | list[Any]

_TEXTS = "UOST"  # kinds of arrays that hold texts


class TextMetric(RatioMetric):
    """A metric of sequences: texts, or token numbers.

    output: CTC scores [N, T, classes], [T, N, classes] or [T, classes], of which the best path is taken, repeats merged
    and blanks dropped; integers [N, T], taken as they are; or texts [N].
    label: N texts, or token numbers [N, L] or [L] with negative ones as padding.
    Options: vocabulary=FILE spells the classes (see `vocabulary.read_vocabulary`; otherwise the scored model's
    metadata), blank=N is the number of the blank (0; -1: the last class), strip=no keeps spaces at the edges of texts.
    """

    accepts = ("vocabulary", "blank", "strip")
    unit = "%"
    scale = 100.0

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._request = request
        self._blank = request.whole_number("blank", 0)
        self._strip = request.switch("strip", default=True)
        self._vocabulary: Vocabulary | None = None
        self._tables: dict[int, list[str]] = {}

    def _add(self, output: Array, label: Array) -> None:
        wanted = self._labels(label)
        spelled = label.dtype.kind in _TEXTS
        for truth, found in zip(wanted, self._predictions(output, len(wanted), spelled=spelled), strict=True):
            self._compare(truth, found)

    @abc.abstractmethod
    def _compare(self, truth: Tokens, found: Tokens) -> None:
        """Counts one line."""

    def _labels(self, label: Array) -> list[Tokens]:
        if label.dtype.kind in _TEXTS:
            return [self._edges(_text(value)) for value in label.ravel().tolist()]
        if label.dtype.kind not in "iu" or label.ndim not in (1, 2):
            raise misfit(
                self.name,
                f"a label is a text or a sequence of token numbers, and got {label.dtype} {list(label.shape)}",
                "texts that look like numbers need quotes: use .jsonl, or an array of strings in .npz",
            )
        return [row[row >= 0].tolist() for row in np.atleast_2d(label)]

    def _edges(self, text: str) -> str:
        return text.strip() if self._strip else text

    def _predictions(self, output: Array, count: int, *, spelled: bool) -> list[Tokens]:
        if output.dtype.kind in _TEXTS:
            self._as_many(output.size, count, output)
            return [self._edges(_text(value)) for value in output.ravel().tolist()]
        if kind_of(output.dtype) != "float":
            self._as_many(output.size if not output.ndim else output.size // output.shape[-1], count, output)
            rows = [row[row >= 0].tolist() for row in output.reshape(count, -1)]
            classes = None
        else:
            scores = self._by_line(output, count)
            classes = scores.shape[2]
            rows = [best_path(line, self._blank) for line in scores]
        return [self._spelled(row, classes) for row in rows] if spelled else list(rows)

    def _by_line(self, output: Array, count: int) -> Array:
        """Scores as [lines, steps, classes]."""
        scores = output[None] if output.ndim == 2 else output
        if scores.ndim == 3 and scores.shape[0] != count and scores.shape[1] == count:
            scores = scores.transpose(1, 0, 2)
        self._as_many(scores.shape[0] if scores.ndim == 3 else 0, count, output)
        return scores

    def _as_many(self, lines: int, count: int, output: Array) -> None:
        if lines != count:
            raise misfit(
                self.name,
                f"{count} label(s) for an output of shape {list(output.shape)}",
                "CTC scores [lines, steps, classes], token numbers [lines, steps] or texts [lines] are scored",
            )

    def _spelled(self, tokens: Sequence[int], classes: int | None) -> str:
        if self._vocabulary is None:
            self._vocabulary = vocabulary_for(self.name, self._request.options.get("vocabulary"), self._request.models)
        known = classes or len(self._vocabulary.texts)
        if known not in self._tables:
            self._tables[known] = (
                self._vocabulary.table(known, self._blank) if classes else list(self._vocabulary.texts)
            )
        table = self._tables[known]
        beyond = next((token for token in tokens if token >= len(table)), None)
        if beyond is not None:
            raise misfit(self.name, f"token {beyond} is beyond the {len(table)} of {self._vocabulary.source}")
        return self._edges("".join(table[token] for token in tokens))


class CharacterErrorRate(TextMetric):
    """Insertions, deletions and replacements of characters over the characters of the labels, in percent."""

    higher_is_better = False

    def __init__(self, request: Request) -> None:
        """Raises MissingDependencyError without rapidfuzz."""
        super().__init__(request)
        self._distance = lazy.require("rapidfuzz.distance.Levenshtein", "metrics", purpose="edit distances").distance

    def _compare(self, truth: Tokens, found: Tokens) -> None:
        self._count(self._distance(truth, found), len(truth), 1)


class WordErrorRate(CharacterErrorRate):
    """The same of words, which are what white space separates; each token number is a word."""

    def _compare(self, truth: Tokens, found: Tokens) -> None:
        super()._compare(_words(truth), _words(found))


class Lines(TextMetric):
    """Share of lines that are right to the last character, in percent."""

    def _compare(self, truth: Tokens, found: Tokens) -> None:
        self._count(truth == found, 1, 1)


def best_path(scores: Array, blank: int = 0) -> list[int]:
    """The classes of CTC scores [steps, classes] by greedy decoding: repeats merged, then blanks dropped.

    blank: its class number, from the end when negative. A. Graves et al., Connectionist temporal classification,
    ICML 2006, section 3.2 (best path decoding).
    """
    best = scores.argmax(axis=1)
    first = np.concatenate([[True], best[1:] != best[:-1]]) if best.size else np.zeros(0, bool)
    found: list[int] = best[first & (best != blank % scores.shape[1])].tolist()
    return found


def _words(tokens: Tokens) -> list[Any]:
    return tokens.split() if isinstance(tokens, str) else tokens


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
