from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deploykit.data import open_data, parse_input

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploykit.data import Dataset


@pytest.fixture
def real() -> Path:
    """Real models and labelled data, where they are present beside the project."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "models"
    if not folder.is_dir():
        pytest.skip("no ../shared/models here")
    return folder


@pytest.fixture
def opened() -> Callable[..., Dataset]:
    """Opens data for inputs given as text; parity is the purpose that asks least."""

    def open_text(source: object, *inputs: str, **options: object) -> Dataset:
        specs = tuple(parse_input(text) for text in inputs)
        return open_data(None if source is None else str(source), specs, **{"purpose": "parity", **options})

    return open_text
