"""Imports that wait until something of the module is read."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from deploykit import lazy

# Written as a package, so that the import of a part of it is tried, too.
PACKAGE = "print('loaded'); from slow.parts import half; Kind = type('Kind', (), {})"


@pytest.fixture
def ran(tmp_path):
    """What a fresh interpreter prints for some code, with a package `slow` that is postponed first."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "slow" / "parts.py").write_text("def half(x):\n    return x / 2\n")

    def run(code: str, functions: str = "'half',") -> list[str]:
        first = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom deploykit import lazy\n"
        text = f"{first}lazy.postpone('slow', ({functions}))\nimport slow\n{code}"
        made = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        return made.stdout.split()

    return run


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("print('before')", ["before"]),
        ("table = {'half': slow.half}; print('before'); print(table['half'](3))", ["before", "loaded", "1.5"]),
        ("print('before'); print(isinstance(1, slow.Kind))", ["before", "loaded", "False"]),
        ("print('before'); from slow.parts import half; print(half(3))", ["before", "loaded", "1.5"]),
        ("import slow.parts; print(slow.parts.half(3), slow is sys.modules['slow'])", ["loaded", "1.5", "True"]),
        ("print(slow.half(3), slow.half(4), slow.Kind is sys.modules['slow'].Kind)", ["loaded", "1.5", "2.0", "True"]),
        ("print(hasattr(slow, '__wrapped__'), hasattr(slow, 'missing'))", ["loaded", "False", "False"]),
    ],
)
def test_a_postponed_package_is_loaded_once_when_something_of_it_is_read(ran, code, printed):
    assert ran(code) == printed


def test_what_is_loaded_or_absent_stays_as_it_is():
    before = sys.modules["gc"]
    lazy.postpone("gc")
    lazy.postpone("no_such_package_anywhere")
    assert sys.modules["gc"] is before
    assert "no_such_package_anywhere" not in sys.modules


def test_symbolic_arithmetic_of_the_graph_library_works_postponed():
    code = """
import sys
from deploykit import lazy
lazy.postpone_sympy()
import onnx_ir as ir
print("sympy.core" in sys.modules)
dim = ir.SymbolicDim("n")
print(str((dim + 1 - 1).simplify()), str(ir.SymbolicDim("max(n, 2)") * 2).replace(" ", ""))
print("sympy.core" in sys.modules)
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split("\n")[:3] == ["False", "n 2*Max(2,n)", "True"]


def test_early_imports_leave_the_collector_on():
    lazy.load_early(["json", "no_such_package_anywhere"])
    assert gc.isenabled()


PART = """
import sys; sys.path.insert(0, {folder!r})
from deploykit import lazy
part = lazy.import_part("wide", "part")
print(part.doubled(2), "wide.other" in sys.modules)
import wide
print(wide.part is part, hasattr(wide, "missing"), wide.NAME)
print(lazy.import_part("wide", "other").NAME)
"""


def test_a_part_of_a_package_comes_without_the_rest(tmp_path):
    (tmp_path / "wide").mkdir()
    (tmp_path / "wide" / "__init__.py").write_text("print('loaded'); from wide.other import NAME")
    (tmp_path / "wide" / "other.py").write_text("NAME = 'other'")
    (tmp_path / "wide" / "near.py").write_text("def double(x): return 2 * x")
    (tmp_path / "wide" / "part.py").write_text("from . import near\ndef doubled(x): return near.double(x)")
    code = PART.format(folder=str(tmp_path))
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The rest is loaded once, when a name is asked for that is no module of the package.
    assert made.stdout.split() == ["4", "False", "loaded", "True", "False", "other", "other"]


def test_a_part_of_what_is_not_there_is_an_import_error():
    with pytest.raises(ImportError):
        lazy.import_part("no_such_package_anywhere", "part")
