"""Accuracy on labelled data: the table of metrics, and a user's own."""

from __future__ import annotations

from deploykit.evaluation.base import Metric
from deploykit.evaluation.custom import load_function
from deploykit.evaluation.significance import Significance, paired_test
from deploykit.evaluation.table import METRICS, drop, make_metric

__all__ = ["METRICS", "Metric", "Significance", "drop", "load_function", "make_metric", "paired_test"]
