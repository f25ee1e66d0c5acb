"""Shapes: reshaping, joining, splitting, padding, types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.lowering.context import (
    OpContext,
    Refused,
    constant,
    is_fixed,
    like,
    lowers,
    narrowed,
    positive_axis,
)
from deploykit.opsupport.verdict import Verdict, supported, unknown, unsupported

if TYPE_CHECKING:
    from deploykit.converters.coreml.lowering.node import Node

_SINCE_TYPES = (13, 14, 16, 19, 21, 23, 24, 25)


def known_rank(node: Node) -> Verdict:
    """The predicate of whatever needs the rank of its first input."""
    if node.rank(0) is None:
        return unknown("the rank of its input is unknown", remedy="export with a known rank")
    return supported()


def as_shape(sizes: list[Any]) -> Any:
    """A shape for MIL from numbers and scalar variables: a list when all are numbers, otherwise a vector variable."""
    if all(isinstance(size, (int, np.integer)) for size in sizes):
        return [int(size) for size in sizes]
    parts = [size if isinstance(size, Var) else constant(np.array(int(size), np.int32)) for size in sizes]
    return mb.concat(values=[mb.expand_dims(x=part, axes=[0]) for part in parts], axis=0)


def _size(variable: Var, axis: int) -> Any:
    size = variable.shape[axis]
    if isinstance(size, (int, np.integer)):
        return int(size)
    return mb.squeeze(x=mb.slice_by_index(x=mb.shape(x=variable), begin=[axis], end=[axis + 1]), axes=[0])


@lowers("Reshape", since=(5, 13, 14, 19, 21, 23, 24, 25))
def reshape(op: OpContext) -> Var:
    """Reshape; 0 copies the input's size at the same position from the left (spec, Reshape-14).

    MIL counts zeros from the right since iOS17, so they never reach it.
    """
    x, wanted = op.input(0), op.constant(1)
    if wanted is None:
        return mb.reshape(x=x, shape=op.input(1))
    sizes: list[Any] = [int(size) for size in wanted.reshape(-1)]
    if not sizes:
        return mb.squeeze(x=x) if x.rank else mb.identity(x=x)
    if 0 in sizes and op.flag("allowzero"):
        raise Refused("allowzero=1 makes an empty tensor, which Core ML does not have", "remove the empty tensor")
    copied = [axis for axis, size in enumerate(sizes) if size == 0]
    for axis in copied:
        sizes[axis] = x.shape[axis] if isinstance(x.shape[axis], (int, np.integer)) else None
    varying = [axis for axis, size in enumerate(sizes) if size is None]
    if len(varying) == 1 and -1 not in sizes:
        sizes[varying[0]] = -1  # the only unknown: the same size follows from the number of elements
    elif varying:
        sizes = [_size(x, axis) if size is None else size for axis, size in enumerate(sizes)]
    return mb.reshape(x=x, shape=as_shape(sizes))


@lowers("Flatten", since=(1, 9, 11, 13, 21, 23, 24, 25), when=known_rank)
def flatten(op: OpContext) -> Var:
    """2-D: the sizes before the axis multiplied, and the rest."""
    x = op.input()
    axis = positive_axis(op.integer("axis", 1), x.rank)
    before, after = list(x.shape[:axis]), list(x.shape[axis:])
    if all(isinstance(size, (int, np.integer)) for size in after):
        return mb.reshape(x=x, shape=[-1, int(np.prod([int(size) for size in after]))])
    if all(isinstance(size, (int, np.integer)) for size in before):
        return mb.reshape(x=x, shape=[int(np.prod([int(size) for size in before])), -1])
    raise Refused("sizes on both sides of its axis vary", "fix one side, or give a Reshape with a known size")


@lowers("Transpose", since=(1, 13, 21, 23, 24, 25), when=known_rank)
def transpose(op: OpContext) -> Var:
    """Permutes axes; reversed when no permutation is given."""
    x = op.input()
    if x.rank == 0:
        return mb.identity(x=x)
    return mb.transpose(x=x, perm=op.ints("perm", list(reversed(range(x.rank)))))


def _axes_known(node: Node) -> Verdict:
    if node.has(1) and node.constant(1) is None:
        return unknown("its axes are computed while the model runs", remedy="deploykit simplify MODEL")
    return known_rank(node)


@lowers("Squeeze", since=(1, 11, 13, 21, 23, 24, 25), when=_axes_known)
def squeeze(op: OpContext) -> Var:
    """Removes axes of size 1."""
    x, axes = op.input(), op.integers("axes", 1)
    if axes is None:
        axes = [axis for axis, size in enumerate(x.shape) if isinstance(size, (int, np.integer)) and size == 1]
        if not is_fixed(x):
            raise Refused("without axes, what it removes depends on sizes that vary", "give the axes")
    return mb.squeeze(x=x, axes=axes) if axes else mb.identity(x=x)


@lowers("Unsqueeze", since=(1, 11, 13, 21, 23, 24, 25), when=_axes_known)
def unsqueeze(op: OpContext) -> Var:
    """Adds axes of size 1; positions count in the result."""
    x, axes = op.input(), op.integers("axes", 1) or []
    rank = x.rank + len(axes)
    return mb.expand_dims(x=x, axes=sorted(positive_axis(axis, rank) for axis in axes)) if axes else mb.identity(x=x)


@lowers("Concat", since=(4, 11, 13))
def concat(op: OpContext) -> Var:
    """Joins along an axis."""
    values = [op.input(position) for position in range(op.input_count)]
    return mb.concat(values=values, axis=op.integer("axis")) if len(values) > 1 else mb.identity(x=values[0])


def _parts_known(node: Node) -> Verdict:
    if node.has(1) and node.constant(1) is None:
        return unknown("its sizes are computed while the model runs", remedy="deploykit simplify MODEL")
    return known_rank(node)


@lowers("Split", since=(2, 11, 13, 18), when=_parts_known)
def split(op: OpContext) -> tuple[Var, ...]:
    """Cuts along an axis: into given sizes, or equal ones, the last one smaller (num_outputs, spec Split-18)."""
    x = op.input()
    axis = positive_axis(op.integer("axis", 0), x.rank)
    count = len(op.raw.outputs)
    sizes = op.integers("split", 1)
    if sizes is None:
        total = x.shape[axis]
        if not isinstance(total, (int, np.integer)):
            raise Refused("it cuts an axis whose size varies into equal parts", "give the sizes of the parts")
        part = -(-int(total) // count)
        sizes = [part] * (count - 1) + [int(total) - part * (count - 1)]
    if count == 1:
        return (mb.identity(x=x),)
    return tuple(mb.split(x=x, split_sizes=sizes, axis=axis))


@lowers("Shape", since=(1, 13, 15, 19, 21, 23, 24, 25), when=known_rank)
def shape(op: OpContext) -> Var:
    """The sizes as a vector, from `start` to `end`; known ones become constants."""
    x = op.input()
    if x.rank == 0:
        raise Refused("the shape of a scalar is an empty vector, which Core ML does not have", "remove it")
    start, end = positive_axis(op.integer("start", 0), x.rank), positive_axis(op.integer("end", x.rank), x.rank)
    start, end = min(max(start, 0), x.rank), min(max(end, 0), x.rank)
    known = list(x.shape[start:end])
    if known and all(isinstance(size, (int, np.integer)) for size in known):
        return constant(np.array([int(size) for size in known], np.int32))
    sizes = mb.shape(x=x)
    return sizes if (start, end) == (0, x.rank) else mb.slice_by_index(x=sizes, begin=[start], end=[end])


@lowers("Expand", since=(8, 13), when=known_rank)
def expand(op: OpContext) -> Var:
    """Broadcasts x and the shape to each other; a size of 1 in the shape leaves x's size as it is."""
    x, wanted = op.input(0), op.constant(1)
    if wanted is None:
        if x.dtype != types.bool:
            return mb.mul(x=x, y=mb.fill(shape=op.input(1), value=like(x, 1)))
        number = mb.mul(x=mb.cast(x=x, dtype="int32"), y=mb.fill(shape=op.input(1), value=np.int32(1)))
        return mb.not_equal(x=number, y=np.int32(0))
    sizes = [int(size) for size in wanted.reshape(-1)]
    rank = max(len(sizes), x.rank)
    sizes = [1] * (rank - len(sizes)) + sizes
    if x.rank < rank:
        x = mb.expand_dims(x=x, axes=list(range(rank - x.rank)))
    repeats = []
    for have, size in zip(x.shape, sizes, strict=True):
        if size != 1 and not isinstance(have, (int, np.integer)):
            raise Refused("it widens an axis whose size varies", "broadcast in the operator that uses it instead")
        repeats.append(size if isinstance(have, (int, np.integer)) and int(have) == 1 else 1)
    return mb.tile(x=x, reps=repeats) if any(repeat != 1 for repeat in repeats) else mb.identity(x=x)


