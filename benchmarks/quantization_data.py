"""How the quantization benchmark lays a model and its data, and where the published ones lie."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    Feeds = dict[str, np.ndarray]

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "models"


def lay(folder: Path, model: str | Path, calib: Iterable[Feeds], scored: Iterable[Feeds]) -> None:
    """Writes the folder of a model; feeds may hold the label `y`."""
    source = Path(model) if Path(model).is_absolute() else SHARED / model
    if source != folder / "model.onnx":
        shutil.copyfile(source, folder / "model.onnx")
    for name, feeds in (("calib", calib), ("eval", scored)):
        (folder / name).mkdir()
        for index, feed in enumerate(feeds):
            np.savez(folder / name / f"{index:04}.npz", **feed)


def rows(name: str, array: np.ndarray, labels: np.ndarray) -> list[Feeds]:
    """One feed a row."""
    return [{name: array[i : i + 1], "y": labels[i]} for i in range(len(array))]


def halves(feeds: list[Feeds]) -> tuple[list[Feeds], list[Feeds]]:
    """Every other feed calibrates, the others are scored."""
    return feeds[::2], feeds[1::2]
