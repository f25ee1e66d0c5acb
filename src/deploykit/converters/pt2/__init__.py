"""PyTorch's exported programs: `.pt2` by torch.export, run by PyTorch without the module's Python code."""

from __future__ import annotations

from deploykit.route import Route
from deploykit.target import Target

TARGET = Target(
    name="pt2",
    title="PyTorch exported program",
    suffix=".pt2",
    format="pt2",
    extra="torch",
    packages=("torch",),
    distributions=("torch",),
    precisions=("fp32", "fp16", "bf16"),
    runtime="deploykit.converters.pt2.runtime:load",
    inspect="deploykit.converters.pt2.inspect:describe",
    worker="pt2",
    elsewhere="give the PyTorch source, as model.py:Net or a .pt2: nothing maintained reads ONNX into PyTorch",
    routes={
        "torch": Route(
            title="torch.export",
            writer="deploykit.converters.pt2.torch_route:write",
            kinds=("python", "pt2"),
        ),
    },
)
