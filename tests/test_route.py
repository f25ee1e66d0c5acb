"""Packages that a vendor would find are hidden while it is imported, and can be imported afterwards."""

from __future__ import annotations

import importlib
import sys

import pytest

from deploykit.route import hidden


def test_what_is_hidden_cannot_be_imported_until_the_end(tmp_path, monkeypatch):
    (tmp_path / "found_by_vendors.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with hidden(("found_by_vendors",)), pytest.raises(ImportError):
        importlib.import_module("found_by_vendors")
    assert importlib.import_module("found_by_vendors").VALUE == 1
    monkeypatch.delitem(sys.modules, "found_by_vendors")


def test_what_is_imported_already_stays():
    with hidden(("json",)):
        assert importlib.import_module("json") is sys.modules["json"]
    assert sys.modules["json"] is not None