def _fill_type(node: Node) -> Verdict:
    if node.out_dtype() not in ("float32", "float16", "int64", "int32", "bool", None):
        return unsupported(f"Core ML does not fill with {node.out_dtype()}", remedy="cast after it")
    return supported()


@lowers("ConstantOfShape", since=(9, 20, 21, 23, 24, 25), when=_fill_type)
def constant_of_shape(op: OpContext) -> Var:
    """A tensor of one value; the shape may vary."""
    attribute = op.raw.attributes.get("value")
    value = np.zeros(1, np.float32) if attribute is None else np.asarray(attribute.as_tensor().numpy())
    single = narrowed(value.reshape(-1)[:1]).reshape(())[()]
    sizes = op.constant(0)
    if sizes is not None and not sizes.size:
        return constant(np.asarray(single))
    wanted = op.input(0) if sizes is None else [int(size) for size in sizes.reshape(-1)]
    if single.dtype == np.bool_:  # Core ML fills with numbers only
        return mb.not_equal(x=mb.fill(shape=wanted, value=np.int32(single)), y=np.int32(0))
    return mb.fill(shape=wanted, value=single)


@lowers("Tile", since=(6, 13), when=known_rank)
def tile(op: OpContext) -> Var:
    """Repeats along every axis."""
    known = op.constant(1)
    return mb.tile(x=op.input(), reps=op.input(1) if known is None else [int(size) for size in known.reshape(-1)])


