"""Rows that mean something to a fitted model: within the ranges that it has seen, on thresholds, of its categories."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.exporters.sklearn_parts import children, fills_text, first, is_estimator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from deploykit.exporters.sklearn_source import SklearnSource

Array = np.ndarray[Any, Any]

_MARKS = 64  # thresholds of a feature that are tried
_UNSEEN = "no such category"
_NAN_SHARE = 0.05
_ANCHORS = 64
_WIDTHS = (0.05, 0.3, 1.0, 2.0)  # how far from its anchor a row lies, in the features' widths
_TABLES = ("cluster_centers_", "support_vectors_", "_fit_X", "theta_", "means_", "X_train_")


@dataclasses.dataclass(slots=True)
class Column:
    """What a model says about a feature: where its values lie, which of them are thresholds, what they may be.

    known: whether the model said where. choices: of a categorical feature, and what it takes for an unknown one.
    anchors: this feature of whole rows that mean something together: training rows, means, points on a boundary.
    """

    center: float = 0.0
    spread: float = 1.0
    known: bool = False
    marks: list[float] = dataclasses.field(default_factory=list)
    choices: list[Any] = dataclasses.field(default_factory=list)
    missing: bool = False
    anchors: list[float] = dataclasses.field(default_factory=list)

    def locate(self, center: float, spread: float) -> None:
        """Takes a place and a width in the feature's unit; the first one that is told counts."""
        if not self.known and np.isfinite(center) and np.isfinite(spread):
            self.center, self.spread, self.known = float(center), float(abs(spread)) or 1.0, True


def columns_of(model: Any, count: int) -> list[Column]:
    """One `Column` for each feature, from what the first fitted parts keep of the training data."""
    columns = [Column() for _ in range(count)]
    _visit(model, columns)
    for column in columns:
        if not column.known and column.marks:
            marks = np.asarray(column.marks)
            column.locate(float(np.median(marks)), float(marks.std()) or abs(float(marks[0])) / 2 or 1.0)
            column.anchors = column.anchors or np.sort(marks).tolist()  # so a row is low, or high, in all features
    return columns


def _visit(model: Any, columns: Sequence[Column]) -> None:
    for _, step in getattr(model, "steps", ()):
        if not hasattr(step, "statistics_"):
            break
        _read_facts(step, columns)  # and what comes after an imputer sees the same columns
    part = _after_imputers(model)
    if hasattr(part, "transformers_"):
        for name, inner, _ in part.transformers_:
            places = [int(place) for place in getattr(part, "_transformer_to_input_indices", {}).get(name, ())]
            if is_estimator(inner):
                _visit(inner, [columns[place] for place in places])
        return
    _read_facts(part, columns)
    for name, inner in children(part):
        if name != "final_estimator" and name != "preprocessor":
            _visit(inner, columns)


def _after_imputers(model: Any) -> Any:
    steps = [step for _, step in getattr(model, "steps", ()) if is_estimator(step)]
    while len(steps) > 1 and hasattr(steps[0], "statistics_"):
        steps = steps[1:]
    return first(steps[0]) if steps else first(model)


def _read_facts(part: Any, columns: Sequence[Column]) -> None:
    count = len(columns)
    for values, column in zip(_rows(part, "categories_", count), columns, strict=False):
        column.choices += list(np.asarray(values).tolist())
        if getattr(part, "handle_unknown", "error") in ("ignore", "use_encoded_value", "infrequent_if_exist"):
            column.choices.append(_UNSEEN if any(isinstance(item, str) for item in column.choices) else 999)
    if hasattr(part, "statistics_"):
        for column in columns:
            column.missing = True
            if fills_text(part):
                column.choices.append("")
        for column, value in zip(columns, part.statistics_, strict=False):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                column.locate(float(value), abs(float(value)) or 1.0)
    anchors = _anchors(part, count)
    for at, column in enumerate(columns if len(anchors) and not columns[0].anchors else ()):
        column.anchors = anchors[:, at].tolist()
    for center, spread in _places(part, count):
        for at, column in enumerate(columns):
            column.locate(center[at], spread[at])
    for feature, threshold in thresholds_of(part):
        if feature < count and np.isfinite(threshold):
            columns[feature].marks.append(threshold)
    if _takes_missing(part):
        for column in columns:
            column.missing = True


def _rows(part: Any, name: str, count: int) -> Iterable[Any]:
    found = getattr(part, name, None)
    return found if found is not None and len(found) == count else ()


