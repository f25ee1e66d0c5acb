"""The table of rewrites: complete, named for people, and free until a model is fixed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from deploykit.optimizers import rewrites
from deploykit.optimizers.rewriting import Rewrite


def _kinds(kind: type) -> set[type]:
    below = {other for child in kind.__subclasses__() for other in _kinds(child)}
    return below | ({kind} if not getattr(kind, "__abstractmethods__", None) and hasattr(kind, "name") else set())


def test_every_rewrite_of_the_package_has_a_row() -> None:
    rows = {type(rewrite) for rewrite in rewrites.all_rewrites()}
    there = {kind for kind in _kinds(Rewrite) if kind.__module__.startswith(rewrites.__name__)}
    assert there - rows == set()


@pytest.mark.parametrize("rewrite", rewrites.all_rewrites(), ids=lambda rewrite: rewrite.name)
def test_names_and_titles_are_for_people(rewrite: Rewrite) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rewrite.name)
    verb, _, rest = rewrite.title.partition(" ")
    assert verb.endswith("s"), "a title says what the rewrite does"
    assert rest
    assert not rewrite.title.endswith(".")


def test_names_are_unique() -> None:
    names = [rewrite.name for rewrite in rewrites.all_rewrites()]
    assert len(names) == len(set(names))


def test_the_table_imports_no_graph_library() -> None:
    text = (
        "import sys, deploykit.optimizers.rewrites, deploykit.optimizers.rewriting\n"
        "sys.exit(any(name in sys.modules for name in ('onnx', 'onnx_ir', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", text], check=False).returncode == 0