@lowers("Identity", since=(1, *_SINCE_TYPES))
def identity(op: OpContext) -> Var:
    """The input."""
    return mb.identity(x=op.input())


def _not_dropping(node: Node) -> Verdict:
    training, ratio = node.constant(2), node.constant(1)
    none = ratio is not None and not ratio.any()
    if node.has(2) and (training is None or bool(training.reshape(()))) and not none:
        return unsupported("it is in training form", remedy="export the model in evaluation mode (model.eval())")
    return supported()


@lowers("Dropout", since=(7, 10, 12, 13, 22), when=_not_dropping)
def dropout(op: OpContext) -> tuple[Var, ...]:
    """The input: nothing is dropped at inference. The mask, where it is used, is true everywhere."""
    x = op.input()
    if op.used_outputs == 1:
        return (mb.identity(x=x),)
    if not is_fixed(x) or op.opset < 10:
        raise Refused("its mask is used, and a size varies", "export in evaluation mode (model.eval())")
    return mb.identity(x=x), mb.const(val=np.ones([int(size) for size in x.shape], bool))


_CAST = {1: "fp32", 10: "fp16", 6: "int32", 7: "int32", 9: "bool", 2: "uint8", 3: "int8"}  # TensorProto.DataType


def _cast_types(node: Node) -> Verdict:
    to = node.integer("to")
    if to not in _CAST:
        return unsupported(
            f"Core ML has no {node.out_dtype() or f'type {to}'}", remedy="cast to float32, float16, int32 or bool"
        )
    return supported()


@lowers("Cast", since=(6, 9, 13, 19, 21, 23, 24, 25), when=_cast_types)
def cast(op: OpContext) -> Var:
    """Converts; int64 is int32 here. A float becomes true where it is not 0, and an integer towards zero."""
    x, to = op.input(), _CAST[op.integer("to")]
    if to == "bool":
        if op.dtype(0) == "bool":
            return mb.identity(x=x)
        return mb.not_equal(x=x, y=like(x, 0))
    if to == "int32" and _may_be_infinite(x):
        x = mb.clip(x=x, alpha=like(x, _LARGEST[0]), beta=like(x, _LARGEST[1]))
    return mb.cast(x=x, dtype=to)


# The float32 next to the ends of int32.
_LARGEST = (-2147483648.0, 2147483520.0)
_PASSES_ON = {"add", "sub", "mul", "real_div", "floor", "ceil", "round", "identity"}


def _may_be_infinite(x: Var) -> bool:
    """Whether it is a logarithm, or made of one: as an integer infinity is nothing that Core ML documents.

    T5 takes the logarithm of distance 0, and throws the integer away afterwards.
    """
    while types.is_float(x.dtype):
        if x.val is not None:
            return bool(np.isinf(x.val).any())
        if x.op is None or x.op.op_type not in _PASSES_ON:
            return x.op is not None and x.op.op_type == "log"
        given = [x.op.inputs[name] for name in ("x", "y") if x.op.inputs.get(name) is not None]
        x = next((one for one in given if one.val is None), given[0])
    return False


def _blocks(node: Node) -> Verdict:
    if node.rank(0) != 4:
        return unsupported("its input is not 4-D", remedy="export with a known rank of 4")
    return supported()


@lowers("DepthToSpace", since=(1, 11, 13, 28), when=_blocks)
def depth_to_space(op: OpContext) -> Var:
    """Moves blocks of channels into the plane: DCR as MIL's depth_to_space, CRD as pixel_shuffle."""
    x, block = op.input(), op.integer("blocksize")
    if op.text("mode", "DCR") == "CRD":
        return mb.pixel_shuffle(x=x, upscale_factor=block)
    return mb.depth_to_space(x=x, block_size=block)


@lowers("SpaceToDepth", since=(1, 13, 28), when=_blocks)
def space_to_depth(op: OpContext) -> Var:
    """Moves blocks of the plane into channels: DCR as MIL's space_to_depth, CRD as pixel_unshuffle."""
    if op.text("mode", "DCR") == "CRD":
        return mb.pixel_unshuffle(x=op.input(), downscale_factor=np.uint32(op.integer("blocksize")))
    return mb.space_to_depth(x=op.input(), block_size=op.integer("blocksize"))
