from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from lite_models import Lite, batch, dense, sqnr

from deploykit.converters.litert import flatbuffer
from deploykit.converters.litert.finishing import Made, finish
from deploykit.converters.litert.halving import halve_weights, widen_weights
from deploykit.converters.litert.inspect import describe
from deploykit.converters.litert.options import settings_of
from deploykit.converters.litert.runtime import load
from deploykit.data.request import data_request
from deploykit.errors import UsageError, VendorError
from deploykit.runtime import RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def calib(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "calib.npz"
    np.savez(file, x=batch(256, seed=5))
    return data_request(str(file), "calibration")


def made_of(lite: Lite) -> Made:
    return Made(lite.content, lite.inputs, lite.outputs)


def converted(lite: Lite, final: Path, calib: dict[str, Any] | None = None, **options: str) -> dict[str, Any]:
    settings = settings_of(options, calibrated=calib is not None)
    return finish(made_of(lite), final, settings, "fp32", calib)


def outputs(file: Path, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return load(file, RuntimeOptions()).predict({"x": x})["y"]


def test_names_symbols_and_order_are_the_models(tmp_path: Path) -> None:
    lite, final = dense(), tmp_path / "m.tflite"
    facts = converted(lite, final)
    runtime = load(final, RuntimeOptions())
    assert runtime.inputs == lite.inputs
    assert runtime.outputs == lite.outputs
    assert facts["precision"] == "fp32"
    assert not facts["findings"]
    np.testing.assert_allclose(outputs(final, batch(4)), lite(batch(4)), rtol=1e-5, atol=1e-5)


def test_another_interface_than_the_models_is_refused(tmp_path: Path) -> None:
    lite = dense()
    other = (dataclasses.replace(lite.outputs[0], name="z"),)
    with pytest.raises(VendorError, match="changed the interface"):
        finish(Made(lite.content, lite.inputs, other), tmp_path / "m.tflite", settings_of({}, calibrated=False), "fp32")


def test_half_weights_are_the_nearest_float16(tmp_path: Path) -> None:
    lite, final = dense(hidden=64), tmp_path / "m.tflite"
    facts = converted(lite, final, precision="fp16")
    rounded = Lite(
        lite.content,
        lite.inputs,
        lite.outputs,
        # A bias of five stays as it is: a tensor more for it would take more bytes.
        [(w.astype(np.float16).astype(np.float32), b if b.size < 32 else b.astype(np.float16).astype(np.float32))
         for w, b in lite.weights],
    )  # fmt: skip
    np.testing.assert_allclose(outputs(final, batch(6)), rounded(batch(6)), rtol=1e-5, atol=1e-5)
    assert facts["precision"] == "fp16"
    assert describe(final)["precision"] == "fp16"


def test_what_float16_cannot_hold_stays_float32(tmp_path: Path) -> None:
    lite = dense(outlier=1e6)
    model = flatbuffer.parse(lite.content, "m")
    saved = halve_weights(model)
    assert saved == sum(array.nbytes for array in (lite.weights[0][1], lite.weights[1][0]))


def test_widened_weights_are_constants_again() -> None:
    lite = dense()
    model = flatbuffer.parse(lite.content, "m")
    halve_weights(model)
    assert "DEQUANTIZE" in {flatbuffer.operator_name(model, op) for op in model.subgraphs[0].operators}
    widen_weights(model)
    assert [flatbuffer.operator_name(model, op) for op in model.subgraphs[0].operators] == ["FULLY_CONNECTED"] * 2
    index = model.subgraphs[0].operators[0].inputs[1]
    data = bytes(model.buffers[model.subgraphs[0].tensors[index].buffer].data)
    expected = lite.weights[0][0].astype(np.float16).astype(np.float32)
    assert np.array_equal(np.frombuffer(data, np.float32), expected.ravel())


# Four bits over three standard deviations leave 18 dB in a layer, 15 dB behind two.
@pytest.mark.parametrize(
    ("precision", "least"), [("int8-dynamic", 30), ("int8-weights", 40), ("int4-weights", 15), ("int8", 28)]
)
def test_integers_stay_near_the_float_model(tmp_path: Path, calib: dict[str, Any], precision: str, least: int) -> None:
    lite, final = dense(hidden=256), tmp_path / "m.tflite"
    facts = converted(lite, final, calib if precision == "int8" else None, precision=precision)
    x = batch(64, seed=9)
    assert sqnr(lite(x), outputs(final, x)) >= least
    assert facts["precision"] == precision
    assert final.stat().st_size < len(lite.content)
    assert load(final, RuntimeOptions()).outputs == lite.outputs  # the batch still varies
    assert (facts["metrics"]["integer_operators"] == 2) == (precision == "int8")


def test_integer_inputs_and_outputs_are_told_and_still_fed_as_the_models(tmp_path: Path, calib: dict[str, Any]) -> None:
    lite, final = dense(), tmp_path / "m.tflite"
    facts = converted(lite, final, calib, precision="int8", io="int8")
    assert [finding["code"] for finding in facts["findings"]] == ["DK529", "DK529"]
    told = describe(final)
    assert [port["dtype"] for port in (*told["inputs"], *told["outputs"])] == ["int8", "int8"]
    assert told["quantization"]["x"]["scale"] > 0
    runtime = load(final, RuntimeOptions())
    assert runtime.inputs == lite.inputs
    x = batch(32, seed=9)
    assert sqnr(lite(x), runtime.predict({"x": x})["y"]) > 25


def test_ranges_reach_as_far_as_the_data(tmp_path: Path, calib: dict[str, Any]) -> None:
    lite, x = dense(), batch(64, seed=9)
    found = {}
    for ranges in ("minmax", "moving-average"):
        final = tmp_path / f"{ranges}.tflite"
        converted(lite, final, calib, precision="int8", ranges=ranges)
        found[ranges] = sqnr(lite(x), outputs(final, x))
    assert found["minmax"] > found["moving-average"] + 3


def test_the_same_bytes_in_another_process(tmp_path: Path, calib: dict[str, Any]) -> None:
    here = tmp_path / "m.tflite"
    converted(dense(), here, calib, precision="int8")
    there = tmp_path / "again" / "m.tflite"
    there.parent.mkdir()
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from lite_models import dense\n"
        "from deploykit.data.request import data_request\n"
        "from deploykit.converters.litert.finishing import Made, finish\n"
        "from deploykit.converters.litert.options import settings_of\n"
        "lite, request = dense(), data_request(sys.argv[2], 'calibration')\n"
        "made = Made(lite.content, lite.inputs, lite.outputs)\n"
        "finish(made, Path(sys.argv[3]), settings_of({'precision': 'int8'}, calibrated=True), 'fp32', request)\n"
    )
    folder = __file__.rpartition("/")[0]
    subprocess.run(
        [sys.executable, "-c", script, folder, str(calib["source"]), str(there)],
        check=True,
        capture_output=True,
        env={"PYTHONHASHSEED": "77", "PATH": ""},
    )
    assert there.read_bytes() == here.read_bytes()


@pytest.mark.parametrize(
    ("options", "calibrated", "code"),
    [
        ({"precision": "int7"}, False, "DK527"),
        ({"precision": "int8"}, False, "DK527"),
        ({"io": "int8"}, False, "DK527"),
        ({"ranges": "minmax", "precision": "fp16"}, False, "DK527"),
        ({"rounding": "octav", "precision": "fp16"}, False, "DK527"),
        ({"micro": "perhaps"}, False, "DK527"),
        ({"precision": "int8", "rounding": "gptq"}, True, "DK527"),
        ({"precision": "int8-weights"}, True, "DK803"),
        ({}, True, "DK803"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options: dict[str, str], calibrated: bool, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(options, calibrated=calibrated)
    assert caught.value.code == code
    assert caught.value.hint
