"""TorchScript: `.pt` by tracing or scripting a PyTorch module, run by PyTorch or LibTorch without Python."""

from __future__ import annotations

from deploykit.route import Route
from deploykit.target import Target

TARGET = Target(
    name="torchscript",
    title="TorchScript",
    suffix=".pt",
    format="torchscript",
    extra="torch",
    packages=("torch",),
    distributions=("torch",),
    precisions=("fp32", "fp16", "bf16"),
    options={
        "method": "trace: record one run; script: compile the source code; auto: script where values of tensors "
        "decide what the module does, trace otherwise",
    },
    runtime="deploykit.converters.torchscript.runtime:load",
    inspect="deploykit.converters.torchscript.inspect:describe",
    worker="torchscript",
    elsewhere="give the PyTorch source, as model.py:Net or a .pt2: nothing maintained reads ONNX into PyTorch",
    routes={
        "torch": Route(
            title="torch.jit",
            writer="deploykit.converters.torchscript.torch_route:write",
            kinds=("python", "pt2", "torchscript"),
            options=("method",),
            takes=("module",),
        ),
    },
)
