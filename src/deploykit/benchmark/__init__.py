"""Latency, throughput and memory of artifacts, measured in fresh processes."""

from __future__ import annotations

from deploykit.benchmark.budgets import Budgets
from deploykit.benchmark.rounds import run_bench
from deploykit.benchmark.subject import ServedSubject, Subject, subjects_of
from deploykit.benchmark.verdict import verdict

__all__ = ["Budgets", "ServedSubject", "Subject", "run_bench", "subjects_of", "verdict"]
