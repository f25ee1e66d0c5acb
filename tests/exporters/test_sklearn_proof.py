"""The proof of a scikit-learn export fails on a file of another model, and excuses nothing but rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from deploykit.lazy import installed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not installed("skl2onnx") or not installed("skops"), reason="no skl2onnx here")
if installed("skl2onnx") and installed("skops"):
    import skops.io
    from sklearn.datasets import load_iris
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    from deploykit.exporters import sklearn_data, sklearn_source
    from deploykit.exporters.sklearn_export import export_job
    from deploykit.exporters.sklearn_proof import prove_job

    IRIS = load_iris(return_X_y=True)


def request(model, folder: Path, **given):
    path = folder / f"{type(model).__name__}-{len(list(folder.iterdir()))}.skops"
    skops.io.dump(model, path)
    facts = {"kind": "skops", "path": str(path), "trust": False, "inputs": [], "dims": {}, "sample": None, "seed": 0}
    return {**facts, **given}


def exported(model, folder: Path):
    asked, output = request(model, folder), folder / "m.onnx"
    export_job(asked, str(output), None)
    return asked, output


def passed(result) -> bool:
    return all(row["passed"] for row in result["outputs"]) and all(f["severity"] != "error" for f in result["findings"])


def changed(path: Path, attribute: str, change) -> None:
    model = onnx.load(path)
    for node in model.graph.node:
        for held in node.attribute:
            if held.name == attribute:
                held.floats[:] = change(np.array(held.floats)).tolist()
    onnx.save(model, path)


def test_a_file_of_another_model_fails(tmp_path):
    asked, output = exported(LogisticRegression().fit(*IRIS), tmp_path)
    assert passed(prove_job(asked, str(output)))
    other = request(LogisticRegression(C=0.9).fit(*IRIS), tmp_path)
    assert not passed(prove_job(other, str(output)))


@pytest.mark.parametrize("factor", [1.001, 1.02])
def test_moved_thresholds_fail(tmp_path, factor):
    model = RandomForestClassifier(10, random_state=0).fit(*IRIS)
    asked, output = exported(model, tmp_path)
    changed(output, "nodes_values", lambda values: values * factor)
    assert not passed(prove_job(asked, str(output)))


def test_a_lost_tree_fails_behind_a_scaler(tmp_path):
    model = make_pipeline(StandardScaler(), RandomForestClassifier(10, random_state=0)).fit(*IRIS)
    asked, output = exported(model, tmp_path)
    assert passed(prove_job(asked, str(output)))
    changed(output, "class_weights", lambda values: np.concatenate([np.zeros(9), values[9:]]))
    assert not passed(prove_job(asked, str(output)))


def test_thresholds_off_by_their_last_bit_are_said(tmp_path):
    asked, output = exported(HistGradientBoostingClassifier(max_iter=10).fit(*IRIS), tmp_path)
    assert not any("threshold" in finding["message"] for finding in prove_job(asked, str(output))["findings"])
    up = np.float32(np.inf)
    changed(output, "nodes_values", lambda values: np.nextafter(values.astype(np.float32), up))
    assert any("threshold" in finding["message"] for finding in prove_job(asked, str(output))["findings"])


def test_rows_come_from_what_the_model_has_seen(tmp_path):
    scaled = make_pipeline(StandardScaler(), LogisticRegression()).fit(IRIS[0] * 1000 + 5000, IRIS[1])
    source = sklearn_source.load(request(scaled, tmp_path))
    rows = sklearn_data.rows(source, 200, np.random.default_rng(0))["X"]
    assert 5000 < rows.mean() < 12000
    assert sklearn_data.threshold_rows(source, 5, np.random.default_rng(0)) is None
    encoder = OneHotEncoder(handle_unknown="ignore").fit(np.array([["a"], ["b"]], object))
    source = sklearn_source.load(request(encoder, tmp_path))
    made = set(sklearn_data.rows(source, 50, np.random.default_rng(0))["X"].ravel())
    assert made == {"a", "b", "no such category"}


def test_threshold_rows_lie_on_thresholds(tmp_path):
    forest = RandomForestClassifier(5, random_state=0).fit(*IRIS)
    source = sklearn_source.load(request(forest, tmp_path))
    rows = sklearn_data.threshold_rows(source, 50, np.random.default_rng(0))["X"]
    for feature in range(4):
        held = {
            np.float32(t)
            for tree in forest.estimators_
            for f, t in zip(tree.tree_.feature, tree.tree_.threshold, strict=True)
            if f == feature
        }
        assert set(rows[:, feature]) <= held


def test_every_row_with_one_label_is_said(tmp_path):
    model = LogisticRegression().fit(np.r_[IRIS[0], IRIS[0] + 1e6], np.r_[np.zeros(150), np.ones(150)].astype(int))
    model.coef_[:], model.intercept_[:] = 0, 100
    asked, output = exported(model, tmp_path)
    assert any("same label" in finding["message"] for finding in prove_job(asked, str(output))["findings"])
