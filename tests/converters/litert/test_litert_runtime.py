from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from lite_models import batch, dense

from deploykit.artifact import TensorSpec
from deploykit.converters.litert import flatbuffer
from deploykit.converters.litert.inspect import describe
from deploykit.converters.litert.interface import Door, Port
from deploykit.converters.litert.runtime import load
from deploykit.errors import DeploykitError, InvalidFileError, ModelError, UnavailableError
from deploykit.isolation import run_isolated, workers
from deploykit.runtime import RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def written(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes) -> Path:
        file = tmp_path / "model.tflite"
        file.write_bytes(content)
        return file

    return write


def test_outputs_are_those_of_the_weights_at_every_batch(written: Callable[[bytes], Path]) -> None:
    lite = dense()
    runtime = load(written(lite.content), RuntimeOptions())
    for size in (1, 7, 3):
        found = runtime.predict({"x": batch(size)})
        np.testing.assert_allclose(found["y"], lite(batch(size)), rtol=1e-5, atol=1e-5)
    assert [spec.describe() for spec in runtime.inputs] == ["float32 [x_0, 24]"]
    runtime.close()


def test_without_a_signature_inputs_are_called_as_their_tensors(written: Callable[[bytes], Path]) -> None:
    lite = dense(signature=False)
    runtime = load(written(lite.content), RuntimeOptions(threads=1, optimize=False))
    assert [spec.name for spec in (*runtime.inputs, *runtime.outputs)] == ["x_in", "y_out"]
    np.testing.assert_allclose(runtime.predict({"x_in": batch(2)})["y_out"], lite(batch(2)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [0, 3, 8, 100, 2000, -1])
def test_a_file_that_is_cut_off_is_one_error(written: Callable[[bytes], Path], size: int) -> None:
    file = written(dense().content[:size])
    for opened in (lambda: load(file, RuntimeOptions()), lambda: describe(file)):
        with pytest.raises(InvalidFileError) as caught:
            opened()
        assert caught.value.code in ("DK528", "DK104")


def test_an_index_that_points_nowhere_is_refused_before_it_is_used(written: Callable[[bytes], Path]) -> None:
    model = flatbuffer.parse(dense().content, "m")
    model.signatureDefs[0].outputs[0].tensorIndex = 999
    with pytest.raises(DeploykitError) as caught:
        describe(written(flatbuffer.serialize(model)))
    assert caught.value.code in ("DK528", "DK202")


def test_an_operator_that_litert_lacks_is_named(written: Callable[[bytes], Path]) -> None:
    model = flatbuffer.parse(dense().content, "m")
    code = model.operatorCodes[0]
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
    code.customCode = "MyOwnOp"
    for operator in model.subgraphs[0].operators:
        operator.builtinOptions, operator.builtinOptionsType = None, 0
    for tensor in model.subgraphs[0].tensors:
        tensor.shapeSignature = None
    with pytest.raises(ModelError, match="MyOwnOp") as caught:
        load(written(flatbuffer.serialize(model)), RuntimeOptions())
    assert caught.value.code == "DK202"
    assert describe(written(flatbuffer.serialize(model)))["operators"] == {"MyOwnOp": 2}


def test_the_work_of_a_call_is_that_of_its_products(written: Callable[[bytes], Path]) -> None:
    kernels = load(written(dense().content), RuntimeOptions()).kernels({"x": batch(3)}) or []
    assert [(kernel.op, kernel.precision, kernel.macs) for kernel in kernels] == [
        ("FULLY_CONNECTED", "fp32", 3 * 24 * 40),
        ("FULLY_CONNECTED", "fp32", 3 * 40 * 5),
    ]


def test_only_the_processor_runs_it(written: Callable[[bytes], Path]) -> None:
    with pytest.raises(UnavailableError) as caught:
        load(written(dense().content), RuntimeOptions(device="gpu"))
    assert caught.value.code == "DK502"


def test_damaged_bytes_never_end_more_than_the_worker(written: Callable[[bytes], Path]) -> None:
    content = dense().content
    rng = np.random.default_rng(1)
    outcomes = []
    with workers():
        for _ in range(40):
            damaged = bytearray(content)
            for at in rng.integers(0, len(damaged), 6):
                damaged[at] = rng.integers(0, 256)
            try:
                run_isolated(
                    "damaged-litert",
                    "deploykit.converters.litert.inspect:describe",
                    {"path": str(written(bytes(damaged)))},
                )
                outcomes.append("read")
            except DeploykitError as problem:
                outcomes.append(f"{type(problem).__name__} {int(problem.exit_code)}")
    assert not [outcome for outcome in outcomes if outcome.endswith(" 70")]
    assert "InvalidFileError 2" in outcomes


def test_a_door_quantizes_by_the_files_scale_and_moves_axes() -> None:
    port = Port(0, "x", "int8", (1, 2, 2, 3), scale=0.5, zero_point=-3)
    door = Door(TensorSpec("x", "float32", (1, 3, 2, 2)), (0, 2, 3, 1))
    tensor = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2) * 0.5
    given = door.given(tensor, port)
    assert given.dtype == np.int8
    assert given.tolist() == (tensor.transpose(0, 2, 3, 1) * 2 - 3).astype(int).tolist()
    assert np.array_equal(door.taken(given, port), tensor)
    far = door.given(np.full((1, 3, 2, 2), 1e6, np.float32), port)
    assert far.max() == far.min() == 127  # saturated, not wrapped


def test_inspect_tells_what_is_in_a_published_model(shared_model: Callable[[str], Path]) -> None:
    facts = describe(shared_model("blazeface/face_detection_short_range.tflite"))
    assert facts["operators"]["CONV_2D"] == 21
    assert facts["precision"] == "fp16"
    assert facts["inputs"] == [{"name": "input", "dtype": "float32", "shape": [1, 128, 128, 3]}]
    assert facts["parameters_by_dtype"]["float16"] == 101_390
