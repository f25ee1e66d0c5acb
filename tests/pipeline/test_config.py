from pathlib import Path

import jsonschema
import pytest
import yaml

from deploykit.errors import ConfigError, ExitCode, InvalidFileError
from deploykit.pipeline.config import Config, anchored, json_schema, load_config, named_file

GOOD = """\
source: model.onnx
inputs:
  x: {dtype: float32, shape: [batch, 3, 8, 8], dims: {batch: 1..64}}
quantize:
  - {precision: int8, calib: calib.npz}
targets:
  onnxruntime:
  openvino: {precisions: [fp32, int8]}
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"x")
    (tmp_path / "calib.npz").write_bytes(b"x")

    def write(text: str, name: str = "deploykit.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    return caught.value


def test_a_good_file_is_read(write):
    config = load_config(write(GOOD))
    assert config.input_specs() == ["x:float32[batch,3,8,8]"]
    assert config.dim_specs() == ["batch=1..64"]
    assert config.precisions_for("openvino") == ["fp32", "int8"]
    assert config.precisions_for("onnxruntime") == ["fp32", "int8"]


def test_inputs_give_the_contract_of_state_and_images(write):
    text = GOOD.replace("dims: {batch: 1..64}", "preprocess: {resize: [8, 8], scale: 1/255}") + "dims: {t: 2..}\n"
    config = load_config(write(text.replace("quantize:", "  s: {carry: sN}\nquantize:")))
    contract = config.contract()
    assert contract is not None
    assert contract.carry == {"s": "sN"}
    assert contract.prepares("x")
    assert config.dim_specs() == ["t=2.."]


@pytest.mark.parametrize(
    ("old", "new", "code", "place", "words"),
    [
        ("quantize:", "quantise:", "DK812", ":4:1", ["'quantise'", "quantize"]),
        ("calib:", "calibration:", "DK812", ":5:23", ["calibration"]),
        ("precision: int8", "precision: int7", "DK810", ":5:6", ["int7", "int8"]),
        ("dims: {batch: 1..64}", "dims: {batch: 64..1}", "DK810", ":3", ["batch"]),
        ("source: model.onnx", "source: 3", "DK810", ":1:1", ["source", "string"]),
        ("calib: calib.npz", "calib: model.onnx", "DK813", ":5:23", ["model.onnx", ".npz"]),
        ("source: model.onnx\n", "", "DK810", ":1:1", ["source", "missing"]),
        ("source: model.onnx", "source: gone.onnx", "DK813", ":1:1", ["gone.onnx"]),
        ("calib: calib.npz", "calib: 'no there.npz'", "DK813", ":5:", ["no there.npz"]),
        ("targets:\n", "evaluate: {data: calib.npz, metric: 'no.py:f'}\ntargets:\n", "DK813", ":6:29", ["no.py"]),
        (", calib: calib.npz", "", "DK810", ":5:5", ["calibration data"]),
        ("openvino:", "openvin:", "DK814", ":8:3", ["openvin", "openvino"]),
        ("openvino: {precisions: [fp32, int8]}", "openvino: {options: {nope: 1}}", "DK814", ":8:3", ["nope"]),
        ("openvino: {precisions: [fp32, int8]}", "coreml: {options: {route: torch}}", "DK814", ":8:3", ["ONNX"]),
        ("[fp32, int8]}", "[fp32, fp16]}", "DK814", ":8:33", ["fp16", "quantize"]),
        ("targets:\n", "targets: [\n", "DK811", ":8", ["not YAML"]),
        ("targets:\n", "source: again\ntargets:\n", "DK811", ":6:1", ["second time"]),
        ("onnxruntime:\n", "onnxruntime: 5\n", "DK810", ":7:3", ["onnxruntime"]),
    ],
)
def test_a_fault_is_named_with_line_and_column(write, old, new, code, place, words):
    assert old in GOOD
    error = refusal(write(GOOD.replace(old, new, 1)))
    text = f"{error.message} {' '.join(error.context)} {error.hint}"
    assert error.code == code, text
    assert f"deploykit.yaml{place}" in error.message, text
    for word in words:
        assert word in text


def test_every_fault_is_told_at_once(write):
    error = refusal(write(GOOD.replace("calib:", "calip:").replace("shape:", "shap:")))
    assert "shap" in error.message
    assert any("calip" in line for line in error.context)


@pytest.mark.parametrize("text", ["# nothing\n", "- a\n- b\n", "just words\n", "a: &a [*a]\n"])
def test_what_is_no_mapping_is_refused(write, text):
    assert refusal(write(text)).code in ("DK810", "DK811")


def test_aliases_that_multiply_are_refused_at_once(write):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert "values" in refusal(write("\n".join(lines))).message


def test_nesting_without_end_is_refused(write):
    assert "nested too deeply" in refusal(write("source: " + "[" * 5000 + "]" * 5000)).message


def test_what_is_no_text_is_refused(tmp_path):
    path = tmp_path / "deploykit.yaml"
    path.write_bytes(b"\xff\xfe\x00source")
    assert refusal(path).code == "DK811"


def test_python_objects_in_yaml_are_never_built(write, tmp_path):
    marker = tmp_path / "marker"
    text = GOOD.replace("model.onnx", f"!!python/object/apply:os.mkdir ['{marker}']", 1)
    refusal(write(text))
    assert not marker.exists()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidFileError, match=r"no such configuration.*gone\.yaml"):
        load_config(tmp_path / "gone.yaml")


def test_paths_with_spaces_and_other_scripts_work(tmp_path, write):
    folder = tmp_path / "модель 模型"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"x")
    (folder / "calib.npz").write_bytes(b"x")
    path = folder / "мой файл.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert load_config(path).source == "model.onnx"


def test_sources_and_data_are_told_from_modules_and_random(tmp_path):
    (tmp_path / "model.py").write_text("", encoding="utf-8")
    assert named_file("random", tmp_path) is None
    assert named_file("random:3", tmp_path) is None
    assert named_file("package.module:factory", tmp_path) is None
    assert named_file("model.py:Net", tmp_path) == tmp_path / "model.py"
    assert named_file("data/calib.npz", tmp_path) == tmp_path / "data/calib.npz"
    assert anchored("model.py:Net", tmp_path) == f"{tmp_path / 'model.py'}:Net"
    assert anchored("random:3", tmp_path) == "random:3"


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*/*.yaml")), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_examples_fit_the_schema_for_editors(path):
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    jsonschema.validate(document, json_schema())
    assert Config.model_validate(document).targets


def test_the_schema_refuses_what_the_loader_refuses():
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"source": "m.onnx", "targets": {"openvino": {}}, "quantise": []}, json_schema())


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{precision: fp16, max_drop: 1}", "nothing to search"),
        ("{precision: int4-weights, method: entropy}", "it has auto, rtn, gptq, hqq"),
        ("{precision: mixed}", "mixed needs calibration data"),
        ("{precision: int8, calib: c.npz, max_drop: 1}", "nothing to score"),
    ],
)
def test_a_precision_with_options_of_another_is_refused(tmp_path, entry, said):
    (tmp_path / "model.onnx").write_bytes(b"x")
    (tmp_path / "c.npz").write_bytes(b"x")
    path = tmp_path / "deploykit.yaml"
    path.write_text(f"source: model.onnx\nquantize: [{entry}]\ntargets: {{openvino: }}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert said in caught.value.message
    assert f"{path}:2" in caught.value.message


@pytest.mark.parametrize("written", ["{batch: '1,8'}", "{batch: [1, 8]}", "\n      batch: 1, 8"])
def test_a_set_of_sizes(write, written):
    text = GOOD.replace(
        "{dtype: float32, shape: [batch, 3, 8, 8], dims: {batch: 1..64}}",
        f"\n    dtype: float32\n    shape: [batch, 3, 8, 8]\n    dims: {written}",
    )
    assert [spec.replace(" ", "") for spec in load_config(write(text)).dim_specs()] == ["batch=1,8"]
