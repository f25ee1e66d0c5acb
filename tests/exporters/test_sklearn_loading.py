"""scikit-learn files are read without running code from them, and hostile ones are one error each."""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

import deploykit
from deploykit.errors import DeploykitError, ModelError
from deploykit.isolation import workers
from deploykit.lazy import installed

pytestmark = pytest.mark.skipif(not installed("skl2onnx") or not installed("skops"), reason="no skl2onnx here")
if installed("skl2onnx") and installed("skops"):
    import joblib
    import sklearn
    import skops.io
    from sklearn.datasets import load_diabetes, load_iris
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    IRIS, DIABETES = (load(return_X_y=True) for load in (load_iris, load_diabetes))


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


def saved(model, folder: Path) -> Path:
    skops.io.dump(model, folder / "model.skops")
    return folder / "model.skops"


def refusal(source: Path, **options) -> DeploykitError:
    output = source.parent / "out" / "model.onnx"
    output.parent.mkdir()
    with pytest.raises(DeploykitError) as raised:
        deploykit.export(source, output=output, **options)
    assert not list(output.parent.glob("*")), "something was written"
    return raised.value


class Trap:
    """Writes a marker file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3)], ids=str)
def test_a_pickle_is_not_run_and_says_what_it_names(tmp_path, compress):
    marker = tmp_path / "marker"
    joblib.dump([Trap(marker), Ridge()], tmp_path / "m.joblib", compress=compress)
    error = refusal(tmp_path / "m.joblib")
    assert error.code == "DK605"
    assert any("sklearn.linear_model._ridge.Ridge" in line for line in error.context)
    assert "--trust" in error.hint
    assert not marker.exists()


@pytest.mark.parametrize("name", ["m.joblib", "m.pkl"])
def test_a_trusted_pickle_is_exported(tmp_path, name):
    model = Ridge().fit(*DIABETES)
    joblib.dump(model, tmp_path / name, compress=3) if name == "m.joblib" else (tmp_path / name).write_bytes(
        pickle.dumps(model)
    )
    report = deploykit.export(tmp_path / name, output=tmp_path / "m.onnx", trust=True)
    assert report.exit_code == 0
    assert report.artifact.inputs[0].shape == ("batch", 10)


def test_a_trusted_pickle_without_its_module_says_so(tmp_path):
    data = pickle.dumps(Ridge()).replace(b"sklearn.linear_model._ridge", b"nowhere.linear_model._ridge")
    (tmp_path / "m.pkl").write_bytes(data)
    error = refusal(tmp_path / "m.pkl", trust=True)
    assert error.code == "DK671"
    assert "nowhere" in error.message


def test_types_of_the_users_own_are_named_and_not_loaded(tmp_path):
    source = saved(make_pipeline(FunctionTransformer(os.path.normpath), Ridge()), tmp_path)
    error = refusal(source)
    assert error.code == "DK670"
    assert "normpath" in error.message


def _rewritten(source: Path, change) -> None:
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in change(members).items():
            archive.writestr(name, data)


def _stray(members, field, value):
    for name, data in members.items():
        if name.endswith(".npy"):
            array = np.load(io.BytesIO(data))
            if array.dtype.names and field in array.dtype.names:
                array = array.copy()
                array[field][0] = value
                out = io.BytesIO()
                np.save(out, array)
                members[name] = out.getvalue()
    return members


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        ("forest", "left_child", 100_000),
        ("forest", "right_child", 0),
        ("forest", "feature", 4_000),
        ("hist", "left", 100_000),
        ("hist", "feature_idx", 4_000),
    ],
)
def test_a_tree_that_leads_outside_of_itself_is_refused(tmp_path, model, field, value):
    made = RandomForestClassifier(3) if model == "forest" else HistGradientBoostingClassifier(max_iter=3)
    source = saved(made.fit(*IRIS), tmp_path)
    _rewritten(source, lambda members: _stray(members, field, value))
    error = refusal(source)
    assert error.code == "DK671"
    assert "lead outside" in error.message


@pytest.mark.parametrize("kind", ["empty schema", "no json", "deep", "bomb", "missing member"])
def test_a_hostile_or_damaged_archive_is_one_error(tmp_path, kind):
    source = saved(Ridge().fit(*DIABETES), tmp_path)

    def change(members):
        if kind == "missing member":
            return {name: data for name, data in members.items() if not name.endswith(".npy")}
        schema = {"empty schema": b"{}", "no json": b"\xff\x00", "deep": b"[" * 200_000, "bomb": bytes(300 << 20)}[kind]
        return {**members, "schema.json": schema}

    _rewritten(source, change)
    assert refusal(source).code == "DK671"


def test_a_member_outside_of_the_archive_is_refused(tmp_path):
    source = saved(Ridge().fit(*DIABETES), tmp_path)
    _rewritten(source, lambda members: {**members, "../evil.npy": b""})
    with pytest.raises(ModelError) as raised:
        deploykit.export(source, output=tmp_path / "m.onnx")
    assert raised.value.code == "DK606"


@pytest.mark.parametrize("made", ["not fitted", "no estimator"])
def test_what_is_no_fitted_model_says_so(tmp_path, made):
    source = saved(Ridge() if made == "not fitted" else {"a": 1}, tmp_path)
    assert refusal(source).code == "DK672"


def test_another_version_of_scikit_learn_is_said(tmp_path):
    model = Ridge().fit(*DIABETES)
    data = pickle.dumps(model)
    was = sklearn.__version__.encode()
    (tmp_path / "m.pkl").write_bytes(data.replace(was, b"9" + was[1:]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = deploykit.export(tmp_path / "m.pkl", output=tmp_path / "m.onnx", trust=True)
    assert any(finding.code == "DK673" and "9" in finding.message for finding in report.findings)
