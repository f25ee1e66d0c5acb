import re
import tomllib
import typing
from pathlib import Path

import numpy as np
import pytest

from deploykit.errors import VendorError
from deploykit.pipeline import sections
from deploykit.pipeline.config import Config
from deploykit.pipeline.plan import STAGES, make_plan, model_name

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"model")
    np.savez(tmp_path / "calib.npz", x=np.zeros((4, 3), np.float32))
    np.savez(tmp_path / "test.npz", x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
    return tmp_path


def config(**changes):
    document = {
        "source": "model.onnx",
        "quantize": [{"precision": "fp16"}, {"precision": "int8", "calib": "calib.npz"}],
        "targets": {"onnxruntime": {}, "openvino": {}, "tensorrt-rtx": {"precisions": ["int8"]}},
        "evaluate": {"data": "test.npz"},
        **changes,
    }
    return Config.model_validate(document)


def by_key(steps):
    return {step.key: step for step in steps}


def test_every_predecessor_comes_first(folder):
    seen = set()
    for step in make_plan(config(), folder):
        assert {*step.subjects, *step.references.values(), *step.after} <= seen, step.key
        assert step.key not in seen
        seen.add(step.key)


@pytest.mark.parametrize("fixed", ["2", "2..2", 2])
def test_a_size_that_the_export_fixes_is_bounded_nowhere_else(folder, fixed):
    shape = {"x": {"dtype": "float32", "shape": ["batch", "width"], "dims": {"batch": fixed, "width": "1..9"}}}
    for step in make_plan(config(inputs=shape), folder):
        dims = step.options.get("dims")
        named = {text.partition("=")[0] for text in dims} if dims is not None else set()
        assert ("batch" in named) == (step.stage == "export"), step.key
        assert "width" in named or dims is None


def test_half_precision_is_made_once_for_all_targets(folder):
    steps = make_plan(config(), folder)
    assert sum(step.stage == "quantize" and step.precision == "fp16" for step in steps) == 1


def test_a_target_that_makes_half_precision_itself_gets_the_float_model_and_the_data(folder):
    halves = [{"precision": "fp16", "calib": "calib.npz"}]
    plan = by_key(make_plan(config(quantize=halves, targets={"coreml": {}, "onnxruntime": {}}), folder))
    native, usual = plan["convert coreml fp16"], plan["convert onnxruntime fp16"]
    assert native.subjects == ("simplify",)
    assert usual.subjects == ("quantize fp16",)
    assert native.options["options"] == {"compute_precision": "fp16"}
    assert native.options["calib"] == str(folder / "calib.npz")
    assert native.identity["calib"].startswith("file ") or len(native.identity["calib"]) >= 64
    assert plan["convert coreml fp32"].options["calib"] is None
    assert usual.options["calib"] is None
    np.savez(folder / "calib.npz", x=np.ones((4, 3), np.float32))
    again = by_key(make_plan(config(quantize=halves, targets={"coreml": {}, "onnxruntime": {}}), folder))
    assert again["convert coreml fp16"].identity != native.identity
    assert again["convert coreml fp32"].identity == plan["convert coreml fp32"].identity


def test_what_its_converter_does_not_know_is_left_to_quantize(folder):
    halves = [{"precision": "fp16", "exclude": ["Softmax"]}]
    plan = by_key(make_plan(config(quantize=halves, targets={"coreml": {}}), folder))
    assert plan["convert coreml fp16"].subjects == ("quantize fp16",)
    assert "compute_precision" not in plan["convert coreml fp16"].options["options"]


def test_targets_of_one_scheme_share_a_quantization_step(folder):
    from deploykit.target import get_target

    schemes = {get_target(name).scheme for name in config().targets}
    steps = make_plan(config(), folder)
    assert sum(step.stage == "quantize" and step.precision == "int8" for step in steps) == len(schemes)


def test_conversions_take_their_precision_and_are_compared_with_the_exported_model(folder):
    steps = by_key(make_plan(config(), folder))
    convert = steps["convert openvino int8"]
    assert steps[convert.subjects[0]].precision == "int8"
    assert convert.references == {"reference": "export"}
    assert convert.publish == Path("openvino/int8/model.xml")
    assert steps["convert openvino fp32"].subjects == ("simplify",)


def test_without_simplification_the_exported_model_is_taken(folder):
    steps = by_key(make_plan(config(simplify=False), folder))
    assert "simplify" not in steps
    assert steps["convert openvino fp32"].subjects == ("export",)


def identities(folder):
    return {step.key: step.identity for step in make_plan(config(), folder)}


def test_changed_calibration_data_changes_quantization_only(folder):
    before = identities(folder)
    np.savez(folder / "calib.npz", x=np.ones((4, 3), np.float32))
    after = identities(folder)
    changed = {key for key in before if before[key] != after[key]}
    assert changed
    assert all(key.startswith("quantize int8") for key in changed)


def test_the_same_data_under_another_name_changes_nothing(folder):
    before = make_plan(config(), folder)
    (folder / "calib.npz").rename(folder / "other.npz")
    after = make_plan(config(quantize=[{"precision": "int8", "calib": "other.npz"}, {"precision": "fp16"}]), folder)
    keys = {step.key: step.identity for step in after}
    assert all(keys[step.key] == step.identity for step in before if step.stage == "quantize")


def test_data_from_a_users_code_is_digested_apart(folder, capfd):
    (folder / "noisy.py").write_text(
        "import sys\n"
        "import numpy as np\n"
        "def feeds():\n"
        "    print('a word'), sys.stdout.flush()\n"
        "    yield {'x': np.zeros((1, 3), np.float32), 'y': 0}\n",
        encoding="utf-8",
    )
    (folder / "deadly.py").write_text("import os\ndef feeds():\n    os.kill(os.getpid(), 9)\n", encoding="utf-8")
    assert make_plan(config(evaluate={"data": "noisy.py:feeds"}), folder)
    assert capfd.readouterr().out == ""
    with pytest.raises(VendorError, match="SIGKILL"):
        make_plan(config(evaluate={"data": "deadly.py:feeds"}), folder)


def test_a_changed_source_file_changes_the_export(folder):
    before = identities(folder)
    (folder / "model.onnx").write_bytes(b"other")
    after = identities(folder)
    assert {key for key in before if before[key] != after[key]} == {"export"}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("model.onnx", "model"),
        ("some/path/net.v2.onnx", "net.v2"),
        ("model.py:Net", "Net"),
        ("package.module:factory", "factory"),
        ("hf_folder", "hf_folder"),
    ],
)
def test_artifacts_are_named_after_the_source(source, name):
    assert model_name(source) == name


