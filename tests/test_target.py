"""The table of targets: data, cheap to read, forgiving about typing errors."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploykit import target
from deploykit.errors import UnavailableError, UsageError
from deploykit.runtime import open_runtime
from deploykit.target import (
    Target,
    check_options,
    format_of,
    get_target,
    nearest_lower,
    parse_target,
    require_converter,
    target_names,
    target_of_format,
)

ALL = target_names()
MADE_UP = Target(
    name="made-up",
    title="Made up",
    suffix=".mu",
    format="mu",
    extra=None,
    packages=(),
    distributions=(),
    versions=("2", "1"),
    options={"sm": "compute capability", "weights": "what to do with them"},
)


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setitem(target._TABLE, "made-up", "made_up_module:TARGET")
    module = type(sys)("made_up_module")
    module.TARGET = MADE_UP
    monkeypatch.setitem(sys.modules, "made_up_module", module)


def test_the_targets_are_there():
    assert {"onnxruntime", "openvino", "tensorrt-rtx", "coreml"} <= set(ALL)
    assert {"tensorrt", "onnxruntime-web", "litert", "ncnn", "mnn", "tvm"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_descriptions_are_complete(name):
    found = get_target(name)
    assert found.name == name
    assert found.title
    assert found.precisions
    assert found.suffix == "" or found.suffix.startswith(".")
    for reference in (found.converter, found.support, found.runtime, found.inspect, found.runs_on):
        assert reference is None or reference.count(":") == 1
    assert all(text for text in found.options.values())
    assert target_of_format(found.format) is not None


def test_importing_all_targets_needs_the_standard_library_only():
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom deploykit.target import get_target, target_names\n"
        "[get_target(n) for n in target_names()]\n"
        "tops = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(t for t in tops if t not in sys.stdlib_module_names and t != 'deploykit'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("typed", "meant"), [("openvion", "openvino"), ("core-ml", "coreml"), ("OpenVINO", "openvino")]
)
def test_a_typing_error_gets_the_nearest_name(typed, meant):
    with pytest.raises(UsageError) as caught:
        get_target(typed)
    assert caught.value.code == "DK801"
    assert meant in caught.value.hint


@pytest.mark.usefixtures("made_up")
def test_versions():
    assert parse_target("made-up") == (MADE_UP, "2")
    assert parse_target("made-up@1") == (MADE_UP, "1")
    with pytest.raises(UsageError, match="no version '9'") as caught:
        parse_target("made-up@9")
    assert caught.value.code == "DK802"
    assert "2, 1" in caught.value.context[0]


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        *[("8.5", "8.5"), ("10.9", "10.1"), ("10.16.2", "10.16"), ("9", "8.6"), ("12.0", "11.1"), ("10.0", "8.6")],
        # A release without its minor number is the newest of it.
        *[("8", "8.6"), ("10", "10.16"), ("11", "11.1")],
    ],
)
def test_a_numbered_version_between_two_stands_for_the_nearest_lower(asked, taken):
    target, version = parse_target(f"tensorrt@{asked}")
    assert version == asked
    assert nearest_lower(target, version) == taken


def test_the_default_is_the_newest_version_of_a_numbered_target():
    assert parse_target("tensorrt")[1] == "11.1"


@pytest.mark.parametrize(
    ("text", "hint"),
    [("tensorrt@8.4", "below 8.5"), ("tensorrt@newest", ""), ("tensorrt@", None), ("onnxruntime-web@webgp", "webgpu")],
)
def test_no_version_as_low_and_no_such_version(text, hint):
    if hint is None:
        assert parse_target(text)[1] == "11.1"
        return
    with pytest.raises(UsageError) as caught:
        parse_target(text)
    assert caught.value.code == "DK802"
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["onnxruntime@cuda", "onnxruntime@qnn"])
def test_a_target_that_is_checked_only_is_not_converted_to(text):
    target, version = parse_target(text)
    with pytest.raises(UnavailableError, match="does not convert to") as caught:
        require_converter(target, version)
    assert caught.value.code == "DK214"
    assert caught.value.hint
    assert not target.asks_engine(version)


def test_a_target_that_is_converted_to_is_not_refused():
    for text in ("onnxruntime", "openvino", "coreml@iOS16"):
        require_converter(*parse_target(text))


@pytest.mark.usefixtures("made_up")
def test_options_are_never_ignored():
    check_options(MADE_UP, {"sm": 89})
    with pytest.raises(UsageError, match="'wieghts'") as caught:
        check_options(MADE_UP, {"wieghts": 1})
    assert caught.value.code == "DK803"
    assert "weights" in caught.value.hint


@pytest.mark.usefixtures("made_up")
def test_formats_by_suffix():
    assert format_of(Path("a/b.onnx")) == "onnx"
    assert format_of(Path("b.xml")) == "openvino"
    assert format_of(Path("b.mu")) == "mu"
    assert format_of(Path("b.unknown")) is None
    assert target_of_format("mu") is MADE_UP
    assert target_of_format("nothing") is None


@pytest.mark.usefixtures("made_up")
def test_open_runtime_says_what_does_not_run(tmp_path):
    with pytest.raises(UsageError) as caught:
        open_runtime(tmp_path / "m.unknown")
    assert caught.value.code == "DK804"
    with pytest.raises(UnavailableError, match="do not run on this machine") as absent:
        open_runtime(tmp_path / "m.mu")
    assert int(absent.value.exit_code) == 3


def test_a_third_party_target(monkeypatch):
    class Point:
        name = "third"

        def load(self):
            return MADE_UP

    monkeypatch.setattr(target, "_third_party", lambda: {"third": Point()})
    assert target_names()[-1] == "third"
    assert get_target("third") is MADE_UP
