"""Each rewrite of types and opsets on every model and case beside the checkout, proven as --fix proves it."""

from __future__ import annotations

import pytest

from deploykit import graph
from deploykit.equivalence import compare_models
from deploykit.errors import DeploykitError
from deploykit.optimizers.rewrites.convert_opset import NewerOpset, OlderOpset, OlderOpsetByTwo
from deploykit.optimizers.rewrites.double_to_float import DoubleToFloat
from deploykit.optimizers.rewrites.type_changes import (
    Int32AsInt64,
    IntegersAsFloat,
    NarrowInt64,
    SmallIntegersAsFloat,
    SmallIntegersAsInt32,
)
from deploykit.parity import row_for

REWRITES = [
    *(NarrowInt64(), SmallIntegersAsInt32(), SmallIntegersAsFloat(), Int32AsInt64(), IntegersAsFloat()),
    *(OlderOpset(), OlderOpsetByTwo(), NewerOpset(), DoubleToFloat()),
]
# Bytes; larger ones take minutes, and have nothing that smaller ones have not.
LARGEST = 12_000_000
# onnxruntime has no kernel for what they become (RandomNormal of opset 22), or refuses them on purpose.
LEFT_OUT = {("random_not_folded.onnx", "newer-opset")}


def apply(rewrite, path):
    """The rewritten model as --fix would save it, and its changes; None where nothing applies."""
    model = graph.name_nodes(graph.load(path))
    declared = {value.name for node in graph.all_nodes(model) for value in node.outputs if value.type is not None}
    shapes = [(value, value.shape) for value in model.graph.outputs]
    graph.infer_shapes(model)
    nodes = [node for node in graph.all_nodes(model) if rewrite.applies(node, model)]
    changes = rewrite.apply(model, nodes) if nodes else []
    for node in graph.all_nodes(model):
        for value in node.outputs:
            if not value.is_graph_output() and value.name not in declared:
                value.shape = value.type = None
    for value, shape in shapes:
        value.shape = shape
    by_name = {value.name: shape for value, shape in shapes}
    for value in model.graph.outputs:
        value.shape = by_name.get(value.name, value.shape)
    return model, changes


@pytest.mark.slow
@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.name)
def test_every_model_gives_what_it_gave(rewrite, shared, tmp_path):
    proven, wrong = 0, []
    for path in sorted([*(shared / "models").rglob("*.onnx"), *(shared / "cases").glob("*.onnx")]):
        if path.stat().st_size > LARGEST or (path.name, rewrite.name) in LEFT_OUT:
            continue
        try:
            model, changes = apply(rewrite, path)
        except DeploykitError:  # cases that are refused when they are read
            continue
        if not changes:
            continue
        out = tmp_path / path.name
        graph.save(model, out)
        bound = "fp32"
        for change in changes:
            bound = row_for(bound, change.bound)
        removed = {name for change in changes for name in change.removed}
        result = compare_models(path, out, bound=bound, requantized=removed, samples=2)
        errors = [finding["message"] for finding in result["findings"] if finding["severity"] == "error"]
        wrong += [f"{path.name}: {message}" for message in errors]
        proven += result["compared"]
    assert not wrong
    assert proven >= (3 if rewrite.name in ("narrow-int64", "older-opset", "newer-opset", "older-opset-by-two") else 0)
