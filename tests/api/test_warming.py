import sys

import pytest

from deploykit.api.warming import imports_of
from deploykit.lazy import load_early
from deploykit.target import comparison_worker, get_target, target_names


@pytest.mark.parametrize("name", target_names())
def test_what_is_loaded_early_exists(name):
    target = get_target(name)
    for modules, blocked in imports_of(target).values():
        assert all(isinstance(module, str) and ":" not in module for module in modules)
        assert blocked == target.blocked


def test_the_worker_that_converts_comes_first():
    target = get_target("onnxruntime")
    assert list(imports_of(target)) == [target.worker, comparison_worker(target)]


def test_what_does_not_run_here_is_not_loaded(monkeypatch):
    monkeypatch.setattr("deploykit.api.warming.unavailable", lambda target, *, simulated: "not here")
    assert list(imports_of(get_target("openvino"))) == ["openvino"]


def test_what_cannot_be_imported_is_left_to_who_needs_it():
    load_early(["a_package_that_is_not_there", "this"])  # what comes after it is loaded all the same
    assert "this" in sys.modules
