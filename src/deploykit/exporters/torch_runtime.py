"""The float PyTorch source as a Runtime, so that anything can be compared with it; opened in the torch worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from deploykit.artifact import TensorSpec
from deploykit.exporters import torch_call, torch_source
from deploykit.runtime import Runtime

if TYPE_CHECKING:
    from deploykit.exporters.request import TorchRequest
    from deploykit.runtime import Feeds, Outputs


class TorchRuntime(Runtime):
    """The module in eager mode, in evaluation mode, without gradients, on the CPU.

    Raises what `torch_source.load` and `torch_call.prepare` raise.
    """

    def __init__(self, request: TorchRequest) -> None:
        self._call = torch_call.prepare(torch_source.load(request), request)
        self.engine = f"PyTorch {torch.__version__}, eager"
        self.inputs = self._call.specs
        example = {name: torch_call.as_array(tensor) for name, tensor in self._call.example.items()}
        sizes = {
            size: dim
            for spec in self.inputs
            for dim, size in zip(spec.shape or (), example[spec.name].shape, strict=True)
            if isinstance(dim, str)
        }
        # An output dimension as large as a symbol's example is that symbol: example sizes are chosen to differ.
        self.outputs = tuple(
            TensorSpec(name, array.dtype.name, tuple(sizes.get(size, size) for size in array.shape))
            for name, array in self._call.run(example).items()
        )

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, called as the exported file calls them."""
        return self._call.run(feeds)
