"""Rewrites tried on models in ONNX text: values before and after, and what every rewrite promises."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.reference import Reference


def _load(model):
    proto = onnx.parser.parse_model(model) if isinstance(model, str) else model
    made = ir.from_proto(proto)
    graph.name_nodes(made)
    return proto, graph.infer_shapes(made)


def _feeds(proto, dims, seed=0):
    rng = np.random.default_rng(seed)
    constants = {tensor.name for tensor in proto.graph.initializer}
    feeds = {}
    for value in proto.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else dims[dim.dim_param] for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype == np.bool_:
            feeds[value.name] = rng.random(shape) > 0.5
        elif np.issubdtype(dtype, np.integer):
            feeds[value.name] = rng.integers(0, 5, shape).astype(dtype)
        else:
            feeds[value.name] = rng.normal(size=shape).astype(dtype)
    return feeds


@pytest.fixture(scope="session")
def unchanged_values():
    """Applies a rewrite to all nodes that it applies to and compares all outputs; returns the new model's operators.

    dims: sizes of symbolic dimensions, one run for each. feeds: instead of random inputs. ops: the operators that are
    rewritten (None: those that the rewrite applies to, which have to be some).
    """

    def check(rewrite, model, *dims, feeds=None, tolerance=1e-5, ops=None):
        proto, made = _load(model)
        before = graph.interface(made)
        nodes = [node for node in graph.all_nodes(made) if (ops is None or node.op_type in ops)]
        untouched = ir.to_proto(made).SerializeToString()
        nodes = [node for node in nodes if rewrite.applies(node, made)]
        assert nodes, "the rewrite applies to no node"
        assert ir.to_proto(made).SerializeToString() == untouched, "applies() changed the model"
        for node in nodes:
            node.metadata_props["pkg.torch.onnx.name_scopes"] = "['net']"
        changes = rewrite.apply(made, nodes)
        assert changes
        there = {node.name: node for node in graph.all_nodes(made)}
        gone = {name for change in changes for name in change.removed}
        for change in changes:
            assert change.removed
            assert change.text
            for name in set(change.added) - gone:
                assert there[name].metadata_props["pkg.torch.onnx.name_scopes"] == "['net']"
        assert graph.interface(made) == before
        names = [node.name for node in graph.all_nodes(made)]
        assert len(set(names)) == len(names)
        result = ir.to_proto(made)
        onnx.checker.check_model(result, full_check=True)
        old, new = Reference(proto.SerializeToString()), Reference(result.SerializeToString())
        try:
            for sizes in dims or ({},):
                given = _feeds(proto, sizes) if feeds is None else feeds
                wanted, got = old.predict(given), new.predict(given)
                for name, value in wanted.items():
                    assert got[name].dtype == value.dtype
                    assert got[name].shape == value.shape
                    np.testing.assert_allclose(
                        got[name].astype(np.float64), value.astype(np.float64), rtol=tolerance, atol=tolerance
                    )
        finally:
            old.close()
            new.close()
        return [node.op_type for node in graph.all_nodes(made)]

    return check


@pytest.fixture(scope="session")
def never_applies():
    """Checks that a rewrite declines every node of a model, and that apply leaves the model as it is."""

    def check(rewrite, model):
        _, made = _load(model)
        nodes = list(graph.all_nodes(made))
        assert not [node.name for node in nodes if rewrite.applies(node, made)]
        before = ir.to_proto(made).SerializeToString()
        assert rewrite.apply(made, nodes) == []
        assert ir.to_proto(made).SerializeToString() == before

    return check
