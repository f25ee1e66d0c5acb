"""Resize in the form that targets take, or as what it computes: indices and weights along each axis."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import known_array, size_of
from deploykit.optimizers.rewrites.interpolation import KNOWN_COORDINATES, Array, Sampling, indices, is_certain, weights
from deploykit.optimizers.rewrites.normalizations import integer, is_float, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

_LARGEST_WEIGHTS = 4_000_000  # elements of the matrices
_SAMPLED = range(1, 33)  # sizes that stand for all where the size is not known


@dataclasses.dataclass(frozen=True)
class _Axis:
    """One axis that changes: its size and that of the result, None where they are not known, and its scale."""

    axis: int
    size: int | None
    result: int | None
    scale: float

    def pairs(self) -> list[tuple[int, int]]:
        """The sizes before and after, or those that stand for them."""
        if self.size is not None and self.result is not None:
            return [(self.size, self.result)]
        return [(size, math.floor(size * self.scale)) for size in _SAMPLED if math.floor(size * self.scale) > 0]


def _axes(op: Emitter, node: ir.Node) -> list[_Axis] | None:
    """The axes that change; None where a scale is not known, or is not the plain ratio of sizes."""
    x, output = node.inputs[0], node.outputs[0]
    rank = rank_of(x)
    if x is None or rank is None or op.opset < 11:
        return None
    if node.attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        return _kept_aspect(node, x, rank)
    listed = [axis % rank for axis in node.attributes.get_ints("axes", range(rank))]
    scales, sizes = (known_array(node.inputs[at]) if at < len(node.inputs) else None for at in (2, 3))
    # A scale that is computed is not the ratio of the sizes: the result is rounded down.
    if scales is None and len(node.inputs) > 2 and node.inputs[2] is not None:
        return None
    found = []
    for at, axis in enumerate(listed):
        size = size_of(x, axis)
        if scales is not None and scales.size == len(listed):
            scale = float(scales[at])
            result = None if size is None else math.floor(np.float32(size) * np.float32(scale))
            if result is not None and _known(output, axis) not in (None, result):
                return None
        else:
            given = int(sizes[at]) if sizes is not None and sizes.size == len(listed) else None
            result = given if given is not None else _known(output, axis)
            if size is None and result is None and _unchanged(x, output, axis):
                continue
            if not size or result is None:
                return None
            scale = float(np.float32(result) / np.float32(size))
        if scale != 1 or (size is not None and size != result):
            found.append(_Axis(axis, size, result, scale))
    return found


def _known(output: ir.Value, axis: int) -> int | None:
    return None if output.shape is None else size_of(output, axis)


def _unchanged(x: ir.Value, output: ir.Value, axis: int) -> bool:
    if x.shape is None or output.shape is None:
        return False
    before, after = x.shape[axis], output.shape[axis]
    return not isinstance(before, int) and before.value is not None and before == after


def _kept_aspect(node: ir.Node, x: ir.Value, rank: int) -> list[_Axis] | None:
    """With one scale for all axes (spec, Resize-18); only where it is the plain ratio for each of them."""
    sizes = known_array(node.inputs[3]) if len(node.inputs) > 3 else None
    listed = [axis % rank for axis in node.attributes.get_ints("axes", range(rank))]
    before = [size_of(x, axis) for axis in listed]
    if sizes is None or len(sizes) != len(listed) or not all(before):
        return None
    ratios = [int(wanted) / (size or 1) for wanted, size in zip(sizes, before, strict=True)]
    larger = node.attributes.get_string("keep_aspect_ratio_policy", "") == "not_smaller"
    scale = max(ratios) if larger else min(ratios)
    found = []
    for axis, size in zip(listed, before, strict=True):
        result = math.floor((size or 0) * scale + 0.5)
        if result != (size or 0) * scale:
            return None
        found.append(_Axis(axis, size, result, scale))
    return found


def _sampling(node: ir.Node) -> Sampling | None:
    sampling = Sampling(
        node.attributes.get_string("mode", "nearest"),
        node.attributes.get_string("coordinate_transformation_mode", "half_pixel"),
        node.attributes.get_string("nearest_mode", "round_prefer_floor"),
        number(node, "cubic_coeff_a", -0.75),
        bool(integer(node, "exclude_outside", 0)),
        bool(integer(node, "antialias", 0)),
    )
    return sampling if sampling.coordinates in KNOWN_COORDINATES else None


def supported_form(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Constant scales or sizes for all axes, and the attributes that most targets know where they mean the same."""
    x, sampling, axes = node.inputs[0], _sampling(node), _axes(op, node)
    rank = rank_of(x)
    if x is None or sampling is None or axes is None or rank is None:
        return None
    plain = sampling
    if sampling.mode != "cubic":
        plain = dataclasses.replace(plain, exclude_outside=False)
    if sampling.antialias and sampling.mode != "nearest" and any(axis.scale < 1 for axis in axes):
        return None
    plain = _common(dataclasses.replace(plain, antialias=False), axes)
    attributes: dict[str, Any] = {
        "mode": plain.mode,
        "coordinate_transformation_mode": plain.coordinates,
        "nearest_mode": plain.nearest if plain.mode == "nearest" else None,
        "cubic_coeff_a": plain.cubic if plain.mode == "cubic" else None,
        "exclude_outside": 1 if plain.exclude_outside else None,
    }
    arrays = [known_array(value) for value in node.inputs[2:4]]
    constant = any(array is not None and array.size == rank for array in arrays)
    unusual = {"axes", "antialias", "keep_aspect_ratio_policy"} & node.attributes.keys()
    if constant and not unusual and plain == sampling:
        return None
    roi = None if op.opset >= 13 else op.const(np.zeros(0, np.float32))
    scales = [1.0] * rank
    for axis in axes:
        scales[axis.axis] = axis.scale
    # Whether a size comes back from its scale depends on the rounding of whoever multiplies: only where it cannot.
    exact = all(a.size is None or math.floor(a.size * float(np.float32(a.scale))) == a.result for a in axes)
    if exact:
        return [op.op("Resize", x, roi, op.const(np.array(scales, np.float32)), **attributes)]
    output = node.outputs[0]
    sizes = [_known(output, axis) for axis in range(rank)]
    if None in sizes:
        return None
    none = None if op.opset >= 13 else op.const(np.zeros(0, np.float32))
    return [op.op("Resize", x, roi, none, op.ints([size or 0 for size in sizes]), **attributes)]


