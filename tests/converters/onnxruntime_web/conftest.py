from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deploykit.converters.onnxruntime_web.convert import convert_job
from deploykit.converters.onnxruntime_web.package import why_no_browser, why_not

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def node() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)


@pytest.fixture
def browser() -> None:
    if (reason := why_no_browser()) is not None:
        pytest.skip(reason)


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., tuple[Path, dict[str, Any]]]:
    """Converts a model to a page's folder; options and bounds by keyword."""

    def make(model: Path, backend: str = "wasm", dims: Any = None, **options: Any) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path / f"{model.stem}-{backend}"
        facts = convert_job(str(model), str(folder), {"version": backend, **options}, dims or {}, {}, "fp32")
        return folder, facts

    return make
