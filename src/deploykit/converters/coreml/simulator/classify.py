"""The classifier's operator: a label and a dictionary."""

from __future__ import annotations

from typing import Any

from deploykit.converters.coreml.simulator.table import Array, evaluates


@evaluates("classify")
def classify(probabilities: Array, classes: Any) -> list[Any]:
    """The label of the largest value (iOS15/classify.py), the first of equal ones, and {label: value}."""
    values = probabilities.ravel()
    labels = [item.item() if hasattr(item, "item") else item for item in classes]
    return [labels[int(values.argmax())], dict(zip(labels, map(float, values), strict=True))]
