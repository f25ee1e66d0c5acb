from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from deploykit.artifact import TensorSpec
from deploykit.serving.datatypes import DATATYPES
from deploykit.serving.model_config import batch_symbol, config_text


@pytest.fixture(scope="module")
def parse() -> Any:
    """Reads the text with the message classes of tritonclient (its grpc package itself needs grpc)."""
    home = importlib.util.find_spec("tritonclient")
    assert home is not None
    assert home.origin is not None
    file = Path(home.origin).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda text: text_format.Parse(text, module.ModelConfig())


def test_a_batched_model(parse: Any) -> None:
    image = TensorSpec("image", "float32", ("batch", 3, "h", 8))
    config = parse(config_text("digits", "onnx", [image], [TensorSpec("scores", "float16", ("batch",))], 16))
    assert (config.name, config.platform, config.backend) == ("digits", "onnxruntime_onnx", "onnxruntime")
    assert config.max_batch_size == 16
    assert list(config.input[0].dims) == [3, -1, 8]
    # One score a row has no dimension left.
    assert list(config.output[0].dims) == [1]
    assert config.output[0].HasField("reshape")
    assert list(config.output[0].reshape.shape) == []


def test_a_model_without_a_batch_keeps_every_dimension(parse: Any) -> None:
    config = parse(
        config_text("m", "openvino", [TensorSpec("x", "int64", ("n", 2))], [TensorSpec("y", "bool", (4,))], 0)
    )
    assert (config.backend, config.platform, config.max_batch_size) == ("openvino", "", 0)
    assert list(config.input[0].dims) == [-1, 2]
    assert list(config.output[0].dims) == [4]
    assert not config.output[0].HasField("reshape")


@pytest.mark.parametrize("dtype", DATATYPES)
def test_every_datatype_has_its_type(parse: Any, dtype: str) -> None:
    config = parse(config_text("m", "onnx", [TensorSpec("x", dtype, (1,))], [], 0))
    kind = type(config.input[0]).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    name = kind[config.input[0].data_type].name
    assert name == f"TYPE_{'STRING' if dtype == 'string' else DATATYPES[dtype]}"


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "Цифры", "new\nline", "a/b:0"])
def test_any_name_survives(parse: Any, name: str) -> None:
    config = parse(config_text(name, "onnx", [TensorSpec(name, "float32", (1,))], [], 0))
    assert (config.name, config.input[0].name) == (name, name)


def test_the_batch_is_a_symbol_in_front_of_everything() -> None:
    assert batch_symbol([TensorSpec("x", "float32", ("n", 2)), TensorSpec("y", "float32", ("n",))]) == "n"
    assert batch_symbol([TensorSpec("x", "float32", ("n", 2)), TensorSpec("y", "float32", ("m", 2))]) is None
    assert batch_symbol([TensorSpec("x", "float32", (1, 2))]) is None
    assert batch_symbol([TensorSpec("x", "float32", ()), TensorSpec("y", "float32", ("n",))]) is None
    assert batch_symbol([TensorSpec("x", "float32", None)]) is None
