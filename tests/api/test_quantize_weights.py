"""int8-weights, int8-dynamic and int4-weights through the public function: catalogued cases and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import deploykit
from deploykit.errors import UsageError
from deploykit.isolation import workers

CASES = [
    "calib_dynamic_seq",
    "calib_scalar_tensor",
    "conv_bias_overflow",
    "convtranspose_per_channel",
    "dynamic_batch_reshape",
    "gemm_transb_valueinfo",
    "if_shared_init",
    "io_passthrough",
    "softmax_symmetric_trt",
    "u8s8_saturation",
    "zero_dim_input",
]
PRECISIONS = ["int8-weights", "int8-dynamic", "int4-weights"]


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    """All tests of this file share their worker processes: imports are paid once."""
    with workers():
        yield


def run(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def sqnr_db(reference: np.ndarray, found: np.ndarray) -> float:
    reference, found = reference.astype(np.float64), found.astype(np.float64)
    return float(10 * np.log10(np.sum(reference**2) / max(np.sum((reference - found) ** 2), 1e-300)))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_case(shared, tmp_path, name, precision):
    source, out = shared / "cases" / f"{name}.onnx", tmp_path / "out.onnx"
    folder = tmp_path / "calib"
    folder.mkdir()
    inputs = sorted((shared / "cases").glob(f"{name}.in*.npz"))
    for file in inputs:
        shutil.copy(file, folder)
    report = deploykit.quantize(source, output=out, precision=precision, calib=str(folder))
    assert report.exit_code == 0
    onnx.checker.check_model(str(out), full_check=True)
    before, after = onnx.load(source).graph, onnx.load(out).graph
    for values in ("input", "output"):
        shapes = [
            [(v.name, [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]) for v in getattr(g, values)]
            for g in (before, after)
        ]
        assert shapes[0] == shapes[1]
    for file in inputs:
        expected = dict(np.load(file.with_name(file.name.replace(".in", ".out"))))
        for output, value in run(out, dict(np.load(file))).items():
            assert value.shape == expected[output].shape
            assert value.size == 0 or sqnr_db(expected[output], value) >= 20


def test_what_a_target_does_not_take_is_refused_before_work_starts(shared, tmp_path):
    source = shared / "cases" / "gemm_transb_valueinfo.onnx"
    for target, precision in (("openvino", "int8-dynamic"), ("tensorrt", "int8-weights"), ("coreml", "int8-dynamic")):
        with pytest.raises(UsageError) as caught:
            deploykit.quantize(source, output=tmp_path / "out.onnx", precision=precision, target=target)
        assert caught.value.code == "DK381"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("precision", ["int8-weights", "int8-dynamic", "int4-weights"])
def test_an_operator_that_nothing_here_runs_is_said_of_the_source(shared, tmp_path, precision):
    source = shared / "cases" / "custom_op_default_domain.onnx"
    report = deploykit.quantize(source, output=tmp_path / "out.onnx", precision=precision)
    assert report.exit_code == 1
    assert not list(tmp_path.iterdir())
    problem = report.error
    assert problem.code == "DK201"
    assert problem.file == str(source)
    assert f"'{source}'" in problem.hint
