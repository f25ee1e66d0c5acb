"""litert-torch's work, in its managed environment: a file of torch.export to a LiteRT file (runs there)."""

from __future__ import annotations

import importlib.metadata
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LONG = 500  # characters of a reason


def convert_job(program: str, output: str, varying: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Writes `output` of the program that torch.export.save wrote, in 32 bits, its tensors flat and in order.

    varying: for each tensor that goes in, the axes whose size varies, as {"axis": 1}.
    Returns {"versions"}, and "refused" with the reason and what litert-torch printed of it, where it takes no such
    program.
    """
    import litert_torch
    import torch

    exported = torch.export.load(program)
    args, kwargs = exported.example_inputs
    given, spec = torch.utils._pytree.tree_flatten((args, kwargs))
    facts: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in ("litert-torch", "litert-converter", "torch")}
    }
    if not all(isinstance(value, torch.Tensor) for value in given) or len(given) != len(varying):
        return facts | {"refused": "it takes something else than tensors"}

    class Flat(torch.nn.Module):  # type: ignore[misc]
        """Takes and gives tensors one after another."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = exported.module()
            self.training = False  # eval() would reach an exported module, which has no modes

        def forward(self, *tensors: Any) -> Any:
            positional, named = torch.utils._pytree.tree_unflatten(list(tensors), spec)
            return tuple(torch.utils._pytree.tree_leaves(self.inner(*positional, **named)))

    dynamic = [{axes[key]: torch.export.Dim.DYNAMIC for key in axes} for axes in varying]
    options = {"dynamic_shapes": {"tensors": tuple(dynamic)}} if any(dynamic) else {}
    try:
        made = litert_torch.convert(Flat(), tuple(given), **options)
        made.export(output)
    except Exception as problem:  # of torch.export, of its lowerings and of its converter
        traceback.print_exception(problem)
        lines = [line for line in str(problem).splitlines() if line.strip()]
        said = " ".join((lines or [""])[0].split())
        return facts | {"refused": f"{type(problem).__name__}: {said}"[:_LONG]}
    return facts | {"written": Path(output).stat().st_size}
