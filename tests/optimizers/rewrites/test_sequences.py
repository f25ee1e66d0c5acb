"""Sequences of known length, compared with onnxruntime's own sequence operators."""

from __future__ import annotations

import onnx
import pytest

from deploykit.optimizers.rewrites.sequences import UnpackSequences


def model(body, outputs="float[N, 6] y", opset=17, constants=""):
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph (float[N, 6] x, float[N, 6] z) => ({outputs}) {f"<{constants}>" if constants else ""} {{ {body} }}"""


def test_shared_case(shared, unchanged_values):
    ops = unchanged_values(UnpackSequences(), onnx.load(shared / "cases" / "sequence_ops.onnx"))
    assert ops == ["Split", "Concat", "ReduceSum", "Add"]


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(
    ("split", "constants", "new_axis", "shape"),
    [
        ("SplitToSequence <axis = 1> (x, p)", "int64 p = {4}", 0, "N, 6"),
        ("SplitToSequence <axis = -1> (x, p)", "int64[3] p = {1, 2, 3}", 0, "N, 6"),
        ("SplitToSequence <axis = 1, keepdims = 0> (x, p)", "int64[3] p = {2, 2, 2}", 0, "N, 6"),
        ("SplitToSequence <axis = 1, keepdims = 0> (x)", "int64 p = {4}", 1, "N, 6"),
        ("SplitToSequence <axis = 1> (x)", "int64 p = {4}", 0, "N, 6"),
    ],
)
def test_split_and_concatenation(opset, split, constants, new_axis, shape, unchanged_values):
    text = model(
        f"s = {split} y = ConcatFromSequence <axis = 1, new_axis = {new_axis}> (s)",
        f"float[{shape}] y",
        opset,
        constants,
    )
    ops = unchanged_values(UnpackSequences(), text, {"N": 2}, {"N": 1})
    assert "Concat" in ops


def test_insertion_removal_position_and_length(unchanged_values):
    text = model(
        """a = SequenceConstruct (x, z)
        r = Relu (x)
        b = SequenceInsert (a, r, i)
        c = SequenceErase (b)
        e = SequenceEmpty ()
        f = SequenceInsert (e, z)
        y = SequenceAt (b, k)
        u = ConcatFromSequence <axis = 0> (c)
        w = SequenceAt (f, i)
        n = SequenceLength (b)""",
        "float[N, 6] y, float[M, 6] u, float[N, 6] w, int64 n",
        constants="int64 i = {0}, int64 k = {-1}",
    )
    ops = unchanged_values(UnpackSequences(), text, {"N": 2})
    assert not [op for op in ops if "Sequence" in op]


@pytest.mark.parametrize(
    "body",
    [
        "s = SplitToSequence <axis = 0> (x) y = SequenceAt (s, i)",
        "s = SplitToSequence <axis = 1> (x) j = Size (x) y = SequenceAt (s, j)",
        "s = SequenceConstruct (x, z) y = SequenceAt (s, far)",
    ],
)
def test_what_is_known_at_run_time_only_is_declined(body, never_applies):
    never_applies(UnpackSequences(), model(body, "float[M, K] y", constants="int64 i = {0}, int64 far = {2}"))
