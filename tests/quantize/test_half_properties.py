"""Random graphs: whatever the model, the half one is valid, keeps its interface and computes the same."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from half_models import FORMATS, halved, run_half
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantize_models import run

from deploykit.quantize.half_formats import FLOAT16

UNARY = ["Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Identity", "Softplus", "HardSigmoid", "Floor", "Erf"]
BINARY = ["Add", "Sub", "Mul", "Max", "Min"]
SHAPES = ["Transpose", "Reshape", "Concat", "Slice", "Resize", "Softmax", "ReduceMean", "ReduceSum", "MatMul"]
OTHERS = ["Cast", "Shape", "TopK", "If", "ConstantOfShape", "Where", "Clip", "Range", "Gather"]


class Builder:
    """A graph over [2, 4] tensors, one step at a time; every step reads what steps before gave."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.values = ["x", "z"]
        self.weights: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(draw(st.integers(0, 2**16)))

    def pick(self) -> str:
        return self.draw(st.sampled_from(self.values))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = self.rng.normal(size=shape).astype(np.float32)
        return name

    def step(self, index: int) -> None:
        op, a, b, out = (
            self.draw(st.sampled_from(UNARY + BINARY + SHAPES + OTHERS)),
            self.pick(),
            self.pick(),
            f"v{index}",
        )
        if op in UNARY:
            self.lines.append(f"[n{index}] {out} = {op} ({a})")
        elif op in BINARY:
            self.lines.append(f"[n{index}] {out} = {op} ({a}, {b})")
        else:
            self.lines += getattr(self, f"_{op.lower()}")(index, a, b, out)
        self.values.append(out)

    def _transpose(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"t{i} = Transpose <perm=[1,0]> ({a})", f"m{i} = MatMul (t{i}, {b})", f"{out} = MatMul ({b}, m{i})"]

    def _reshape(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"r{i} = Reshape ({a}, flat)", f"{out} = Reshape (r{i}, back)"]

    def _concat(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"c{i} = Concat <axis=0> ({a}, {b})", f"{out} = MatMul ({self.weight(2, 4)}, c{i})"]

    def _slice(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"s{i} = Slice ({a}, zero1, two1, one1)", f"{out} = Concat <axis=1> (s{i}, s{i})"]

    def _resize(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [
            f"u{i} = Unsqueeze ({a}, axes01)",
            f'z{i} = Resize <mode="nearest", coordinate_transformation_mode="asymmetric"> (u{i}, , scales)',
            f"q{i} = Squeeze (z{i}, axes01)",
            f"{out} = Slice (q{i}, zero2, size24)",
        ]

    def _softmax(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"{out} = Softmax <axis=-1> ({a})"]

    def _reducemean(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"r{i} = ReduceMean <axes=[1]> ({a})", f"{out} = Add (r{i}, {b})"]

    def _reducesum(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"r{i} = ReduceSum ({a}, one1)", f"{out} = Sub ({b}, r{i})"]

    def _matmul(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"[n{i}] {out} = MatMul ({a}, {self.weight(4, 4)})"]

    def _cast(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"h{i} = Greater ({a}, zerof)", f"{out} = Cast <to=1> (h{i})"]

    def _shape(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [
            f"h{i} = Shape ({a})",
            f"f{i} = Cast <to=1> (h{i})",
            f"p{i} = ReduceSum (f{i}, zero1)",
            f"{out} = Add ({b}, p{i})",
        ]

    def _topk(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"{out}, k{i} = TopK (c{i}, four1)", f"c{i} = Identity ({a})"][::-1]

    def _if(self, i: int, a: str, b: str, out: str) -> list[str]:
        body = f"then_branch = t{i} () => (float[2,4] ty{i}) {{ ty{i} = Mul ({a}, {b}) }}"
        other = f"else_branch = e{i} () => (float[2,4] ey{i}) {{ ey{i} = Add ({a}, {self.weight(1, 4)}) }}"
        return [f"{out} = If (flag) < {body}, {other} >"]

    def _constantofshape(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [
            f"h{i} = Shape ({a})",
            f"o{i} = ConstantOfShape <value = float[1] {{0.5}}> (h{i})",
            f"{out} = Mul (o{i}, {b})",
        ]

    def _where(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"{out} = Where (flag, {a}, {b})"]

    def _clip(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"{out} = Clip ({a}, low, high)"]

    def _range(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"r{i} = Range (zerof, fourf, onef)", f"{out} = Add ({a}, r{i})"]

    def _gather(self, i: int, a: str, b: str, out: str) -> list[str]:
        return [f"{out} = Gather <axis=0> ({a}, rows)"]


CONSTANTS = {
    "flat": np.int64([8]), "back": np.int64([2, 4]), "zero1": np.int64([0]), "one1": np.int64([1]),
    "two1": np.int64([2]), "four1": np.int64([4]), "axes01": np.int64([0, 1]), "zero2": np.int64([0, 0]),
    "size24": np.int64([2, 4]), "scales": np.float32([1, 1, 2, 2]), "zerof": np.float32(0), "onef": np.float32(1),
    "fourf": np.float32(4), "low": np.float32(-3.4e38), "high": np.float32(2.5), "rows": np.int64([1, 0]),
}  # fmt: skip


@st.composite
def models(draw: st.DrawFn) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model with two inputs and a flag, and feeds for it."""
    builder = Builder(draw)
    for index in range(draw(st.integers(1, 8))):
        builder.step(index)
    last = builder.values[-1]
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[2,4] x, float[2,4] z, bool flag) => (float[2,4] y, float[2,4] second) {{
        {" ".join(builder.lines)} y = Tanh ({last})  second = Mul ({builder.pick()}, {last})
    }}"""
    model = onnx.parser.parse_model(text)
    constants = {**CONSTANTS, **builder.weights}
    used = {name for node in model.graph.node for name in node.input} | {
        name for node in model.graph.node for a in node.attribute for inner in a.g.node for name in inner.input
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items() if n in used)
    feeds = {name: builder.rng.normal(size=(2, 4)).astype(np.float32) for name in ("x", "z")}
    return model, {**feeds, "flag": np.array(draw(st.booleans()))}


def allowed(path: Path, model: onnx.ModelProto, feeds: dict[str, np.ndarray], eps: float) -> float | None:
    """How far the outputs may be off: each node rounds values as large as the largest, and its readers pass that on.

    eps: relative error of one rounding. None where the float model itself jumps on a tiny change of its inputs (Floor,
    Greater, TopK), or has values beyond a thousand: no precision holds then.
    """
    tapped = onnx.shape_inference.infer_shapes(model)
    known = {value.name for value in tapped.graph.output}
    singles = [v for v in tapped.graph.value_info if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    tapped.graph.output.extend(value for value in singles if value.name not in known)
    onnx.save(tapped, path)
    reference = run(path, feeds, optimize=False)
    largest = max(float(np.abs(value).max(initial=0)) for value in [*reference.values(), np.ones(1)])
    if largest > 1e3:
        return None
    for factor in (1 + 2 * eps, 1 - 2 * eps):
        moved = {n: (f * np.float32(factor) if f.dtype == np.float32 else f) for n, f in feeds.items()}
        for name, value in run(path, moved, optimize=False).items():
            if np.abs(reference[name] - value).max(initial=0) > 16 * eps * largest:
                return None
    return 4 * eps * largest * len(model.graph.node)


@pytest.mark.parametrize("precision", FORMATS)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(case=models(), keep_io=st.booleans())
def test_half_models_are_valid_and_keep_their_interface(tmp_path_factory, precision, case, keep_io):
    model, feeds = case
    form = FORMATS[precision]
    path = tmp_path_factory.mktemp("half") / "m.onnx"
    onnx.save(model, path)
    out, half, _ = halved(path, form, keep_io=keep_io)  # runs the full checker
    wanted = ir.DataType.FLOAT if keep_io else form.dtype
    assert [(v.name, v.dtype) for v in half.graph.inputs] == [("x", wanted), ("z", wanted), ("flag", ir.DataType.BOOL)]
    assert [(v.name, v.dtype) for v in half.graph.outputs] == [("y", wanted), ("second", wanted)]
    assert [list(v.shape) for v in half.graph.outputs] == [[2, 4], [2, 4]]
    found = run_half(out, half, feeds, form)
    if form is FLOAT16:
        given_feeds = {
            n: f.astype(np.float16) if f.dtype == np.float32 and not keep_io else f for n, f in feeds.items()
        }
        run(out, given_feeds)  # loads with every optimisation
    reference = run(path, feeds, optimize=False)
    limit = allowed(path.with_name("tapped.onnx"), model, feeds, 2.0**-11 if form is FLOAT16 else 2.0**-8)
    for name, expected in reference.items():
        assert found[name].shape == expected.shape
        if limit is not None:
            assert np.abs(found[name].astype(np.float64) - expected).max() <= limit
