"""Facts of nodes of models in ONNX text, and conditions as the operator tables have them."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from deploykit.opsupport.facts import facts_of


@pytest.fixture(scope="session")
def nodes_of():
    """Facts of all nodes of a graph in text: `(float[2] x) => (float[2] y) { y = Relu (x) }`."""

    def nodes(graph, opset=20, imports="", **options):
        header = f'<ir_version: 10, opset_import: ["": {opset}{imports}]>'
        return facts_of(ir.from_proto(parser.parse_model(f"{header} g {graph}")), **options)

    return nodes


@pytest.fixture(scope="session")
def last_of(nodes_of):
    """As `nodes_of`, of the last node."""
    return lambda graph, opset=20, imports="", **options: nodes_of(graph, opset, imports, **options)[-1]


@pytest.fixture(scope="session")
def condition():
    """A condition with a check and its arguments."""

    def make(check, subject="a subject", rule="a rule", kind="other", **arguments):
        return {"kind": kind, "subject": subject, "rule": rule, "machine": {"check": check, **arguments}}

    return make
