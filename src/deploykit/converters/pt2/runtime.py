"""Exported programs in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from deploykit.artifact import TensorSpec
from deploykit.converters.torch_files import TorchRuntime, damaged, read_tag
from deploykit.errors import DeploykitError
from deploykit.unpickling import tensors_only

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deploykit.runtime import Runtime, RuntimeOptions


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The program in eager PyTorch. Raises InvalidFileError (DK528), ModelError (DK605), UnavailableError (DK502)."""
    program = read(path)
    facts = read_tag(path) or own_interface(program)
    module = program.module()
    signature, layout = program.graph_signature, program.call_spec.in_spec
    taken = {node.name for node in program.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)}

    def call(tensors: Sequence[Any]) -> Any:
        rest = iter(tensors)
        values = [next(rest) if given in taken else given for given in _given(signature)]
        args, kwargs = pytree.tree_unflatten(values, layout)
        return module(*args, **kwargs)

    return TorchRuntime(facts["inputs"], facts["outputs"], call, options, "torch.export")


def read(path: Path) -> Any:
    """The program; nothing but tensors is unpickled. Raises InvalidFileError (DK528), ModelError (DK605)."""
    with tensors_only():
        try:
            return torch.export.load(path)
        except DeploykitError:
            raise
        except Exception as problem:  # the loader raises many kinds for damaged archives
            raise damaged(path, f"{type(problem).__name__}: {problem}") from problem


def own_interface(program: Any) -> dict[str, Any]:
    """Inputs and outputs as the program itself calls them."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    inputs = tuple(_spec(name, values[name]) for name in _given(signature) if _is_tensor(values.get(str(name))))
    outputs = [name for name in signature.user_outputs if _is_tensor(values.get(str(name)))]
    names = ["output"] if len(outputs) == 1 else [f"output_{place}" for place in range(len(outputs))]
    kinds = {spec.dtype for spec in inputs}
    return {
        "inputs": inputs,
        "outputs": tuple(_spec(name, values[own]) for name, own in zip(names, outputs, strict=True)),
        "precision": "fp16" if "float16" in kinds else "bf16" if "bfloat16" in kinds else "fp32",
    }


def _given(signature: Any) -> list[Any]:
    """What fills each place of the call: the name of an input, or a constant."""
    return list(signature.user_inputs)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _spec(name: str, value: Any) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return TensorSpec(name, str(value.dtype).removeprefix("torch."), shape)
