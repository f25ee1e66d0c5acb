"""Nodes whose result differs from run to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

RANDOM_OPS = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}


def stochastic_nodes(path: Path) -> list[str]:
    """Nodes of an ONNX file that draw random numbers, as `name (op)`; empty for files of other suffixes."""
    if path.suffix != ".onnx":
        return []
    from deploykit.graph.reading import load

    return stochastic_in(load(path))


def stochastic_in(model: ir.Model) -> list[str]:
    """As `stochastic_nodes`, for a model that has been loaded."""
    from deploykit.graph.naming import all_nodes

    return [
        f"{node.name or '(unnamed)'} ({node.op_type})"
        for node in all_nodes(model)
        if node.domain in ("", "ai.onnx") and (node.op_type in RANDOM_OPS or _drops(node))
    ]


def _drops(node: ir.Node) -> bool:
    """Whether a Dropout is in training mode (its third input is there and not known to be false)."""
    training = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
    if training is None:
        return False
    known = training.const_value
    return known is None or bool(known.numpy())