def _places(part: Any, count: int) -> Iterator[tuple[Array, Array]]:
    """Centers and widths of the features, from scalers, tables of training rows, and weights, where there are any."""
    get = vars(part).get
    pairs = (
        (get("mean_"), get("scale_")),
        (get("center_"), get("scale_")),
        (
            get("mean_"),
            np.sqrt(np.mean(np.square(part.components_ * np.sqrt(part.explained_variance_)[:, None]), axis=0))
            if get("explained_variance_") is not None
            else None,
        ),
    )
    for center, spread in pairs:
        if center is not None and spread is not None and np.shape(center) == np.shape(spread) == (count,):
            yield np.asarray(center, np.float64), np.asarray(spread, np.float64)
    low, high = get("data_min_"), get("data_max_")
    if low is not None and np.shape(low) == (count,):
        yield (np.asarray(low) + high) / 2, (np.asarray(high) - low) / 2
    if np.shape(get("max_abs_")) == (count,):
        yield np.zeros(count), np.asarray(get("max_abs_"))
    for name in (*_TABLES, "quantiles_"):
        rows = get(name)
        if isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.shape[1] == count and len(rows):
            yield rows.mean(axis=0), rows.std(axis=0) + 1e-6 * np.abs(rows).max()
    weights, _ = _weights(part, count)
    if len(weights):
        size = np.abs(weights).max(axis=0)
        yield np.zeros(count), np.clip(1 / np.maximum(size * np.sqrt(count), 1e-3), 1e-3, 1e3)


def _weights(part: Any, count: int) -> tuple[Array, Array]:
    """Weights [outputs, features] and intercepts of a linear model, or of a network's first layer; empty for others."""
    layers = vars(part).get("coefs_")
    weights = vars(part).get("coef_") if not layers else layers[0].T
    if not isinstance(weights, np.ndarray) or not weights.size or np.atleast_2d(weights).shape[1] != count:
        return np.zeros((0, count)), np.zeros(0)
    weights = np.atleast_2d(np.asarray(weights, np.float64))
    offsets = vars(part).get("intercept_") if not layers else vars(part)["intercepts_"][0]
    offset = np.zeros(len(weights)) if np.size(offsets) != len(weights) else np.ravel(np.asarray(offsets, np.float64))
    return weights, offset


