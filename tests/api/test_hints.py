"""Hints are commands with the model's own path, and promise --fix only where a rewrite applies."""

from __future__ import annotations

import dataclasses
import re
import shlex

import onnx
import pytest

from deploykit.api.hints import Hints, Wanted, suggested_profile
from deploykit.artifact import TensorSpec
from deploykit.report import Finding, failure, note, warning

TEXT = """<ir_version: 10, opset_import: ["": 20, "my.ops": 1]>
    g (float[n,4] x, double[2] z) => (float[n,4] y, double[2] u)
    { [swish] h = HardSwish (x) [odd] y = my.ops.Odd (h) [up] u = Neg (z) }"""
GENERAL = "deploykit check MODEL --target coreml --fix -o OUT"


@pytest.fixture
def wanted(tmp_path):
    path = tmp_path / "my model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return Wanted(path, ["coreml"], {"n": (2, None)})


@pytest.fixture
def hint(wanted):
    """The hint of a finding after it has been improved."""

    def run(finding: Finding, *, fixable: bool = True, stopped: tuple[str, ...] = ()) -> str:
        (found,) = Hints(wanted, fixable=fixable).improved([finding], "coreml", stopped)
        return found.hint

    return run


def test_a_node_with_a_rewrite_gets_the_command_that_a_shell_takes(hint, wanted):
    text = hint(failure("DK201", "no HardSwish", node="swish", hint="use another"))
    command, _, rest = text.removeprefix("`").partition("`")
    fixed = str(wanted.model.with_name("my model-fixed.onnx"))
    expected = ["deploykit", "check", str(wanted.model), "--target", "coreml", "--fix", "-o", fixed, "--dim", "n=2.."]
    assert shlex.split(command) == expected
    assert rest.startswith(" may solve it (")
    assert rest.endswith("; otherwise: use another")


def test_extension_libraries_are_repeated_for_their_target(wanted):
    given = dataclasses.replace(wanted, libraries={"openvino": "/lib/my ops.so"})
    assert shlex.split(given.fixing("openvino"))[-2:] == ["--custom-ops", "/lib/my ops.so"]
    assert "--custom-ops" not in given.fixing("coreml@iOS17")


def test_another_type_is_no_way_to_an_operator_that_is_missing(hint):
    assert "float32 what was float64" in hint(failure("DK201", "no float64", node="up", hint="cast it"))
    missing = "coreml refuses Neg: the coreml operator table does not have Neg"
    assert hint(failure("DK201", missing, node="up", hint="make it otherwise")) == "make it otherwise"


@pytest.mark.parametrize(
    ("taken", "suggested"), [("float32 or float16", False), ("int8, int64 or float32", True), ("int64", True)]
)
def test_a_type_that_is_not_taken_is_no_way_to_one_that_is(tmp_path, taken, suggested):
    text = (
        '<ir_version: 10, opset_import: ["": 20]> g (int32[2] x) => (int32[1,2] y) { [n] y = Flatten <axis = 0> (x) }'
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    refusal = failure("DK201", f"coreml refuses Flatten: input 0 'x' is int32, not {taken}", node="n", hint="cast it")
    (found,) = Hints(Wanted(tmp_path / "model.onnx", ["coreml"], {})).improved([refusal], "coreml")
    assert ("computes with int64 what is an integer of 32 bits" in found.hint) is suggested


def test_partitions_lead_to_the_notes_that_say_why(hint):
    text = hint(warning("DK212", "runs in 2 partitions; 1 of 3 nodes is left"))
    assert re.fullmatch(r"`deploykit check .* --target coreml --verbose --dim n=2..` says why each .* left", text)
    assert hint(warning("DK212", "runs in 2 partitions", hint="measure it")) == "measure it"


def test_a_node_without_a_rewrite_keeps_its_remedy(hint):
    assert hint(failure("DK201", "no Odd", node="odd", hint="register it")) == "register it"


@pytest.mark.parametrize(
    ("remedy", "left"),
    [
        (f"{GENERAL}, or export with other values", "export with other values"),
        (f"export with another opset, or {GENERAL} converts it", "export with another opset"),
        (f"{GENERAL} reshapes where it can; otherwise put a Reshape before it", "put a Reshape before it"),
        (f"put a Cast before it; {GENERAL} does where the values allow", "put a Cast before it"),
    ],
)
def test_the_general_advice_to_fix_is_kept_only_where_it_applies(hint, remedy, left):
    assert hint(failure("DK201", "no", node="odd", hint=remedy)) == left
    assert "--fix -o" in hint(failure("DK201", "no", node="swish", hint=remedy))
    assert "--fix" not in hint(failure("DK201", "no", node="swish", hint=remedy), fixable=False)


def test_a_remedy_that_was_nothing_else_is_not_left_empty(hint):
    assert hint(failure("DK201", "no", node="odd", hint=GENERAL))


def test_neighbours_count_only_where_the_target_does_not_take_them(hint):
    finding = failure("DK201", "no Odd", node="odd", hint="register it")
    assert "--fix" not in hint(finding)
    assert "--fix" in hint(finding, stopped=("swish",))


def test_another_opset_is_suggested_only_where_the_reason_speaks_of_it(hint):
    assert "converts the model" not in hint(failure("DK201", "Neg takes no vectors", node="up", hint="x"))
    assert "converts the model" in hint(
        failure("DK201", "Neg of opset 20 is a revision without a lowering", node="up", hint="x")
    )


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("deploykit simplify MODEL -o OUT computes it", "`deploykit simplify {model} -o {simple}` computes it"),
        (
            "deploykit simplify MODEL -o OUT --dim n=1 (or more)",
            "`deploykit simplify {model} -o {simple} --dim n=1` (or more)",
        ),
        ("deploykit inspect MODEL shows it; or not", "`deploykit inspect {model}` shows it; or not"),
        ("pip install onnx2tf, then: onnx2tf -i MODEL", "pip install onnx2tf, then: onnx2tf -i MODEL"),
    ],
)
def test_commands_of_remedies_name_the_files(hint, wanted, remedy, expected):
    names = {
        "model": shlex.quote(str(wanted.model)),
        "simple": shlex.quote(str(wanted.model.with_name("my model-simple.onnx"))),
    }
    assert hint(note("DK209", "on a condition", node="odd", hint=remedy)) == expected.format(**names)


def test_bounds_that_are_missing_are_a_check_with_all_of_them(hint, wanted):
    text = hint(warning("DK520", "n has no upper bound", tensor="x", hint="--dim n=1..64"))
    command = text.removeprefix("`").partition("`")[0]
    assert shlex.split(command)[1:] == ["check", str(wanted.model), "--target", "coreml", "--dim", "n=2..64"]


def test_an_input_that_cannot_be_held_names_what_retypes_it(hint):
    text = hint(warning("DK529", "z is float64", tensor="z", hint="make it float32"))
    assert "float32 where the model has float64 inputs" in text
    assert text.endswith("otherwise: make it float32")


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        (("n", 3, "h"), {}, "1x3x1:8x3x8:64x3x64"),
        (("n", 3, "h"), {"n": (2, 8), "h": (224, None)}, "2x3x224:4x3x224:8x3x224"),
        ((1, 3), {}, ""),
        (None, {}, ""),
    ],
)
def test_suggested_profiles_keep_given_bounds_and_order(shape, dims, expected):
    assert suggested_profile(TensorSpec("x", "float32", shape), dims) == expected
