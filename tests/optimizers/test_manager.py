"""The manager repeats passes to a fixed point, and says when there is none."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from deploykit.errors import ModelError
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass, PassManager


def model() -> ir.Model:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { a = Relu(x) y = Neg(a) }'
    return ir.from_proto(onnx.parser.parse_model(text))


class Rename(Pass):
    """Counts a name up to a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.done = 0

    def run(self, model: ir.Model) -> bool:
        self.done += 1
        return self.done < self.limit


def test_it_ends_with_the_first_round_that_changes_nothing():
    step = Rename(3)
    assert PassManager([step]).run(model()) == 2
    assert step.done == 3


def test_a_pass_that_never_rests_is_an_error_that_names_it():
    with pytest.raises(ModelError, match="Rename") as refused:
        PassManager([Rename(100)], limit=4).run(model())
    assert refused.value.code == "DK635"


def test_required_shapes_are_there_when_the_pass_runs():
    seen = []

    class Look(Pass):
        requires = (INFERRED_SHAPES,)

        def run(self, model: ir.Model) -> bool:
            seen.append(next(iter(model.graph)).outputs[0].shape)
            return False

    PassManager([Look()]).run(model())
    assert seen[0] == ir.Shape([2])
