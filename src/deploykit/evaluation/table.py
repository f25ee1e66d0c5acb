"""The table of metrics, and how one is asked for: `NAME[:OUTPUT][,OPTION=VALUE]...`."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from typing import TYPE_CHECKING

from deploykit.errors import UsageError
from deploykit.evaluation.base import Request
from deploykit.evaluation.classes import F1, Auc, TopK
from deploykit.evaluation.custom import CustomMetric, load_function
from deploykit.evaluation.detection import MeanAveragePrecision
from deploykit.evaluation.language import Perplexity
from deploykit.evaluation.numbers import MeanCosine, MeanError, Pairs, RootMeanSquareError
from deploykit.evaluation.segmentation import MeanIntersectionOverUnion
from deploykit.evaluation.text import CharacterErrorRate, Lines, WordErrorRate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deploykit.evaluation.base import Metric, RequestedMetric


@dataclasses.dataclass(frozen=True, slots=True)
class MetricRow:
    """A row of the metric table: the class that counts it, and one line of help."""

    make: type[RequestedMetric]
    help: str


METRICS: dict[str, MetricRow] = {
    "top1": MetricRow(TopK, "share of right classes, percent"),
    "top5": MetricRow(TopK, "share of samples whose class is among the five best, percent; any other number as well"),
    "f1": MetricRow(F1, "F1 of class 1, or macro F1 with more classes, 0 to 1"),
    "auc": MetricRow(Auc, "area under the ROC curve of two classes, 0 to 1"),
    "cer": MetricRow(CharacterErrorRate, "character error rate of CTC outputs or texts, percent; lower is better"),
    "wer": MetricRow(WordErrorRate, "word error rate of CTC outputs or texts, percent; lower is better"),
    "lines": MetricRow(Lines, "share of lines of text that are right as a whole, percent"),
    "map": MetricRow(MeanAveragePrecision, "COCO's mean average precision of boxes over IoU 0.50 to 0.95, 0 to 1"),
    "map50": MetricRow(MeanAveragePrecision, "the same at IoU 0.50, 0 to 1"),
    "miou": MetricRow(MeanIntersectionOverUnion, "mean intersection over union of segmented classes, 0 to 1"),
    "perplexity": MetricRow(Perplexity, "perplexity of the next tokens; lower is better"),
    "mae": MetricRow(MeanError, "mean absolute error, in the label's units; lower is better"),
    "rmse": MetricRow(RootMeanSquareError, "root mean squared error, in the label's units; lower is better"),
    "cosine": MetricRow(MeanCosine, "mean cosine between output and label vectors, -1 to 1"),
    "pairs": MetricRow(Pairs, "area under the ROC curve of pairs of embeddings by their cosine, 0 to 1"),
}
_TOP_K = re.compile(r"top([1-9]\d{0,6})")
# An option starts at a comma; what follows the next `=` is its value.
_OPTIONS = re.compile(r",(?=[a-z_]+=)")


def make_metric(name: str, models: Sequence[Path] = ()) -> Metric:
    """The metric of that name: `NAME[:OUTPUT][,OPTION=VALUE]...`, `module:function` or `path/file.py:function`.

    NAME: a row of `METRICS`, or top3, top10 ... models: the files that are scored; texts are spelled with the
    vocabulary that an ONNX model among them carries, unless the option `vocabulary` names a file.
    Raises UsageError: DK420 for a name that is none of these, with the nearest one; DK427 for an option that the metric
    does not have, or a value that it does not take.
    """
    asked, *options = _OPTIONS.split(name)
    head, _, tail = asked.partition(":")
    row = METRICS["top5"] if _TOP_K.fullmatch(head) else METRICS.get(head)
    if row is not None:
        given = dict(option.split("=", 1) for option in options)
        unknown = [option for option in given if option not in row.make.accepts]
        if unknown:
            known = ", ".join(row.make.accepts)
            raise UsageError(
                f"metric {head!r} has no option {unknown[0]!r}",
                code="DK427",
                context=[f"options: {known}"] if known else [],
                hint="" if known else "it takes none",
            )
        return row.make(Request(name, tail or None, given, tuple(models)))
    if tail:
        return CustomMetric(name, load_function(name))
    near = difflib.get_close_matches(head, METRICS, n=1)
    raise UsageError(
        f"there is no metric {head!r}",
        code="DK420",
        context=[f"{row}: {entry.help}" for row, entry in METRICS.items()],
        hint=f"did you mean {near[0]!r}?" if near else "give your own as path/file.py:function",
    )


def drop(metric: Metric, reference: float, candidate: float) -> float:
    """How much worse the candidate is, in the metric's unit: positive when worse, whichever way is better."""
    difference = reference - candidate if metric.higher_is_better else candidate - reference
    return difference if math.isfinite(difference) else math.inf
