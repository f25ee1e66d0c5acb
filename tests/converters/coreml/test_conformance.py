"""The onnx package's node tests through packages on disk: a fixed sample, and all of them in the long run."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("coremltools")
SAMPLE = 12  # every twelfth case


@pytest.fixture(scope="module")
def node_cases():
    file = Path(__file__).with_name("node_cases.py")
    spec = importlib.util.spec_from_file_location("node_cases", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_no_case_of_a_sample_is_wrong(node_cases):
    found, listed = node_cases.load()
    outcomes = list(node_cases.sweep(listed[::SAMPLE], found))
    assert [outcome for outcome in outcomes if outcome.result not in ("right", "refused")] == []
    assert all(outcome.why for outcome in outcomes if outcome.result == "refused")
    assert sum(outcome.result == "right" for outcome in outcomes) >= 0.8 * len(outcomes)


@pytest.mark.slow
def test_all_cases_are_as_the_table_says(node_cases):
    found, listed = node_cases.load()
    made = node_cases.counts(list(node_cases.sweep(listed, found)))
    assert (made["wrong"], made["broken"]) == (0, 0)
    assert made["right"] >= 800
    assert made == json.loads(node_cases.COUNTS.read_text(encoding="utf-8")), "run node_cases.py --saved --write"
