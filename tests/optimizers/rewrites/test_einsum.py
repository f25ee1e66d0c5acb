"""Einsum equations, compared with onnxruntime's kernel and with numpy."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deploykit import graph
from deploykit.optimizers.rewrites.einsum import DecomposeEinsum, parse
from deploykit.reference import Reference

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 2, "f": 3}


def model(equation, shapes, rank, opset=13, dtype="float"):
    names = [f"x{at}" for at in range(len(shapes))]
    given = ", ".join(
        f"{dtype}[{', '.join(map(str, shape))}] {name}" for name, shape in zip(names, shapes, strict=True)
    )
    out = f"[{', '.join(f'o{at}' for at in range(rank))}]" if rank else ""
    return f"""<ir_version: 8, opset_import: ["": {opset}]>
    agraph ({given}) => ({dtype}{out} y) {{ y = Einsum <equation = "{equation}"> ({", ".join(names)}) }}"""


EQUATIONS = [
    ("ij,jk->ik", [("N", 3), (3, 4)], 2),
    ("ij , kj -> ki", [("N", 3), (4, 3)], 2),
    ("bhid,bhjd->bhij", [("N", 2, "S", 4), ("N", 2, "T", 4)], 4),
    ("bhij,bhjd->bhid", [("N", 2, "S", "T"), ("N", 2, "T", 4)], 4),
    ("bind,bjnd->bnij", [("N", "S", 2, 4), ("N", "T", 2, 4)], 4),
    ("bnij,bjnd->bind", [("N", 2, "S", "T"), ("N", "T", 2, 4)], 4),
    ("bfhw,fo->bohw", [("N", 3, "S", "T"), (3, 5)], 4),
    ("abc,cde->abde", [("N", "S", 3), (3, "T", 2)], 4),
    ("abcd,cdef->abef", [("N", 2, "S", "T"), ("S", "T", 2, 3)], 4),
    ("ij->ji", [("N", 3)], 2),
    ("ij->", [("N", 3)], 0),
    ("ij->j", [("N", 3)], 1),
    ("ij", [("N", 3)], 2),
    ("ba", [("N", 3)], 2),
    ("i,j->ij", [("N",), (3,)], 2),
    ("i,i", [("N",), ("N",)], 0),
    ("i,i->i", [("N",), ("N",)], 1),
    ("ij,j->i", [("N", 3), (3,)], 1),
    ("ab,ab,ab->a", [("N", 3), ("N", 3), ("N", 3)], 1),
    ("ij,jk,kl->il", [("N", 3), (3, "S"), ("S", 2)], 2),
    ("ij,kl->ijkl", [("N", 3), (2, "S")], 4),
    ("ii->i", [(3, 3)], 1),
    ("ii", [(3, 3)], 0),
    ("iij,jk->ik", [(3, 3, 2), (2, "N")], 2),
    ("...ij,...jk->...ik", [("N", 2, 3, 4), ("N", 2, 4, 5)], 4),
    ("...ij,jk->...ik", [("N", 2, 3, 4), (4, 5)], 4),
    ("...ij,...jk", [("N", 2, 3, 4), ("N", 1, 4, 5)], 4),
    ("i...->...i", [("N", 2, 3)], 3),
    ("...ij->...ji", [("N", "S", 3)], 3),
    ("bij,bjk->bik", [("N", 2, 3), (1, 3, 4)], 3),
]


@pytest.mark.parametrize("opset", [12, 13, 18])
@pytest.mark.parametrize(("equation", "shapes", "rank"), EQUATIONS)
def test_equation(equation, shapes, rank, opset, unchanged_values):
    sizes = [{"N": 2, "S": 3, "T": 4}, {"N": 3, "S": 1, "T": 5}]
    text = model(equation, shapes, rank, opset)
    assert "Einsum" not in unchanged_values(DecomposeEinsum(), text, *sizes)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_equation(data):
    labels = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True)
    terms = data.draw(st.lists(labels, min_size=1, max_size=3))
    every = sorted({label for term in terms for label in term})
    output = data.draw(st.lists(st.sampled_from(every), max_size=5, unique=True))
    assume(len(every) <= 6)
    symbolic = data.draw(st.sets(st.sampled_from(every)))
    equation = ",".join("".join(term) for term in terms) + "->" + "".join(output)
    shapes = [tuple(f"D{label}" if label in symbolic else SIZES[label] for label in term) for term in terms]
    made = graph.name_nodes(ir.from_proto(onnx.parser.parse_model(model(equation, shapes, len(output)))))
    graph.infer_shapes(made)
    node = made.graph[0]
    assert DecomposeEinsum().applies(node, made)
    DecomposeEinsum().apply(made, [node])
    graph.infer_shapes(made)
    proto = ir.to_proto(made)
    onnx.checker.check_model(proto, full_check=True)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=[SIZES[label] for label in term]).astype(np.float32) for term in terms]
    got = Reference(proto.SerializeToString()).predict({f"x{at}": array for at, array in enumerate(arrays)})["y"]
    expected = np.einsum(equation, *arrays)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_integers(unchanged_values):
    unchanged_values(DecomposeEinsum(), model("ij,jk->ik", [("N", 3), (3, 4)], 2, dtype="int32"), {"N": 2})


def test_the_product_keeps_no_reshape_where_none_is_needed(unchanged_values):
    ops = unchanged_values(DecomposeEinsum(), model("bij,bjk->bik", [("N", 2, 3), ("N", 3, 4)], 3), {"N": 2})
    assert ops == ["MatMul"]


@pytest.mark.parametrize("equation", ["ij->ijk", "ij->ii", "ijk->i", "i1->i", "ij,jk->ik", "->", "i->i"])
def test_equations_that_do_not_fit(equation):
    assert parse(equation, [2]) is None


def test_what_is_not_known_is_declined(never_applies):
    never_applies(DecomposeEinsum(), model("ii->i", [("N", "N")], 1))
    never_applies(DecomposeEinsum(), model("...i,...i->...i", [("N", 2), ("M", 2)], 2))
