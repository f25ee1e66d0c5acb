from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import deploykit
import deploykit.api.targets as api
from deploykit import lazy
from deploykit.target import get_target, target_names

if TYPE_CHECKING:
    import pytest


def rows() -> dict[str, dict]:
    return {row["name"]: row for row in deploykit.targets().metrics["targets"]}


def test_every_target_has_a_row_with_three_answers() -> None:
    found = rows()
    assert list(found) == target_names()
    for row in found.values():
        assert all(isinstance(row[can], bool) for can in ("check", "convert", "run"))
        assert row["missing"] == "" or not (row["check"] and row["convert"] and row["run"])


def test_onnxruntime_is_in_every_install() -> None:
    row = rows()["onnxruntime"]
    assert (row["check"], row["convert"], row["run"], row["missing"]) == (True, True, True, "")


def test_an_uninstalled_backend_is_checked_from_its_table_at_most_and_names_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lazy, "installed", lambda module: module != "openvino")
    row = rows()["openvino"]
    assert (row["check"], row["convert"], row["run"]) == (True, False, False)
    assert row["missing"] == "pip install 'deploykit[openvino]'"


def test_a_target_that_is_checked_only_says_how_its_artifact_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    known = get_target("mnn")
    bare = dataclasses.replace(known, converter=None, runtime=None, support=None, packages=(), elsewhere="by hand")
    monkeypatch.setattr(api, "get_target", lambda name: bare if name == "mnn" else get_target(name))
    row = rows()["mnn"]
    assert (row["check"], row["convert"], row["run"]) == (True, False, False)
    assert row["missing"] == "checked here, made elsewhere: by hand"


def test_a_toolchain_that_is_not_here_is_told_as_what_it_is() -> None:
    """No artifact is made: a folder is, for a machine that has it."""
    for name in ("ascend", "hailo", "qnn", "tf-trt"):
        row = rows()[name]
        assert (row["check"], row["convert"], row["bundle"], row["run"]) == (True, False, True, False)
        assert "build bundle" in row["missing"]
    assert rows()["onnxruntime"]["bundle"] is False


def test_what_does_not_run_here_says_why() -> None:
    for row in rows().values():
        assert row["run"] or row["missing"], row["name"]
