"""What is refused before a job does its work."""

import numpy as np
import pytest
from quantize_models import AFFINE, onnx_text

import deploykit
from deploykit.data import data_request
from deploykit.errors import DataError, DeploykitError, UsageError
from deploykit.quantize.jobs import JOBS, quantize_job
from deploykit.quantize.settings import Settings

RNG = np.random.default_rng(0)


@pytest.fixture
def model(tmp_path):
    """A model and its calibration data, without and with labels."""
    x = RNG.normal(size=(20, 8)).astype(np.float32)
    np.savez(tmp_path / "calib.npz", x=x)
    np.savez(tmp_path / "labelled.npz", x=x, y=np.arange(20) % 4)
    text = "g (float[1,8] x) => (float[1,4] y) { y = MatMul (x, w) }"
    return onnx_text(text, tmp_path / "m.onnx", w=RNG.normal(size=(8, 4)).astype(np.float32))


@pytest.mark.parametrize("precision", JOBS)
@pytest.mark.parametrize(("data", "metric", "code"), [("calib", "top1", "DK307"), ("labelled", "acuracy", "DK420")])
def test_labels_and_metrics_are_looked_at_before_anything_is_measured(model, precision, data, metric, code):
    labelled = data_request(str(model.with_name(f"{data}.npz")), "accuracy")
    settings = Settings(
        scheme=AFFINE,
        target="onnxruntime",
        data=data_request(str(model.with_name("calib.npz")), "calibration"),
        accuracy={"data": labelled, "metric": metric, "max_drop": 1.0},
    )
    steps = []
    with pytest.raises(DeploykitError) as caught:
        quantize_job(str(model), str(model.with_name("q.onnx")), precision, settings.as_dict(), steps.append)
    assert caught.value.code == code
    assert isinstance(caught.value, (DataError, UsageError))
    assert not steps
    assert not model.with_name("q.onnx").exists()


@pytest.mark.parametrize("name", ["m.onnx", "q.onnx", "q.best.onnx", "../{folder}/q.onnx"])
def test_ranges_are_not_written_over_the_model_or_the_output(model, tmp_path, name):
    before = model.read_bytes()
    ranges = tmp_path / name.format(folder=tmp_path.name)
    with pytest.raises(UsageError) as caught:
        deploykit.quantize(
            model,
            output=tmp_path / "q.onnx",
            precision="int8",
            calib=tmp_path / "calib.npz",
            ranges=ranges,
            force=True,
        )
    assert caught.value.code == "DK346"
    assert model.read_bytes() == before
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    "asked",
    [{"precision": "mixed"}, {"sensitivity": True}, {"bias_correction": True}],
    ids=lambda asked: next(iter(asked)),
)
def test_ranges_alone_are_not_enough_for_what_needs_data(model, tmp_path, asked):
    ranges = tmp_path / "r.json"
    made = {"output": tmp_path / "q.onnx", "precision": "int8", "ranges": ranges}
    assert deploykit.quantize(model, **made, calib=tmp_path / "calib.npz").exit_code == 0
    with pytest.raises(DataError) as caught:
        deploykit.quantize(model, **{**made, **asked}, force=True)
    assert caught.value.code == "DK304"
    alone = deploykit.quantize(model, **made, force=True)
    assert alone.exit_code == 0
    assert "DK377" in [finding.code for finding in alone.findings]


def test_a_metric_without_a_number_is_a_warning(model, tmp_path):
    (tmp_path / "nothing.py").write_text("def score(outputs, label):\n    return float('nan')\n")
    report = deploykit.quantize(
        model,
        output=tmp_path / "q.onnx",
        precision="int8-weights",
        eval=tmp_path / "labelled.npz",
        metric=f"{tmp_path / 'nothing.py'}:score",
    )
    assert [finding.severity for finding in report.findings if finding.code == "DK376"] == ["warning"]
