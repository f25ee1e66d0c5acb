"""TorchScript in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from deploykit.artifact import TensorSpec
from deploykit.converters.torch_files import TorchRuntime, damaged, members, read_tag
from deploykit.errors import InvalidFileError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deploykit.runtime import Runtime, RuntimeOptions


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The module in PyTorch's interpreter. Raises InvalidFileError (DK528), UnavailableError (DK502)."""
    module = read(path)
    facts = read_tag(path) or own_interface(module)
    places: Sequence[int | str] = facts["places"]

    def call(tensors: Sequence[Any]) -> Any:
        named = {place: value for place, value in zip(places, tensors, strict=True) if isinstance(place, str)}
        numbered = {place: value for place, value in zip(places, tensors, strict=True) if isinstance(place, int)}
        return module(*(numbered[place] for place in sorted(numbered)), **named)

    return TorchRuntime(facts["inputs"], facts["outputs"], call, options, "TorchScript")


def read(path: Path) -> Any:
    """The module. Raises InvalidFileError (DK528) for another archive, as torch.save writes: it is not unpickled."""
    names = members(path)
    if not any(name.endswith("/constants.pkl") for name in names) or not any("/code/" in name for name in names):
        raise InvalidFileError(
            f"{path.name} is no TorchScript: it was saved by torch.save, and has no program",
            code="DK528",
            file=path,
            target="torchscript",
            hint=f"deploykit convert model.py:Net --weights {path.name} --to torchscript -o OUT.pt",
        )
    try:
        return torch.jit.load(str(path), map_location="cpu").eval()
    except (RuntimeError, ValueError, OSError) as problem:
        raise damaged(path, str(problem)) from problem


def own_interface(module: Any) -> dict[str, Any]:
    """What a module made elsewhere tells: the names of its tensors; TorchScript has no shapes."""
    taken = list(module.forward.schema.arguments)[1:]
    inputs = tuple(TensorSpec(a.name, "float32", None) for a in taken if str(a.type) == "Tensor")
    kinds = {str(value.dtype).removeprefix("torch.") for value in module.state_dict().values()}
    precision = "fp16" if "float16" in kinds else "bf16" if "bfloat16" in kinds else "fp32"
    return {"inputs": inputs, "outputs": (), "precision": precision, "places": [spec.name for spec in inputs]}