def _common(sampling: Sampling, axes: Sequence[_Axis]) -> Sampling:
    """The form that more targets know, when it picks or weighs the same elements."""
    if sampling.mode == "nearest":
        wanted = dataclasses.replace(sampling, coordinates="asymmetric", nearest="floor")
    else:
        wanted = dataclasses.replace(sampling, coordinates="half_pixel")
    for axis in axes:
        for size, result in axis.pairs():
            if sampling.mode == "nearest":
                before, after = (indices(one, size, result, axis.scale) for one in (sampling, wanted))
                same = bool((before == after).all()) and is_certain(sampling, size, result, axis.scale)
            elif size * result > _LARGEST_WEIGHTS:
                same = False
            else:
                before, after = (weights(one, size, result, axis.scale) for one in (sampling, wanted))
                same = bool(np.allclose(before, after, atol=1e-6))
            if not same:
                return sampling
    return wanted


def by_indices_and_weights(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Gather along each axis for the nearest elements, a product with constant weights for linear and cubic."""
    x, sampling, axes = node.inputs[0], _sampling(node), _axes(op, node)
    rank = rank_of(x)
    if x is None or sampling is None or axes is None or rank is None or x.dtype is None:
        return None
    if sampling.mode != "nearest" and not is_float(x):
        return None
    # How a filter is centred under other coordinates is not specified.
    if sampling.antialias and sampling.mode != "nearest" and sampling.coordinates != "half_pixel":
        return None
    if any(axis.size is None or not axis.result for axis in axes):
        return None
    if sum((axis.size or 0) * (axis.result or 0) for axis in axes) > _LARGEST_WEIGHTS:
        return None
    value = x
    for axis in axes:
        size, result = axis.size or 0, axis.result or 0
        if sampling.mode == "nearest":
            if not is_certain(sampling, size, result, axis.scale):
                return None
            value = op.op("Gather", value, op.ints(indices(sampling, size, result, axis.scale)), axis=axis.axis)
        else:
            value = _weighed(op, value, weights(sampling, size, result, axis.scale), axis.axis, rank, x.dtype)
    return [value]


def _weighed(op: Emitter, value: ir.Value, matrix: Array, axis: int, rank: int, dtype: ir.DataType) -> ir.Value:
    if axis == rank - 2:
        return op.op("MatMul", op.const(matrix.T, dtype), value)
    if axis == rank - 1:
        return op.op("MatMul", value, op.const(matrix, dtype))
    order = [at for at in range(rank) if at != axis] + [axis]
    product = op.op("MatMul", op.transpose(value, order), op.const(matrix, dtype))
    return op.transpose(product, [order.index(at) for at in range(rank)])


class ResizeForm(Decomposition):
    """Resize without axes, policy, antialias and uncommon modes, where that means the same."""

    name: ClassVar[str] = "resize-form"
    title: ClassVar[str] = "writes Resize with constant scales and the modes that most targets know"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {("", "Resize"): supported_form}


class DecomposeResize(Decomposition):
    """Resize of any mode but tf_crop_and_resize, along axes of known size."""

    name: ClassVar[str] = "decompose-resize"
    title: ClassVar[str] = "writes Resize as Gather (nearest) or MatMul with constant weights (linear, cubic)"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {("", "Resize"): by_indices_and_weights}
