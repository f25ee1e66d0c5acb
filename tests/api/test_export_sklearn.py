"""scikit-learn sources become ONNX that answers as the model's own methods do, or nothing is written."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import deploykit
from deploykit.errors import DeploykitError, UsageError
from deploykit.isolation import workers
from deploykit.lazy import installed

pytestmark = pytest.mark.skipif(not installed("skl2onnx") or not installed("skops"), reason="no skl2onnx here")
if installed("skl2onnx") and installed("skops"):
    import skops.io
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler

HERE = Path(__file__).parent


def _models():
    # Beside this file, and not on the path: pytest imports by file.
    spec = importlib.util.spec_from_file_location("sklearn_models", HERE / "sklearn_models.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODELS = _models() if installed("skl2onnx") else None
FAMILIES = MODELS.FAMILIES if MODELS else {}


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


def saved(model, folder: Path, name: str = "model.skops") -> Path:
    skops.io.dump(model, folder / name)
    return folder / name


def run(path: Path, **feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def refusal(source: Path, **options) -> DeploykitError:
    output = source.parent / "out" / "model.onnx"
    output.parent.mkdir()
    with pytest.raises(DeploykitError) as raised:
        deploykit.export(source, output=output, **options)
    assert not list(output.parent.glob("*")), "something was written"
    return raised.value


# Alike to others, or slow: `make test-all` has them.
RARE = (
    "quantiles",
    "hist boosting, regression",
    "forest, regression",
    "ada boost",
    "voting, hard",
    "svc, three classes",
)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name in RARE else ()) for name in FAMILIES]
)
def test_a_family_is_equal_to_its_model(tmp_path, family):
    model, data, outputs = FAMILIES[family]
    source = saved(MODELS.fit(model, data), tmp_path)
    report = deploykit.export(source, output=tmp_path / "m.onnx")
    assert report.exit_code == 0, report.findings
    assert [spec.name for spec in report.artifact.outputs] == outputs.split()
    assert all(row["passed"] for row in report.metrics["parity"]["outputs"])
    assert report.metrics["parity"]["samples"] >= 4
    if "forest" in family or "boosting" in family:  # equal on thresholds, too: nothing is left to rounding
        assert not any("threshold" in finding.message for finding in report.findings)
    # And on the training data, by the model's own methods, without what the export used for its proof.
    rows = data[0] if isinstance(data[0], list) else np.asarray(data[0], np.float32)
    if family in ("quantiles", "bins"):  # their edges are values of the training data, where rounding decides
        rows = rows + np.float32(0.013)
    name = report.artifact.inputs[0].name
    found = run(tmp_path / "m.onnx", **{name: np.array(rows, object) if isinstance(rows, list) else rows})
    exact = rows if isinstance(rows, list) else rows.astype(np.float64)
    if "label" in found:
        assert np.mean(found["label"].astype(str) == model.predict(exact).astype(str)) > 0.995
        assert found["label"].shape == model.predict(exact).shape
    if "probabilities" in found and not isinstance(model.predict_proba(exact), list):
        np.testing.assert_allclose(np.median(np.abs(found["probabilities"] - model.predict_proba(exact))), 0, atol=1e-6)
    if "variable" in found:
        answer = model.predict(exact) if hasattr(model, "predict") else model.transform(exact)
        answer = answer.toarray() if hasattr(answer, "toarray") else answer
        off = np.abs(found["variable"] - answer.reshape(found["variable"].shape))
        assert np.quantile(off, 0.99) <= 1e-4 * np.abs(answer).max()


@pytest.mark.parametrize(
    "family", ["LGBMClassifier", "LGBMRegressor", "XGBClassifier", "XGBRegressor", "XGBClassifier in a pipeline"]
)
def test_boosted_trees_of_other_packages_need_trust_and_are_equal(tmp_path, family):
    for package in ("xgboost", "lightgbm", "onnxmltools"):
        pytest.importorskip(package)
    model, data, outputs = MODELS.boosted()[family]
    source = saved(MODELS.fit(model, data), tmp_path)
    error = refusal(source)
    assert error.code == "DK670"
    assert "Booster" in error.message
    assert "--trust" in error.hint
    report = deploykit.export(source, output=tmp_path / "m.onnx", trust=True)
    assert report.exit_code == 0, report.findings
    assert [spec.name for spec in report.artifact.outputs] == outputs.split()


def test_the_shared_forest_keeps_its_accuracy(tmp_path, shared_model):
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    data = np.load(shared_model("sklearn/bc_test.npz"))
    features, labels = load_breast_cancer(return_X_y=True)
    train, _, of_train, _ = train_test_split(features, labels, test_size=0.25, random_state=0, stratify=labels)
    model = RandomForestClassifier(50, random_state=0).fit(train, of_train)
    source = saved(model, tmp_path)
    report = deploykit.export(source, output=tmp_path / "m.onnx", sample=shared_model("sklearn/bc_test.npz"))
    assert report.exit_code == 0
    found = run(tmp_path / "m.onnx", X=data["x"])
    assert np.array_equal(found["label"], model.predict(data["x"]))
    assert round(float(np.mean(found["label"] == data["y"])), 4) == 0.9441


def table(rows: int = 300):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    made = pandas.DataFrame(
        {
            "age": rng.normal(40, 10, rows),
            "fare": rng.exponential(30, rows),
            "sex": rng.choice(["m", "f"], rows),
            "port": rng.choice(["S", "C", "Q"], rows),
            "class": rng.integers(1, 4, rows),
        }
    )
    return made, ((made.sex == "f") & (made.age > 30) | (made.fare > 60)).astype(int)


def pipeline(text=None, end=None):
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "fare"]),
            ("text", text or OneHotEncoder(handle_unknown="ignore"), ["sex", "port"]),
            ("class", OneHotEncoder(), ["class"]),
        ]
    )
    return Pipeline([("columns", columns), ("end", end or LogisticRegression())])


@pytest.mark.parametrize("text", ["one hot", "ordinal"])
def test_columns_of_text_and_numbers_are_inputs_by_their_names(tmp_path, text):
    frame, labels = table()
    model = pipeline(OrdinalEncoder() if text == "ordinal" else None).fit(frame, labels)
    report = deploykit.export(saved(model, tmp_path), output=tmp_path / "m.onnx")
    assert report.exit_code == 0, report.findings
    assert {spec.name: (spec.dtype, spec.shape) for spec in report.artifact.inputs} == {
        "age": ("float32", ("batch", 1)),
        "fare": ("float32", ("batch", 1)),
        "sex": ("string", ("batch", 1)),
        "port": ("string", ("batch", 1)),
        "class": ("int64", ("batch", 1)),
    }
    assert [spec.name for spec in report.artifact.outputs] == ["label", "probabilities"]


def test_a_missing_text_is_the_empty_one(tmp_path):
    frame, labels = table()
    frame.loc[::7, "port"] = None
    text = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    model = pipeline(text).fit(frame, labels)
    deploykit.export(saved(model, tmp_path), output=tmp_path / "m.onnx")
    feeds = {name: frame[[name]].to_numpy(np.float32) for name in ("age", "fare")}
    feeds |= {name: frame[[name]].fillna("").to_numpy(object) for name in ("sex", "port")}
    found = run(tmp_path / "m.onnx", **feeds, **{"class": frame[["class"]].to_numpy(np.int64)})
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(frame), atol=1e-5)


def test_columns_by_place_of_a_plain_array(tmp_path):
    frame, labels = table()
    rows = frame[["age", "sex"]].to_numpy(object)
    columns = ColumnTransformer([("n", StandardScaler(), [0]), ("t", OneHotEncoder(), [1])])
    model = make_pipeline(columns, LogisticRegression()).fit(rows, labels)
    report = deploykit.export(saved(model, tmp_path), output=tmp_path / "m.onnx")
    assert [(spec.name, spec.dtype) for spec in report.artifact.inputs] == [("x0", "float32"), ("x1", "string")]


def test_a_sample_with_text_is_proven_and_run_everywhere(tmp_path, deploykit_cli):
    frame, labels = table(40)
    source = saved(pipeline().fit(frame, labels), tmp_path)
    arrays = {name: frame[name].to_numpy(np.float32) for name in ("age", "fare")}
    arrays |= {name: frame[name].to_numpy().astype(str) for name in ("sex", "port")}
    np.savez(tmp_path / "rows.npz", **arrays, **{"class": frame["class"].to_numpy(np.int64)})
    done = deploykit_cli("export", source, "-o", tmp_path / "m.onnx", "--sample", tmp_path / "rows.npz", "--json")
    assert done.code == 0, done.stderr
    assert done.json["metrics"]["parity"]["samples"] >= 5
    model = tmp_path / "m.onnx"
    # As data for the other commands a column is [rows, 1].
    np.savez(tmp_path / "data.npz", **{name: array[:, None] for name, array in np.load(tmp_path / "rows.npz").items()})
    for arguments in (
        ("check", model, "--target", "onnxruntime"),
        ("validate", model, model, "--data", tmp_path / "data.npz"),
        ("bench", model, "--seconds", "0.2", "--data", tmp_path / "data.npz"),
    ):
        done = deploykit_cli(*arguments)
        assert done.code == 0, f"{arguments[0]}: {done.stdout}{done.stderr}"


@pytest.mark.slow
def test_run_goes_from_skops_to_onnxruntime(tmp_path, deploykit_cli):
    source = saved(MODELS.fit(StandardScaler(), MODELS.IRIS), tmp_path)
    done = deploykit_cli("run", source, "--to", "onnxruntime", "--output", tmp_path / "out", "--json", cwd=tmp_path)
    assert done.code == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "onnxruntime" / "fp32" / "model.onnx").exists()


def test_another_target_says_why_not(tmp_path, deploykit_cli):
    source = saved(RandomForestClassifier(3, random_state=0).fit(*MODELS.IRIS), tmp_path)
    deploykit.export(source, output=tmp_path / "m.onnx")
    done = deploykit_cli("check", tmp_path / "m.onnx", "--target", "coreml")
    assert done.code == 1
    assert "TreeEnsembleClassifier" in done.stdout


def test_a_step_without_a_conversion_is_named_with_the_way_out(tmp_path):
    from sklearn.multioutput import ClassifierChain

    model = ClassifierChain(LogisticRegression()).fit(MODELS.IRIS[0], MODELS.TWO_CLASSES[:, 1:])
    source = saved(make_pipeline(StandardScaler(), model).fit(MODELS.IRIS[0], MODELS.TWO_CLASSES[:, 1:]), tmp_path)
    report = deploykit.export(source, output=tmp_path / "m.onnx")
    assert report.exit_code == 1
    assert report.error.code == "DK675"
    assert "step 'classifierchain' (ClassifierChain)" in report.error.message
    assert "pipeline[:-1]" in report.error.hint


def test_a_step_whose_conversion_fails_is_named(tmp_path):
    model = make_pipeline(StandardScaler(), FunctionTransformer(np.exp), Ridge()).fit(*MODELS.DIABETES)
    error = refusal(saved(model, tmp_path))
    assert error.code == "DK676"
    assert "step 'functiontransformer' (FunctionTransformer)" in error.message


def test_a_step_that_takes_no_tensors_is_named(tmp_path):
    model = make_pipeline(HashingVectorizer(), LogisticRegression()).fit(["a b", "c d"] * 4, [0, 1] * 4)
    error = refusal(saved(model, tmp_path))
    assert error.code == "DK672"
    assert "HashingVectorizer" in error.message


@pytest.mark.parametrize("opset", [11, 13, 18, 22, 23])
def test_the_opset_is_the_one_that_was_asked_for(tmp_path, opset):
    model = MODELS.scaled(RandomForestClassifier(3, random_state=0)).fit(*MODELS.IRIS)
    report = deploykit.export(saved(model, tmp_path), output=tmp_path / "m.onnx", opset=opset)
    assert report.exit_code == 0
    found = {entry.domain: entry.version for entry in onnx.load(tmp_path / "m.onnx").opset_import}
    assert found[""] == opset
    assert found["ai.onnx.ml"] <= 3
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"), full_check=True)


def test_double_precision_and_a_name_of_the_users_own(tmp_path):
    model = LogisticRegression().fit(*MODELS.IRIS)
    spec = "flower:float64[n,4]"
    report = deploykit.export(saved(model, tmp_path), output=tmp_path / "m.onnx", inputs=[spec])
    assert report.exit_code == 0
    assert (report.artifact.inputs[0].name, report.artifact.inputs[0].shape) == ("flower", ("n", 4))
    found = run(tmp_path / "m.onnx", flower=MODELS.IRIS[0])
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(MODELS.IRIS[0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"inputs": ["X:float32[n,5]"]}, "DK627"),
        ({"inputs": ["X:float16[n,4]"]}, "DK627"),
        ({"dims": ["rows=1..4"]}, "DK620"),
        ({"opset": 7}, "DK612"),
        ({"signature": "x"}, "DK604"),
    ],
)
def test_options_that_contradict_the_model_are_refused(tmp_path, options, code):
    error = refusal(saved(LogisticRegression().fit(*MODELS.IRIS), tmp_path), **options)
    assert isinstance(error, UsageError)
    assert error.code == code


def test_a_fixed_batch_and_a_bounded_one(tmp_path):
    source = saved(LogisticRegression().fit(*MODELS.IRIS), tmp_path)
    fixed = deploykit.export(source, output=tmp_path / "fixed.onnx", dims=["batch=2"])
    assert fixed.artifact.inputs[0].shape == (2, 4)
    assert fixed.exit_code == 0
    bounded = deploykit.export(source, output=tmp_path / "bounded.onnx", dims=["batch=2..5"])
    assert bounded.artifact.inputs[0].shape == ("batch", 4)
    assert bounded.exit_code == 0


def test_the_same_model_gives_the_same_bytes(tmp_path):
    source = saved(pipeline().fit(*table()), tmp_path)
    made = []
    for name in ("a.onnx", "b.onnx"):
        with workers():
            deploykit.export(source, output=tmp_path / name)
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
