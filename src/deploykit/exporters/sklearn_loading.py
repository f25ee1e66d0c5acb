"""scikit-learn models, loaded: `.skops` files without running code from them, pickles only when they are trusted."""

from __future__ import annotations

import importlib.metadata
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.errors import ModelError, UsageError
from deploykit.exporters.diagnosis import reason
from deploykit.exporters.sklearn_parts import objects
from deploykit.report import Finding, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# Types that skops 0.16 does not trust by itself and that are harmless here. It leaves the two tree types out because
# a crafted file can hold node numbers outside of the tree (scikit-learn/scikit-learn#34558): `_check_trees` looks.
# The others are plain containers and settings of training.
CHECKED_TYPES = (
    "sklearn.tree._tree.Tree",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
)
PLAIN_TYPES = (
    "collections.OrderedDict",
    "numpy.dtype",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.model_selection._split.KFold",
    "sklearn.model_selection._split.StratifiedKFold",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.utils._bunch.Bunch",
)
_SHOWN = 8
_BOMB_RATIO = 200
_BOMB_BYTES = 256 << 20


def load_estimator(path: Path, kind: str, *, trust: bool) -> tuple[Any, list[Finding]]:
    """The fitted model of a `.skops` file or of a trusted pickle, and what is to be said about it.

    Raises ModelError (DK670) for types that are not trusted, (DK671) for a damaged or hostile file, UsageError (DK672)
    for what is no fitted model.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = _load_skops(path, trust=trust) if kind == "skops" else _load_pickle(path)
    if not trust:
        _check_trees(model, path)
    _check_fitted(model, path)
    return model, _other_version(caught)


def _load_skops(path: Path, *, trust: bool) -> Any:
    import skops.io

    try:
        _check_size(path)
        unknown = skops.io.get_untrusted_types(file=path)
        unknown = [name for name in unknown if name not in (*CHECKED_TYPES, *PLAIN_TYPES)]
        if unknown and not trust:
            raise _untrusted(path, unknown)
        return skops.io.load(path, trusted=[*CHECKED_TYPES, *PLAIN_TYPES, *unknown])
    except ModelError:
        raise
    except (ImportError, AttributeError) as problem:
        raise _no_class(path, problem) from problem
    except Exception as problem:  # skops, zipfile, json and numpy raise many kinds for files that are not in order
        raise _damaged(path, reason(problem)) from problem


def _check_size(path: Path) -> None:
    """Refuses archives that unpack to far more than they hold."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    packed = max(path.stat().st_size, 1)
    if unpacked > _BOMB_BYTES and unpacked > _BOMB_RATIO * packed:
        raise _damaged(path, f"{packed:,} bytes would become {unpacked:,}")


def _untrusted(path: Path, names: list[str]) -> ModelError:
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return ModelError(
        f"{path} holds types that are loaded only on trust: {shown}",
        code="DK670",
        file=path,
        context=["nothing was loaded"],
        hint="if you know where the file comes from, let these types run their code: "
        f"deploykit export {path} --trust -o model.onnx",
    )


def _no_class(path: Path, problem: Exception) -> ModelError:
    return ModelError(
        f"{path} needs what cannot be imported here: {reason(problem)}",
        code="DK671",
        file=path,
        hint="install the package that it was made with; put classes of your own script in a module on PYTHONPATH",
    )


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(
        f"{path} cannot be read as a scikit-learn model: {why}",
        code="DK671",
        file=path,
        hint=f"save it again with scikit-learn {importlib.metadata.version('scikit-learn')}",
    )


def _load_pickle(path: Path) -> Any:
    import joblib

    try:
        return joblib.load(path)
    except (ImportError, AttributeError) as problem:
        raise _no_class(path, problem) from problem
    except Exception as problem:  # the file's own code runs here
        raise _damaged(path, reason(problem)) from problem


def _check_trees(model: Any, path: Path) -> None:
    """Raises ModelError (DK671) for trees that lead outside of themselves: scikit-learn follows them unchecked."""
    for found in objects(model):
        kind = f"{type(found).__module__}.{type(found).__name__}"
        sound = True
        if kind == CHECKED_TYPES[0]:
            state = found.__getstate__()
            nodes = state["nodes"]
            leaf = nodes["left_child"] == -1
            sound = len(state["values"]) == len(nodes) and _leads_down(nodes["left_child"], nodes["right_child"], leaf)
            sound = sound and _below(nodes["feature"][~leaf], int(found.n_features))
        elif kind == CHECKED_TYPES[1]:
            nodes, leaf = found.nodes, found.nodes["is_leaf"].astype(bool)
            sound = _leads_down(nodes["left"], nodes["right"], leaf) and _bitsets_fit(found)
        elif hasattr(found, "__dict__"):
            sound = _trees_fit(vars(found))
        if not sound:
            raise _damaged(path, "a tree in it has nodes that lead outside of it")


def _trees_fit(owner: Mapping[str, Any]) -> bool:
    """Whether the trees of an estimator ask for no more features than it is given."""
    most = owner.get("n_features_in_")
    if most is None:
        return True
    for tree in np.ravel(np.asarray(owner.get("_predictors") or [], object)):
        if not _below(tree.nodes["feature_idx"][~tree.nodes["is_leaf"].astype(bool)], int(most)):
            return False
    members = np.ravel(np.asarray(owner.get("estimators_", []), object))
    trees = [owner.get("tree_"), *(vars(member).get("tree_") for member in members if hasattr(member, "__dict__"))]
    return all(tree is None or int(tree.n_features) <= int(most) for tree in trees)


def _leads_down(left: Any, right: Any, leaf: Any) -> bool:
    """Whether both children of each inner node come after it, as scikit-learn writes them: no cycles, no strays."""
    if not len(left):
        return False
    inner, places = ~leaf, np.arange(len(left))
    return all(
        bool((side[inner].astype(np.int64) > places[inner]).all()) and _below(side[inner], len(left))
        for side in (left, right)
    )


def _below(values: Any, limit: int) -> bool:
    numbers = values.astype(np.int64)
    return bool(((numbers >= 0) & (numbers < limit)).all())


def _bitsets_fit(tree: Any) -> bool:
    nodes = tree.nodes
    splits = nodes["is_categorical"].astype(bool) & ~nodes["is_leaf"].astype(bool)
    return _below(nodes["bitset_idx"][splits], len(tree.raw_left_cat_bitsets))


def _check_fitted(model: Any, path: Path) -> None:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if not hasattr(model, "get_params") or not (hasattr(model, "predict") or hasattr(model, "transform")):
        raise UsageError(
            f"{path.name} holds a {type(model).__name__}, and not a scikit-learn estimator that predicts or transforms",
            code="DK672",
            file=path,
            hint="save the fitted estimator or pipeline itself",
        )
    try:
        check_is_fitted(model)
    except (NotFittedError, TypeError) as problem:
        raise UsageError(
            f"the {type(model).__name__} in {path.name} is not fitted",
            code="DK672",
            file=path,
            hint="call fit before saving",
        ) from problem


def _other_version(caught: Iterable[warnings.WarningMessage]) -> list[Finding]:
    """A warning when the file was written by another scikit-learn than the one that answers for it here."""
    for entry in caught:
        was = getattr(entry.message, "original_sklearn_version", None)
        if was is not None:
            now = importlib.metadata.version("scikit-learn")
            text = f"the model was saved by scikit-learn {was}, and {now} is what loads it and answers for it here"
            return [warning("DK673", text, hint=f"pip install scikit-learn=={was}, or save the model again")]
    return []
