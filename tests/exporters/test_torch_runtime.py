"""The float source answers as a Runtime, exactly as PyTorch does."""

from __future__ import annotations

import numpy as np
import torch

from deploykit.artifact import TensorSpec
from deploykit.exporters.torch_runtime import TorchRuntime


def test_the_source_is_a_runtime_with_symbolic_shapes(tmp_path):
    (tmp_path / "net_for_runtime.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x, y):\n        return x @ y, x.sum()\n"
    )
    specs = (TensorSpec("x", "float32", ("rows", 4)), TensorSpec("y", "float32", (4, "columns")))
    runtime = TorchRuntime(
        {
            "kind": "python",
            "path": str(tmp_path / "net_for_runtime.py"),
            "module": None,
            "factory": "Net",
            "weights": None,
            "args": {},
            "inputs": [spec.as_dict() for spec in specs],
            "dims": {},
            "sample": None,
            "seed": 0,
        }
    )
    assert runtime.execution == "real"
    assert [spec.shape for spec in runtime.outputs] == [("rows", "columns"), ()]
    x, y = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)[:, :4]
    outputs = runtime.predict({"x": x, "y": y})
    np.testing.assert_array_equal(outputs["output_0"], (torch.from_numpy(x) @ torch.from_numpy(y)).numpy())
