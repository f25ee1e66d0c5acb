"""What check says of the onnx package's node tests against what happens: a sample, and all of them when asked."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from deploykit import lazy
from deploykit.target import get_target

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORDED = json.loads((BENCHMARKS / "compatibility.json").read_text(encoding="utf-8"))
SAMPLE = 97  # every 97th case, a prime: constants and given operands take turns
ENGINES = list(RECORDED["targets"])


@pytest.fixture(scope="module")
def compatibility():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("compatibility")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def sweep(compatibility):
    """{case: (verdict, outcome)} of some cases on an engine, which has to be the recorded one."""

    def run(engine, names):
        have = lazy.version_of(get_target(engine).distributions[0])
        if have is None:
            pytest.skip(f"{engine} is not installed")
        if have != RECORDED["targets"][engine]["version"]:
            pytest.skip(f"recorded with {engine} {RECORDED['targets'][engine]['version']}, installed is {have}")
        said = dict(compatibility.verdicts(engine, names))
        really = dict(compatibility.outcomes(engine, names))
        return {name: (said[name], really[name]) for name in names}

    return run


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_of_a_sample_is_falsely_supported(compatibility, sweep, engine):
    names = importlib.import_module("operator_cases").names()[::SAMPLE]
    made = compatibility.record(sweep(engine, names))
    assert sum(made["matrix"].values()) == len(names)
    assert "supported, does not" not in made["matrix"]
    known = RECORDED["targets"][engine]["exceptions"]
    assert {name: found[0] for name, found in made["exceptions"].items()} == {
        name: known[name][0] for name in names if name in known
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_the_recorded_matrix_keeps_what_is_promised(compatibility, engine):
    matrix = RECORDED["targets"][engine]["matrix"]
    cases = sum(matrix.values())
    assert cases == RECORDED["cases"] > 3000
    assert matrix.get("supported, does not", 0) == 0
    assert matrix.get("unsupported, runs", 0) <= 0.02 * cases
    assert matrix.get("conditional, does not", 0) <= 0.02 * cases
    assert matrix["supported, runs"] > 0.4 * cases
    unexpected = sum(count for field, count in matrix.items() if field not in compatibility.EXPECTED)
    assert len(RECORDED["targets"][engine]["exceptions"]) == unexpected


def test_the_documentation_has_the_recorded_numbers(compatibility):
    text = (BENCHMARKS.parent / "docs" / "compatibility.md").read_text(encoding="utf-8")
    _, _, rest = text.partition(compatibility.BEGIN)
    assert rest.partition(compatibility.END)[0].strip() == compatibility.section(RECORDED)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ENGINES)
def test_all_cases_are_as_recorded(compatibility, sweep, engine):
    made = compatibility.record(sweep(engine, importlib.import_module("operator_cases").names()))
    recorded = RECORDED["targets"][engine]
    assert made["matrix"] == recorded["matrix"], "run benchmarks/compatibility.py --write"
    assert {name: found[0] for name, found in made["exceptions"].items()} == {
        name: found[0] for name, found in recorded["exceptions"].items()
    }
