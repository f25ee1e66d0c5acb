"""The models of test_export_sklearn: every family, fitted on scikit-learn's own data sets and on a table with text."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn import cluster, decomposition, ensemble, linear_model, mixture, naive_bayes, neighbors, neural_network, svm
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, QuantileTransformer, StandardScaler
from sklearn.tree import DecisionTreeClassifier

CANCER, IRIS, DIABETES = (load(return_X_y=True) for load in (load_breast_cancer, load_iris, load_diabetes))
CLASSES = np.array(["setosa", "versicolor", "virginica"])[IRIS[1]]
TWO_CLASSES = np.c_[IRIS[1], IRIS[1] > 0].astype(int)
TWO_VALUES = np.c_[DIABETES[1], 2 * DIABETES[1] + DIABETES[0][:, 0]]
GAPS = np.where(np.random.default_rng(0).random(CANCER[0].shape) < 0.05, np.nan, CANCER[0])


def scaled(model):
    return make_pipeline(StandardScaler(), model)


def _voting(**how):
    members = [
        ("line", linear_model.LogisticRegression(max_iter=500)),
        ("bayes", naive_bayes.GaussianNB()),
        ("tree", DecisionTreeClassifier(random_state=0)),
    ]
    return ensemble.VotingClassifier(members, **how)


# name: (model, data), and the outputs that the file has.
FAMILIES = {
    "forest": (ensemble.RandomForestClassifier(20, random_state=0), CANCER, "label probabilities"),
    "svc": (scaled(svm.SVC()), CANCER, "label scores"),
    "svc, three classes": (svm.SVC(), IRIS, "label scores"),
    "linear svc": (scaled(svm.LinearSVC()), CANCER, "label scores"),
    "logistic": (linear_model.LogisticRegression(max_iter=5000), CANCER, "label probabilities"),
    "logistic, text labels": (linear_model.LogisticRegression(), (IRIS[0], CLASSES), "label probabilities"),
    "sgd": (scaled(linear_model.SGDClassifier(random_state=0)), CANCER, "label scores"),
    "ridge classifier": (linear_model.RidgeClassifier(), CANCER, "label scores"),
    "gradient boosting": (ensemble.GradientBoostingClassifier(n_estimators=20), CANCER, "label probabilities"),
    "hist boosting": (ensemble.HistGradientBoostingClassifier(max_iter=20), (GAPS, CANCER[1]), "label probabilities"),
    "kmeans": (cluster.KMeans(3, n_init=2, random_state=0), IRIS, "label scores"),
    "pca, logistic": (
        make_pipeline(StandardScaler(), decomposition.PCA(5), linear_model.LogisticRegression()),
        CANCER,
        "label probabilities",
    ),
    "isolation forest": (ensemble.IsolationForest(n_estimators=20, random_state=0), CANCER, "label scores"),
    "one class svm": (scaled(svm.OneClassSVM()), IRIS, "label scores"),
    "mlp": (scaled(neural_network.MLPClassifier((16,), max_iter=60, random_state=0)), CANCER, "label probabilities"),
    "naive bayes": (naive_bayes.GaussianNB(), IRIS, "label probabilities"),
    "lda, two classes": (LinearDiscriminantAnalysis(), CANCER, "label probabilities"),
    "qda": (QuadraticDiscriminantAnalysis(), IRIS, "label probabilities"),
    "neighbours": (neighbors.KNeighborsClassifier(algorithm="brute"), IRIS, "label probabilities"),
    "mixture": (mixture.GaussianMixture(3, random_state=0), IRIS, "label probabilities"),
    "ada boost": (ensemble.AdaBoostClassifier(n_estimators=10, random_state=0), CANCER, "label probabilities"),
    "calibrated": (CalibratedClassifierCV(svm.LinearSVC()), IRIS, "label probabilities"),
    "grid search": (
        GridSearchCV(scaled(linear_model.LogisticRegression()), {"logisticregression__C": [0.1, 1]}, cv=2),
        CANCER,
        "label probabilities",
    ),
    "voting, soft": (_voting(voting="soft"), IRIS, "label probabilities"),
    "voting, hard": (_voting(), IRIS, "label"),
    "forest behind a scaler": (
        scaled(ensemble.RandomForestClassifier(20, random_state=0)),
        CANCER,
        "label probabilities",
    ),
    "forest behind an imputer": (
        make_pipeline(SimpleImputer(), ensemble.RandomForestClassifier(10, random_state=0)),
        (GAPS, CANCER[1]),
        "label probabilities",
    ),
    "ridge": (linear_model.Ridge(), DIABETES, "variable"),
    "svr": (scaled(svm.SVR()), DIABETES, "variable"),
    "forest, regression": (ensemble.RandomForestRegressor(10, random_state=0), DIABETES, "variable"),
    "hist boosting, regression": (ensemble.HistGradientBoostingRegressor(max_iter=20), DIABETES, "variable"),
    "several values": (MultiOutputRegressor(linear_model.Ridge()), (DIABETES[0], TWO_VALUES), "variable"),
    "forest, several values": (
        ensemble.RandomForestRegressor(5, random_state=0),
        (DIABETES[0], TWO_VALUES),
        "variable",
    ),
    "forest, several labels": (
        ensemble.RandomForestClassifier(5, random_state=0),
        (IRIS[0], TWO_CLASSES),
        "label probabilities",
    ),
    "several labels": (
        MultiOutputClassifier(linear_model.LogisticRegression()),
        (IRIS[0], TWO_CLASSES),
        "label probabilities_0 probabilities_1",
    ),
    "scaler": (StandardScaler(), CANCER, "variable"),
    "quantiles": (QuantileTransformer(n_quantiles=50), IRIS, "variable"),
    "bins": (KBinsDiscretizer(4), IRIS, "variable"),
    "text": (
        make_pipeline(TfidfVectorizer(), linear_model.LogisticRegression()),
        (["the cat sat", "the dog ran", "a cat ran fast", "Birds, fly!"] * 5, [0, 1, 0, 1] * 5),
        "label probabilities",
    ),
}


def boosted():
    """Families of other packages; only what is installed."""
    import lightgbm
    import xgboost

    return {
        "LGBMClassifier": (
            lightgbm.LGBMClassifier(n_estimators=20, verbose=-1),
            (IRIS[0], CLASSES),
            "label probabilities",
        ),
        "LGBMRegressor": (lightgbm.LGBMRegressor(n_estimators=20, verbose=-1), DIABETES, "variable"),
        "XGBClassifier": (xgboost.XGBClassifier(n_estimators=20), CANCER, "label probabilities"),
        "XGBRegressor": (xgboost.XGBRegressor(n_estimators=20), DIABETES, "variable"),
        "XGBClassifier in a pipeline": (scaled(xgboost.XGBClassifier(n_estimators=10)), IRIS, "label probabilities"),
    }


def fit(model, data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence: the models are to be exported, not to be good
        return model.fit(*data)
