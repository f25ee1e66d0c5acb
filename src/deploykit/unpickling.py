"""Exported programs of PyTorch, read without running anything that a file brings. Import it beside torch only."""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

from deploykit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def tensors_only() -> Iterator[None]:
    """Keeps `torch.export.load` from unpickling anything but tensors.

    PyTorch 2.13 reads pickled weights and constants of a .pt2 with weights_only=False, so a file could run code.
    Raises ModelError (DK605) where it would.
    """
    import torch

    load, loads = torch.load, pickle.loads

    def safe_load(*args: Any, **options: Any) -> Any:
        return load(*args, **{**options, "weights_only": True})

    def refuse(*_: Any, **__: Any) -> Any:
        raise ModelError(
            "the exported program has pickled objects, and loading them would run code: they were not loaded",
            code="DK605",
            hint="export the program again without custom objects",
        )

    torch.load, pickle.loads = safe_load, refuse
    try:
        yield
    finally:
        torch.load, pickle.loads = load, loads
