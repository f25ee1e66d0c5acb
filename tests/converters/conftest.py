"""Models in ONNX text as files, and the Q/DQ convolution that both engines' int8 kernels are tested with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADER = '<ir_version: 10, opset_import: ["": 20, "my.ops": 1]>\n'


@pytest.fixture
def onnx_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes ONNX text; keyword arrays become initializers."""

    def write(text: str, name: str = "model.onnx", header: str = HEADER, **arrays: np.ndarray) -> Path:
        model = parser.parse_model(header + text)
        model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in arrays.items())
        path = tmp_path / name
        onnx.save(model, path)
        return path

    return write


@pytest.fixture
def int8_conv(onnx_file: Callable[..., Path]) -> Path:
    """Conv and Relu between Q/DQ pairs, weights per channel, bias int32."""
    rng = np.random.default_rng(7)
    return onnx_file(
        """agraph (float[N,4,8,8] x) => (float[N,10,8,8] y) {
            [qx] xq = QuantizeLinear (x, xs, xz)
            [dx] xd = DequantizeLinear (xq, xs, xz)
            [dw] wd = DequantizeLinear <axis = 0> (w, ws, wz)
            [db] bd = DequantizeLinear <axis = 0> (b, bs, bz)
            [conv] c = Conv <pads = [1,1,1,1]> (xd, wd, bd)
            [relu] r = Relu (c)
            [qy] yq = QuantizeLinear (r, ys, yz)
            [dy] y = DequantizeLinear (yq, ys, yz)
        }""",
        "int8.onnx",
        xs=np.float32(0.02),
        xz=np.uint8(128),
        ys=np.float32(0.03),
        yz=np.uint8(0),  # a fitted zero point: after a Relu, 0 makes the Relu itself superfluous
        w=rng.integers(-64, 65, (10, 4, 3, 3)).astype(np.int8),
        ws=np.full(10, 0.01, np.float32),
        wz=np.zeros(10, np.int8),
        b=rng.integers(-500, 500, 10).astype(np.int32),
        bs=np.full(10, np.float32(0.02) * np.float32(0.01), np.float32),
        bz=np.zeros(10, np.int32),
    )
