"""A model with one node that int8 breaks, whatever the method, and what it takes to search it in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from quantize_models import AFFINE, onnx_text

from deploykit.data.request import data_request
from deploykit.quantize.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 16
PLANTED = "planted"
# Products of one call: 16 rows of 8x8, 8x64 and 64x4.
MACS = {PLANTED: ROWS * 8 * 8, "wide": ROWS * 8 * 64, "last": ROWS * 64 * 4}


def planted_model(folder: Path) -> Path:
    """Rows of very different size go through `planted` before they are normalised: one scale cannot hold them all.

    What breaks it is the spread between rows, which neither clipping nor a shift between channels takes away.
    """
    rng = np.random.default_rng(0)
    return onnx_text(
        """agraph (float[16,8] x) => (float[16,4] y) {
            [planted] h = MatMul (x, w1)
            size = ReduceL2 <axes=[1]> (h)
            some = Add (size, tiny)
            n = Div (h, some)
            [wide] a = MatMul (n, w2)
            r = Relu (a)
            [last] y = MatMul (r, w3)
        }""",
        folder / "planted.onnx",
        tiny=np.array(1e-9, np.float32),
        w1=rng.normal(size=(8, 8)).astype(np.float32),
        w2=rng.normal(size=(8, 64)).astype(np.float32),
        w3=rng.normal(size=(64, 4)).astype(np.float32),
    )


def planted_data(folder: Path, *, count: int = 12, seed: int = 1) -> Path:
    """Feeds for it, with the float model's own classes as labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count * ROWS, 8)) * 10.0 ** rng.uniform(-3, 3, size=(count * ROWS, 1))
    path = folder / f"planted-{seed}.npz"
    np.savez(path, x=x.astype(np.float32))
    return path


def settings_for(calib: Path, **given: Any) -> Settings:
    """Settings of a job in the scheme of onnxruntime's kernels."""
    return Settings(scheme=AFFINE, data=data_request(str(calib), "calibration"), **given)


def budget(data: Path, metric: str, max_drop: float) -> dict[str, Any]:
    """The accuracy of a job."""
    return {"data": data_request(str(data), "accuracy"), "metric": metric, "max_drop": max_drop}
