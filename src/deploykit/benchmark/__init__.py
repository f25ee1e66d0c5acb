"""Latency, throughput and memory of artifacts, measured in fresh processes."""

from __future__ import annotations

from deploykit.benchmark.budgets import Budgets
from deploykit.benchmark.rounds import Subject, run_bench
from deploykit.benchmark.verdict import verdict

__all__ = ["Budgets", "Subject", "run_bench", "verdict"]
