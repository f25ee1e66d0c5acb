"""config.pbtxt as Triton's users write it: what it means here, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deploykit.artifact import TensorSpec
from deploykit.errors import InvalidFileError, ModelError
from deploykit.serving.batching import BatchPolicy
from deploykit.serving.model_config import config_text
from deploykit.serving.repository_config import check_tensors, read_config

if TYPE_CHECKING:
    from pathlib import Path

X = TensorSpec("x", "float32", ("batch", 3, "height"))
Y = TensorSpec("y", "int64", ("batch",))


@pytest.fixture
def config(tmp_path: Path):
    def read(text: str):
        (tmp_path / "config.pbtxt").write_text(text, encoding="utf-8")
        return read_config(tmp_path / "config.pbtxt")

    return read


def test_what_package_writes_is_read_and_fits(config):
    made = config(config_text("m", "onnx", [X], [Y], 16))
    assert made.max_batch_size == 16
    check_tensors(made, [X], [Y])


def test_batching_instances_and_versions(config):
    made = config(
        """name: "m" max_batch_size: 8
        dynamic_batching { preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 1500 }
        instance_group [ { count: 2 kind: KIND_CPU }, { kind: KIND_AUTO } ]"""
    )
    assert made.batching == BatchPolicy(8, 0.0015, (4, 8))
    assert made.instances == 3
    assert config("max_batch_size: 8").batching is None
    assert config("").instances is None


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("", [7]),
        ("version_policy { latest { } }", [7]),
        ("version_policy { latest { num_versions: 2 } }", [3, 7]),
        ("version_policy { all { } }", [1, 3, 7]),
        ("version_policy { specific { versions: [ 1, 2 ] } }", [1]),
    ],
)
def test_versions(config, policy, chosen):
    assert config(policy).chosen([7, 1, 3]) == chosen


@pytest.mark.parametrize(
    "text", ["name: ", "nmae: 'x'", "max_batch_size: 'many'", "ensemble_scheduling { }", "sequence_batching { }"]
)
def test_what_cannot_be_followed_is_refused_by_name(config, text):
    with pytest.raises(InvalidFileError) as caught:
        config(text)
    assert caught.value.code == "DK726"
    assert "config.pbtxt" in caught.value.message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('input { name: "z" data_type: TYPE_FP32 dims: [ 3, -1 ] }', "input 'z', and the model has 'x'"),
        ('input { name: "x" data_type: TYPE_FP16 dims: [ 3, -1 ] }', "'x' as FP16, and the model has FP32"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [ 4, -1 ] }', "dims [4, -1]"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3, -1 ] }', "dims [-1, 3, -1]"),
        ('output { name: "y" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } }', "'y' as BYTES"),
    ],
)
def test_a_declaration_that_the_model_contradicts_is_refused(config, text, why):
    with pytest.raises(ModelError) as caught:
        check_tensors(config(f"max_batch_size: 4 {text}"), [X], [Y])
    assert caught.value.code == "DK727"
    assert why in caught.value.message
