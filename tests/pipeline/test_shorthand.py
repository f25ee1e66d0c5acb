from pathlib import Path

import pytest
import yaml

from deploykit.errors import ConfigError, UsageError
from deploykit.pipeline.config import Config, load_config
from deploykit.pipeline.shorthand import config_from_options, decided, narrowed, to_yaml

NONE = {
    "to": (),
    "precision": (),
    "inputs": (),
    "dims": (),
    "sample": None,
    "calib": None,
    "eval": None,
    "metric": None,
    "weights": None,
    "args": None,
    "custom_ops": None,
    "seed": 0,
}


def options(**changes):
    return {**NONE, **changes}


def test_one_line_makes_a_whole_configuration():
    config = config_from_options(
        "model.onnx",
        options(
            to=["openvino,tensorrt-rtx"], precision=["int8,fp16"], calib="c.npz", eval="t.npz", dims=["batch=1..8"]
        ),
    )
    assert list(config.targets) == ["openvino", "tensorrt-rtx"]
    assert [entry.precision for entry in config.quantize] == ["int8", "fp16"]
    assert config.quantize[0].calib == "c.npz"
    assert config.evaluate.metric == "top1"
    assert config.dim_specs() == ["batch=1..8"]


def test_the_sample_of_the_inputs_goes_to_the_export():
    config = config_from_options("m.py:Net", options(to=["openvino"], sample="x.npz"))
    assert config.export.sample == "x.npz"
    assert "sample" not in to_yaml(config_from_options("m.onnx", options(to=["openvino"])), Path("a"), Path())


def test_input_specs_are_taken():
    config = config_from_options("m.py:Net", options(to=["openvino"], inputs=["x:float32[n,3]"], dims=["n=1..4"]))
    assert config.input_specs() == ["x:float32[n,3]"]
    assert config.dim_specs() == ["n=1..4"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "DK806"),
        ({"to": ["openvin"]}, "DK801"),
        ({"to": ["openvino"], "precision": ["int9"]}, "DK807"),
        ({"to": ["openvino"], "precision": ["int8"]}, "DK807"),
        ({"to": ["openvino"], "dims": ["batch=x"]}, "DK800"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, code):
    with pytest.raises(UsageError) as caught:
        config_from_options("model.onnx", options(**changes))
    assert caught.value.code == code
    assert caught.value.hint or caught.value.context or code == "DK800"


CONFIG = {
    "source": "model.onnx",
    "quantize": [{"precision": "int8", "calib": "calib.npz"}],
    "targets": {"onnxruntime": {}, "openvino": {}},
}


def test_a_configuration_is_narrowed_to_targets_and_precisions():
    config = narrowed(Config.model_validate(CONFIG), ["openvino"], ["int8"])
    assert list(config.targets) == ["openvino"]
    assert config.precisions_for("openvino") == ["int8"]


@pytest.mark.parametrize(("to", "precision"), [(["coreml"], []), ([], ["fp16"])])
def test_narrowing_to_what_is_not_there_is_refused(to, precision):
    with pytest.raises(UsageError):
        narrowed(Config.model_validate(CONFIG), to, precision)


def test_a_written_configuration_reads_back_from_its_new_place(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"x")
    (tmp_path / "calib.npz").write_bytes(b"x")
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "replay.yaml"
    path.write_text(to_yaml(decided(Config.model_validate(CONFIG), []), path, tmp_path), encoding="utf-8")
    replay = load_config(path)
    assert replay.source == "../model.onnx"
    assert yaml.safe_load(path.read_text())["quantize"][0]["calib"] == "../calib.npz"
    assert replay.precisions_for("openvino") == ["fp32", "int8"]


def test_a_metric_in_a_file_is_found_from_the_new_place_too(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"x")
    (tmp_path / "test.npz").write_bytes(b"x")
    (tmp_path / "score.py").write_text("def score(outputs, label): ...", encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    facts = {"source": "model.onnx", "targets": {"onnxruntime": {}}}
    config = Config.model_validate({**facts, "evaluate": {"data": "test.npz", "metric": "score.py:score"}})
    path = tmp_path / "elsewhere" / "replay.yaml"
    path.write_text(to_yaml(config, path, tmp_path), encoding="utf-8")
    replay = load_config(path)
    assert replay.evaluate is not None
    assert replay.evaluate.metric == "../score.py:score"


def test_extension_library_is_for_the_target_that_takes_one_and_travels_with_the_configuration(tmp_path):
    library = tmp_path / "libours.so"
    library.write_bytes(b"code")
    config = config_from_options("model.onnx", options(to=["openvino,coreml"], custom_ops=[str(library)]))
    assert config.custom_ops == {"openvino": str(library)}
    text = to_yaml(config, tmp_path / "deploykit.yaml", Path())
    assert yaml.safe_load(text)["custom_ops"] == {"openvino": "libours.so"}
    (tmp_path / "model.onnx").write_bytes(b"not read here")
    written = yaml.safe_load(text) | {"source": "model.onnx"}
    (tmp_path / "deploykit.yaml").write_text(yaml.safe_dump(written))
    assert load_config(tmp_path / "deploykit.yaml").custom_ops == {"openvino": "libours.so"}
    library.unlink()
    with pytest.raises(ConfigError, match=r"no such file: libours\.so"):
        load_config(tmp_path / "deploykit.yaml")


def test_extension_library_for_a_target_without_any_is_refused(tmp_path):
    (tmp_path / "lib.so").write_bytes(b"code")
    with pytest.raises(UsageError) as caught:
        config_from_options("model.onnx", options(to=["coreml"], custom_ops=[f"coreml={tmp_path / 'lib.so'}"]))
    assert caught.value.code == "DK232"


def test_what_a_search_found_is_replayed_without_a_search():
    from types import SimpleNamespace

    facts = {"source": "model.onnx", "targets": {"openvino": {}}, "evaluate": {"data": "t.npz"}}
    entry = {"precision": "mixed", "calib": "c.npz", "max_drop": 0.5, "exclude": ["b"]}
    config = Config.model_validate({**facts, "quantize": [entry]})
    recipe = {"exclude": ["a"], "method": "mse", "smooth_quant": None, "bias_correction": True}
    step = SimpleNamespace(stage="quantize", precision="mixed")
    outcome = SimpleNamespace(step=step, metrics={"search": {"recipe": recipe}}, report=None)
    found = decided(config, [outcome])
    [entry] = found.quantize
    assert (entry.precision, entry.exclude, entry.method) == ("int8", ["a", "b"], "mse")
    assert entry.bias_correction
    assert entry.max_drop is None
    assert found.precisions_for("openvino") == ["fp32", "int8"]
