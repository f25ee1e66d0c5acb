"""Applies one rewrite to a model in ONNX text, and holds it to what every rewrite promises."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from deploykit import graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.optimizers.rewriting import Change, Rewrite

    Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """The model before and after, what was done, and the outputs of both for each feed."""

    before: onnx.ModelProto
    model: ir.Model
    changes: Sequence[Change]
    expected: list[list[Array]]
    found: list[list[Array]]

    @property
    def ops(self) -> list[str]:
        return [node.op_type for node in graph.all_nodes(self.model)]


class ApplyRewrite(Protocol):
    def __call__(
        self,
        rewrite: Rewrite,
        model: str | onnx.ModelProto,
        *feeds: Mapping[str, Array],
        opset: int = 17,
        microsoft: bool = False,
        only: Sequence[str] | None = None,
        has_kernels: bool = True,
    ) -> Rewritten: ...


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs of onnxruntime with graph optimisation off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def evaluate(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Outputs of ONNX's own evaluator, for operators that onnxruntime has no kernel for."""
    return list(ReferenceEvaluator(proto).run(None, dict(feeds)))


@pytest.fixture
def rewritten() -> ApplyRewrite:
    """Applies a rewrite to every node that it applies to (or to those named in `only`) and runs both models.

    has_kernels: whether onnxruntime runs the model before; ONNX's evaluator says otherwise what is right.

    Whatever the rewrite is: the full check takes the model, the interface is the same, no name comes twice, metadata
    stays.
    """

    def apply(
        rewrite: Rewrite,
        model: str | onnx.ModelProto,
        *feeds: Mapping[str, Array],
        opset: int = 17,
        microsoft: bool = False,
        only: Sequence[str] | None = None,
        has_kernels: bool = True,
    ) -> Rewritten:
        if isinstance(model, str):
            domains = f'"": {opset}' + (', "com.microsoft": 1' if microsoft else "")
            proto = onnx.parser.parse_model(f"<ir_version: 9, opset_import: [{domains}]>\n{model}")
        else:
            proto = model
        loaded = graph.name_nodes(graph.infer_shapes(ir.from_proto(proto)))
        for node in graph.all_nodes(loaded):
            node.metadata_props["scope"] = "net/block"
        nodes = [node for node in graph.all_nodes(loaded) if only is None or node.name in only]
        changes = rewrite.apply(loaded, [node for node in nodes if rewrite.applies(node, loaded)])
        after = ir.to_proto(loaded)
        onnx.checker.check_model(after, full_check=not microsoft)
        assert graph.interface(loaded) == graph.interface(ir.from_proto(proto))
        names = [node.name for node in graph.all_nodes(loaded)]
        assert all(names)
        assert len(names) == len(set(names))
        assert all("scope" in node.metadata_props for node in graph.all_nodes(loaded) if node.op_type != "Constant")
        for change in changes:
            assert set(change.added) <= set(names)
            assert not set(change.removed) & set(names)
        judge = run if has_kernels else evaluate
        expected, found = [judge(proto, feed) for feed in feeds], [run(after, feed) for feed in feeds]
        for before, now in zip(expected, found, strict=True):
            assert [(a.dtype, a.shape) for a in before] == [(b.dtype, b.shape) for b in now]
        return Rewritten(proto, loaded, changes, expected, found)

    return apply


@pytest.fixture
def random() -> np.random.Generator:
    """Numbers that are the same in every run."""
    return np.random.default_rng(3)
