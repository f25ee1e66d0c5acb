"""The estimators inside an estimator, each with the place where a user finds it: `pre > cat (OneHotEncoder)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

# What holds a fitted part under a name: (attribute, position of the part in each of its tuples).
_NAMED = (("steps", 1), ("transformers_", 1), ("transformer_list", 1))
_WHOLE = (
    "best_estimator_",
    "estimator_",
    "regressor_",
    "final_estimator_",
    "transformer_",
    "_preprocessor",
)
_LISTS = ("estimators_", "calibrated_classifiers_")
_SEVERAL = 8  # members of an ensemble are alike


def is_estimator(value: Any) -> bool:
    """Whether the object is a fitted part, and not the word that a pipeline has in its place."""
    return value is not None and not isinstance(value, str) and hasattr(value, "get_params")


def parts(model: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The model and every estimator in it, outermost first, with its place; of ensembles the first members."""
    yield place, model
    for name, part in children(model):
        yield from parts(part, f"{place} > {name}" if place else name)


def children(model: Any) -> Iterator[tuple[str, Any]]:
    """The estimators directly inside an estimator, by name."""
    for attribute, at in _NAMED:
        for row in getattr(model, attribute, None) or ():
            if is_estimator(row[at]):
                yield str(row[0]), row[at]
    for attribute in _WHOLE:
        part = _part(model, attribute)
        if part is not None:
            yield attribute.strip("_"), part
    for attribute in _LISTS:
        members = _attribute(model, attribute)
        if isinstance(members, (list, tuple, np.ndarray)):
            for at, part in enumerate(list(np.ravel(np.asarray(members, object)))[:_SEVERAL]):
                inner = getattr(part, "estimator", None) if not is_estimator(part) else part
                if is_estimator(inner):
                    yield f"{attribute.strip('_')}[{at}]", inner


def _attribute(model: Any, name: str) -> Any:
    # By the dictionary: properties of estimators may compute, or raise.
    return vars(model).get(name) if hasattr(model, "__dict__") else None


def _part(model: Any, name: str) -> Any | None:
    """The fitted part under a name; an ensemble's `estimator_` is the pattern of its members, and not fitted."""
    part = _attribute(model, name)
    pattern = name == "estimator_" and _attribute(model, "estimators_") is not None
    return part if is_estimator(part) and not pattern else None


def named(model: Any, part: Any) -> str:
    """`step 'pre > cat' (OneHotEncoder)`, or the class alone when the part is the model itself."""
    kind = type(part).__name__
    for place, found in parts(model):
        if found is part:
            return f"step {place!r} ({kind})" if place else kind
    return kind


def first(model: Any) -> Any:
    """The part that the inputs reach first: the first step that does something, whatever is around it."""
    while True:
        inner = None
        if steps := getattr(model, "steps", None):
            inner = next((part for _, part in steps if is_estimator(part)), None)
        else:
            for attribute in ("best_estimator_", "regressor_", "estimator_"):
                part = _part(model, attribute)
                if part is not None:
                    inner = part
                    break
            if inner is None and not hasattr(model, "transformers_"):
                inner = next((part for name, part in children(model) if name.startswith("estimators[0]")), None)
                inner = None if inner is None or not _wraps_whole(model, inner) else inner
        if inner is None:
            return model
        model = inner


def _wraps_whole(model: Any, inner: Any) -> bool:
    """Whether a member of an ensemble sees the same inputs as the ensemble, in a form that tells more than it does."""
    return hasattr(inner, "steps") or hasattr(inner, "transformers_") or hasattr(inner, "categories_")


def fills_text(part: Any) -> bool:
    """Whether the part is an imputer of text columns that takes NaN or None for missing."""
    missing, values = getattr(part, "missing_values", ""), getattr(part, "statistics_", ())
    if isinstance(missing, str):
        return False
    return any(isinstance(value, str) for value in values)


def objects(root: Any) -> Iterator[Any]:
    """Every object that is reachable from the root through attributes and containers, each once."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or value is None or isinstance(value, (str, bytes, int, float, bool, type)):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple, set)):
            waiting += value
        elif isinstance(value, np.ndarray):
            if value.dtype == object:
                waiting += value.ravel().tolist()
        elif hasattr(value, "__dict__") and not callable(value):
            waiting += vars(value).values()
