"""A module's outputs as named tensors, and the module as a function of tensors only, which every exporter takes."""

from __future__ import annotations

import collections.abc
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx_ir as ir

    from deploykit.exporters.torch_arguments import Binding

_PREFIX = "module."


def flatten(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every leaf of what `forward` returns with its keys, None left out.

    Dicts and `ModelOutput`s by key, named tuples and dataclasses by field, tuples and lists by index; other classes as
    they are registered with torch's pytree.
    """
    if value is None:
        return
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    items: list[tuple[str, Any]]
    if isinstance(value, collections.abc.Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = list(zip(value._fields, value, strict=True))
    elif isinstance(value, list | tuple):
        items = [(str(at), item) for at, item in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    else:
        leaves = pytree.tree_flatten_with_path(value)[0]
        if len(leaves) == 1 and not leaves[0][0]:
            yield path, value
            return
        items = [(".".join(map(_key, keys)), leaf) for keys, leaf in leaves]
    for key, item in items:
        yield from flatten(item, (*path, key))


def _key(entry: Any) -> str:
    return str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", entry))))


def names_of(paths: Sequence[tuple[str, ...]], taken: set[str]) -> tuple[str, ...]:
    """Output names from their keys: `output`, `output_0`, `logits`, `past_0_key`; none twice, none of the inputs'."""
    found: list[str] = []
    for path in paths:
        keys = [part for key in path for part in key.split(".")]
        name = "output" if not keys else "_".join(["output", *keys] if keys[0].isdigit() else keys)
        name = f"{name}_out" if name in taken else name
        unique, at = name, 1
        while unique in found:
            unique, at = f"{name}_{at}", at + 1
        found.append(unique)
    return tuple(found)


def is_plain(value: Any) -> bool:
    """Whether exporters name the outputs in the order of `flatten`: one tensor, or a tuple or list of tensors."""
    if isinstance(value, list | tuple):
        return not hasattr(value, "_fields") and all(isinstance(item, torch.Tensor) for item in value)
    return isinstance(value, torch.Tensor)


class Flat(torch.nn.Module):  # type: ignore[misc]
    """A module called with its inputs in order, that returns a tuple of its output tensors."""

    def __init__(self, module: torch.nn.Module, binding: Binding) -> None:
        super().__init__()
        self.module = module
        self._binding = binding
        self.training = module.training

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs in the order of `flatten`."""
        args, kwargs = self._binding.build(tensors)
        return tuple(leaf for _, leaf in flatten(self.module(*args, **kwargs)))


def unwrap_names(model: ir.Model) -> None:
    """Takes the wrapper's prefix off weights and nodes: they are called as in the user's module."""
    taken = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    for scope in model.graphs():
        for value in list(scope.initializers.values()):
            name = str(value.name).removeprefix(_PREFIX)
            if name != value.name and name not in scope.initializers and name not in taken:
                value.name = name
        for node in scope:
            for prefix in ("/module/", _PREFIX):
                if node.name and node.name.startswith(prefix):
                    node.name = node.name.removeprefix(prefix)