def _anchors(part: Any, count: int) -> Array:
    """Whole rows: of the training data, means of classes and clusters, and points around the boundary of a line."""
    for name in _TABLES:
        rows = vars(part).get(name)
        if isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.shape[1] == count:
            return np.asarray(rows[:: max(1, len(rows) // _ANCHORS)], np.float64)
    weights, offset = _weights(part, count)
    length = np.square(weights).sum(axis=1, keepdims=True)
    if not len(weights) or not np.all(length > 0):
        return np.zeros((0, count))
    return np.concatenate([(score - offset[:, None]) * weights / length for score in (-1.0, 0.0, 1.0)])


def thresholds_of(part: Any) -> Iterator[tuple[int, float]]:
    """(feature, threshold) of every split by a number in the part's own trees, not in those of its members."""
    tree = vars(part).get("tree_")
    if tree is not None:
        yield from ((int(f), float(t)) for f, t in zip(tree.feature, tree.threshold, strict=True) if f >= 0)
    for grown in np.ravel(np.asarray(vars(part).get("_predictors", []), object)):
        nodes = grown.nodes[(grown.nodes["is_leaf"] == 0) & (grown.nodes["is_categorical"] == 0)]
        yield from ((int(f), float(t)) for f, t in zip(nodes["feature_idx"], nodes["num_threshold"], strict=True))
    for name in ("bin_edges_", "quantiles_"):
        edges = vars(part).get(name)
        for feature, values in enumerate(
            () if edges is None else np.transpose(edges) if name == "quantiles_" else edges
        ):
            yield from ((feature, float(value)) for value in values)
    family = type(part).__module__.partition(".")[0]
    if family == "xgboost":
        for text in part.get_booster().get_dump(dump_format="json"):
            yield from _splits(json.loads(text), "split", "split_condition", ("children",), part)
    elif family == "lightgbm":
        for row in part.booster_.dump_model()["tree_info"]:
            yield from _splits(row["tree_structure"], "split_feature", "threshold", ("left_child", "right_child"), part)


def _splits(
    node: dict[str, Any], feature: str, threshold: str, below: tuple[str, ...], part: Any
) -> Iterator[tuple[int, float]]:
    if isinstance(node.get(threshold), (int, float)):
        name = node[feature]
        names = list(getattr(part, "feature_names_in_", ())) if isinstance(name, str) else []
        place = (
            names.index(name)
            if name in names
            else int(str(name).lstrip("f"))
            if str(name).lstrip("f").isdigit()
            else -1
        )
        if place >= 0:
            yield place, float(node[threshold])
    for key in below:
        inner = node.get(key, [])
        for child in inner if isinstance(inner, list) else [inner]:
            yield from _splits(child, feature, threshold, below, part)


def _takes_missing(part: Any) -> bool:
    if type(part).__module__.partition(".")[0] in ("xgboost", "lightgbm") or hasattr(part, "_predictors"):
        return True
    return "MissingIndicator" in type(part).__name__ or "KNNImputer" in type(part).__name__


def rows(source: SklearnSource, count: int, generator: np.random.Generator) -> dict[str, Array]:
    """Random feeds of `count` rows: normal around the features' centers, or categories; some values missing."""
    return _feeds(source, _values(_columns(source), count, generator), count, generator)


def threshold_rows(source: SklearnSource, count: int, generator: np.random.Generator) -> dict[str, Array] | None:
    """Feeds of rows whose features lie exactly on thresholds of trees; None for a model without any."""
    columns = _columns(source)
    if not any(column.marks for column in columns):
        return None
    made = []
    for column, drawn in zip(columns, _values(columns, count, generator), strict=True):
        values = drawn
        if column.marks:
            marks = np.unique(column.marks)
            chosen = generator.choice(marks, min(_MARKS, len(marks)), replace=False)
            values = generator.choice(chosen, count)
        made.append(values)
    return _feeds(source, made, count, generator)


def _columns(source: SklearnSource) -> list[Column]:
    inputs = source.inputs
    if inputs.text:
        return []
    return columns_of(
        source.model, len(inputs.specs) if inputs.by_column else int((inputs.specs[0].shape or (0, 0))[1])
    )


def _values(columns: Sequence[Column], count: int, generator: np.random.Generator) -> list[Array]:
    """One array for each column; the columns of a row share their anchor and how far they lie from it."""
    place, width = generator.random(count), generator.choice(_WIDTHS, count)
    return [_column(column, place, width, generator) for column in columns]


def _column(column: Column, place: Array, width: Array, generator: np.random.Generator) -> Array:
    count = len(place)
    if column.choices:
        picked = generator.integers(0, len(column.choices), count)
        chosen = np.empty(count, object)
        chosen[:] = [column.choices[at] for at in picked]
        return chosen
    anchors = np.asarray(column.anchors or [column.center])
    center = anchors[(place * len(anchors)).astype(int)]
    values = np.asarray(center + column.spread * width * generator.standard_normal(count))
    if column.missing:
        values[generator.random(count) < _NAN_SHARE] = np.nan
    return values


def _feeds(source: SklearnSource, values: list[Array], count: int, generator: np.random.Generator) -> dict[str, Array]:
    inputs = source.inputs
    if inputs.text:
        return {inputs.specs[0].name: _texts(source, count, generator)}
    if not inputs.by_column:
        spec = inputs.specs[0]
        return {spec.name: _typed(np.stack([column.astype(object) for column in values], axis=1), spec.dtype)}
    return {
        spec.name: _typed(column.astype(object), spec.dtype)[:, None]
        for spec, column in zip(inputs.specs, values, strict=True)
    }


def _typed(values: Array, dtype: str) -> Array:
    if dtype == "string":
        return np.asarray(np.vectorize(str, otypes=[object])(values))
    if dtype in ("int64", "bool"):
        numbers = np.vectorize(lambda v: float(v) if isinstance(v, (int, float)) else 0.0, otypes=[float])(values)
        return np.asarray(np.nan_to_num(np.round(numbers)).astype(dtype))
    return values.astype(dtype)


def _texts(source: SklearnSource, count: int, generator: np.random.Generator) -> Array:
    """Texts of words of the vocabulary, in small and capital letters, with punctuation and unknown words."""
    spec = source.inputs.specs[0]
    words = [word for word in first(source.model).vocabulary_ if isinstance(word, str)][:2000]
    made = np.empty(count, object)
    for row in range(count):
        picked = [str(generator.choice(words)) for _ in range(int(generator.integers(1, 12)))]
        if row % 3 == 0:
            picked = [word.capitalize() for word in picked]
        if row % 4 == 0:
            picked.insert(len(picked) // 2, "unheard, of!")
        made[row] = " ".join(picked)
    return made if len(spec.shape or ()) == 1 else made[:, None]