def test_what_is_quantized_for_one_target_concerns_that_target(folder):
    steps = [step for step in make_plan(config(), folder) if step.stage == "quantize"]
    shared = [step for step in steps if step.precision == "fp16"]
    assert [step.target for step in shared] == [None]
    assert {step.target for step in steps if step.precision == "int8"} == {"onnxruntime", "openvino", "tensorrt-rtx"}


def test_the_benchmark_takes_the_data_that_are_there(folder):
    assert Path(by_key(make_plan(config(), folder))["bench"].options["data"]).name == "test.npz"
    assert Path(by_key(make_plan(config(evaluate=None), folder))["bench"].options["data"]).name == "calib.npz"
    assert (
        by_key(make_plan(config(evaluate=None, quantize=[{"precision": "fp16"}], targets={"openvino": {}}), folder))[
            "bench"
        ].options["data"]
        is None
    )


def test_a_step_is_made_again_after_any_package_that_it_may_use_has_changed(folder):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra: {re.match(r"[\w-]+", text).group() for text in texts} for extra, texts in extras.items()}
    for step in make_plan(config(), folder):
        if step.stage == "export":
            assert named["torch"] | named["tensorflow"] <= set(step.distributions)
        if step.stage in ("quantize", "convert", "evaluate", "bench"):
            assert named["images"] <= set(step.distributions)
        if step.stage == "simplify":
            assert named["simplify"] - {"sympy"} <= set(step.distributions)  # sympy is for --fuse, which no chain has


def test_the_command_line_offers_the_stages_and_precisions_of_the_chain():
    from deploykit.cli import run

    assert run.STAGES == STAGES
    assert tuple(n for part in typing.get_args(sections.Precision) for n in typing.get_args(part)) == run.PRECISIONS


def test_check_asks_with_the_options_that_convert_uses(folder):
    chosen = {"minimum_deployment_target": "iOS16"}
    plan = by_key(make_plan(config(targets={"openvino": {}, "coreml": {"options": chosen}}), folder))
    assert plan["check"].options["options"] == {"coreml": chosen}
    assert plan["convert coreml int8"].options["options"] == chosen
    plain = by_key(make_plan(config(targets={"openvino": {}, "coreml": {}}), folder))
    assert plain["check"].identity != plan["check"].identity
