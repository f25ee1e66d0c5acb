"""An error is told in one line, with the innermost line of the user's own code."""

from __future__ import annotations

import importlib.util

from deploykit.exporters.diagnosis import in_two_lines, is_users, reason, user_line

CODE = """
import json


def inner(text):
    return json.loads(text)


def outer(text):
    try:
        return inner(text)
    except ValueError as problem:
        raise RuntimeError("Failed to export the model\\n## Exception summary\\nwrapped") from problem
"""


def failing(tmp_path) -> BaseException:
    file = tmp_path / "users.py"
    file.write_text(CODE)
    spec = importlib.util.spec_from_file_location("users_code", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        module.outer("{")
    except RuntimeError as problem:
        return problem
    raise AssertionError


def test_the_line_is_the_users_and_not_the_librarys(tmp_path):
    found = user_line(failing(tmp_path))
    assert found.describe() == "users.py:6 in inner: return json.loads(text)"


def test_the_reason_is_the_innermost_cause(tmp_path):
    problem = failing(tmp_path)
    assert reason(problem).startswith("JSONDecodeError: Expecting property name")
    assert len(in_two_lines(problem).splitlines()) == 2


def test_a_line_that_only_the_text_names_is_found(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("a\nb\nreturn x if x.sum() else y\n")
    problem = RuntimeError(f'it failed\n  File "{file}", line 3, in forward\n    return x')
    assert user_line(problem).describe() == "model.py:3 in forward: return x if x.sum() else y"


def test_headings_and_colours_say_nothing():
    assert reason(ValueError("\x1b[96mThe following were found:\x1b[0m\nEq(a, b) is inconsistent")) == (
        "ValueError: The following were found: Eq(a, b) is inconsistent"
    )


def test_installed_packages_are_not_the_users():
    import numpy

    assert not is_users(numpy.__file__)
    assert not is_users(importlib.util.__file__)
    assert not is_users("<string>")
