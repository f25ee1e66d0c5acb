"""Steps between revisions of an operator that schemas do not show: inputs for attributes, changed meanings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit.optimizers.editing import input_at, rank_of
from deploykit.optimizers.rewrites.emitting import known_array, size_of

if TYPE_CHECKING:
    from deploykit.optimizers.rewrites.opset_place import Place

# What a step says: there is no such form, or the schemas decide what is left.
REFUSED, ASK = "refused", "ask"
Step = Callable[["Place", ir.Node], str]


def _setting(node: ir.Node, name: str, default: Any = None) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.value


def _give(node: ir.Node, at: int, value: ir.Value) -> None:
    if len(node.inputs) <= at:
        node.resize_inputs(at + 1)
    node.replace_input_with(at, value)


def _drop(place: Place, node: ir.Node, at: int) -> None:
    """Takes inputs from a position on away."""
    for index in range(at, len(node.inputs)):
        if (value := node.inputs[index]) is not None:
            place.unread.append(value)
        node.replace_input_with(index, None)
    node.resize_inputs(at)


def to_input(name: str, at: int, dtype: Any = np.int64) -> Step:
    """An attribute becomes an input."""

    def step(place: Place, node: ir.Node) -> str:
        attribute = node.attributes.get(name)
        if attribute is not None:
            if attribute.is_ref():
                return REFUSED
            _give(node, at, place.constant(node, np.array(attribute.value, dtype), name))
            del node.attributes[name]
        return ASK

    return step


def to_attribute(name: str, at: int, *, scalar: bool = False) -> Step:
    """A constant input becomes an attribute."""

    def step(place: Place, node: ir.Node) -> str:
        value = input_at(node, at)
        if value is None:
            return ASK
        array = known_array(value)
        if array is None:
            return REFUSED
        given = array.reshape(-1).tolist()
        node.attributes[name] = ir.convenience.convert_attribute(name, given[0] if scalar else given)
        _drop(place, node, at)
        return ASK

    return step


def _reduce_down(place: Place, node: ir.Node) -> str:
    """Axes as an attribute. Empty axes reduce all, or nothing when the node says so."""
    axes = known_array(input_at(node, 1)) if input_at(node, 1) is not None else None
    noop = bool(_setting(node, "noop_with_empty_axes", 0))
    if input_at(node, 1) is not None and axes is None:
        return REFUSED
    empty = axes is None or not axes.size
    if empty and noop:
        return REFUSED
    node.attributes.pop("noop_with_empty_axes", None)
    if empty:
        _drop(place, node, 1)
        return ASK
    return to_attribute("axes", 1)(place, node)


def _split_up(place: Place, node: ir.Node) -> str:
    """Equal parts have to be asked for from 18 on."""
    del place
    if input_at(node, 1) is None and "num_outputs" not in node.attributes:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))
    return ASK


def _split_down(place: Place, node: ir.Node) -> str:
    """The last part may be smaller from 18 on; before, parts of a known size are written out."""
    if "num_outputs" not in node.attributes:
        return ASK
    count, given = _setting(node, "num_outputs"), node.inputs[0]
    size = None if given is None else size_of(given, _setting(node, "axis", 0))
    if size is None or count is None:
        return REFUSED
    part = -(-size // count)
    sizes = [part] * (count - 1) + [size - part * (count - 1)]
    if sizes[-1] < 0:
        return REFUSED
    del node.attributes["num_outputs"]
    _give(node, 1, place.constant(node, np.array(sizes, np.int64), "split"))
    return ASK


def _softmax_up(place: Place, node: ir.Node) -> str:
    """Before 13 the dimensions from `axis` on are one: the same for the last, a flat matrix otherwise."""
    axis, rank, given = _setting(node, "axis", 1), rank_of(node.inputs[0]), node.inputs[0]
    if rank is None or given is None or ("axis" in node.attributes and node.attributes["axis"].is_ref()):
        return REFUSED
    node.attributes["axis"] = ir.AttrInt64("axis", -1)
    if axis in (-1, rank - 1):
        return ASK
    shape = place.before(node, "Shape", [given], "Shape")
    node.replace_input_with(0, place.before(node, "Flatten", [given], "Flatten", axis=axis))
    place.behind(node, "Reshape", [shape], "Reshape")
    return ASK


def _softmax_down(place: Place, node: ir.Node) -> str:
    """The dimension comes last, so that it is all there is from `axis` on."""
    rank, given = rank_of(node.inputs[0]), node.inputs[0]
    axis = _setting(node, "axis", -1)
    if rank is None or given is None or not rank:
        return REFUSED
    axis %= rank
    node.attributes["axis"] = ir.AttrInt64("axis", rank - 1)
    if axis == rank - 1:
        return ASK
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    node.replace_input_with(0, place.before(node, "Transpose", [given], "Transpose", perm=order))
    place.behind(node, "Transpose", [], "Transpose", perm=order)
    return ASK


def _shape_down(place: Place, node: ir.Node) -> str:
    """A part of the shape is cut out of all of it."""
    start, end = _setting(node, "start", 0), _setting(node, "end")
    node.attributes.pop("start", None)
    node.attributes.pop("end", None)
    if start == 0 and end is None:
        return ASK
    ends = [np.iinfo(np.int64).max if end is None else end]
    constants = [place.constant(node, np.array(v, np.int64), n) for v, n in (([start], "start"), (ends, "end"))]
    place.behind(node, "Slice", constants, "Slice")
    return ASK


def _constant_down(place: Place, node: ir.Node) -> str:
    """Numbers as a tensor."""
    del place
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    for name, dtype in kinds.items():
        if name in node.attributes:
            if node.attributes[name].is_ref():
                return REFUSED
            value = np.array(node.attributes.pop(name).value, dtype)
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(value))
    return ASK


def _group_norm(place: Place, node: ir.Node) -> str:
    """One scale for a group in 18, one for a channel in 21: the same where each group is a channel."""
    del place
    given = node.inputs[0]
    channels = None if given is None else size_of(given, 1)
    return ASK if channels is not None and _setting(node, "num_groups") == channels else REFUSED


def _grid_sample(names: dict[str, str]) -> Step:
    """Interpolation has other names."""

    def step(place: Place, node: ir.Node) -> str:
        del place
        mode, rank = _setting(node, "mode", next(iter(names))), rank_of(node.inputs[0])
        if mode not in {**names, "nearest": ""} or rank != 4:
            return REFUSED
        node.attributes["mode"] = ir.AttrString("mode", names.get(mode, mode))
        return ASK

    return step


def _roi_align_down(place: Place, node: ir.Node) -> str:
    """10 has no half pixels; 16 shifts by one unless told otherwise."""
    del place
    if _setting(node, "coordinate_transformation_mode", "half_pixel") != "output_half_pixel":
        return REFUSED
    del node.attributes["coordinate_transformation_mode"]
    return ASK


def _roi_align_up(place: Place, node: ir.Node) -> str:
    del place
    node.attributes["coordinate_transformation_mode"] = ir.AttrString(
        "coordinate_transformation_mode", "output_half_pixel"
    )
    return ASK


def refused_when(name: str, *values: str) -> Step:
    """Values of an attribute that the older revision does not have."""

    def step(place: Place, node: ir.Node) -> str:
        del place
        return REFUSED if _setting(node, name) in values else ASK

    return step


def _resize_down(place: Place, node: ir.Node) -> str:
    """11 wants its region and its scales even where they are empty."""
    empty = np.zeros(0, np.float32)
    for at in (1, 2):
        if input_at(node, at) is None:
            _give(node, at, place.constant(node, empty, "empty"))
    return ASK


def _resize_up(place: Place, node: ir.Node) -> str:
    """13 has no tf_half_pixel_for_nn, and takes an empty input for one that is left out."""
    del place
    if _setting(node, "coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        return REFUSED
    for at in (1, 2, 3):
        array = known_array(input_at(node, at)) if input_at(node, at) is not None else None
        if array is not None and not array.size:
            node.replace_input_with(at, None)
    return ASK


def _dft_up(place: Place, node: ir.Node) -> str:
    """17 means axis 1 when it says nothing, 20 the last but one."""
    axis = _setting(node, "axis", 1)
    node.attributes.pop("axis", None)
    if len(node.inputs) < 2:
        node.resize_inputs(2)
    _give(node, 2, place.constant(node, np.array(axis, np.int64), "axis"))
    return ASK


def _dft_down(place: Place, node: ir.Node) -> str:
    if input_at(node, 2) is None:
        node.attributes["axis"] = ir.AttrInt64("axis", -2)
        return _axis_counted(node)
    if to_attribute("axis", 2, scalar=True)(place, node) == REFUSED:
        return REFUSED
    return _axis_counted(node)


def _axis_counted(node: ir.Node) -> str:
    """17 counts the axis from the front, and the last dimension is no axis."""
    rank, axis = rank_of(node.inputs[0]), _setting(node, "axis")
    if rank is None:
        return REFUSED
    node.attributes["axis"] = ir.AttrInt64("axis", axis % rank)
    return ASK


def _rounded_up(place: Place, node: ir.Node) -> str:
    """22 leaves out a last window that starts in the padding or behind the data; before, it counts.

    There is none where padding and stride together are no longer than the kernel.
    """
    del place
    if not _setting(node, "ceil_mode", 0):
        return ASK
    kernel = _setting(node, "kernel_shape", ())
    ones = [1] * len(kernel)
    ends = (_setting(node, "pads") or [0] * (2 * len(kernel)))[len(kernel) :]
    sizes = zip(kernel, _setting(node, "dilations") or ones, _setting(node, "strides") or ones, ends, strict=False)
    small = all(end + stride <= dilation * (size - 1) + 1 for size, dilation, stride, end in sizes)
    return ASK if small and _setting(node, "auto_pad", "NOTSET") == "NOTSET" else REFUSED


def _mod_down(place: Place, node: ir.Node) -> str:
    """Floats with the sign of the divisor came with 28."""
    del place
    dtype = node.outputs[0].dtype or (node.inputs[0].dtype if node.inputs[0] is not None else None)
    return ASK if _setting(node, "fmod", 0) or (dtype is not None and dtype.is_integer()) else REFUSED


def _one_scale(place: Place, node: ir.Node) -> str:
    """10 has one scale for the whole tensor."""
    del place
    scale = node.inputs[1]
    single = rank_of(scale) == 0 or (scale is not None and scale.shape is not None and list(scale.shape) == [1])
    return ASK if single else REFUSED


def _dropout_down(place: Place, node: ir.Node) -> str:
    """Before 12 there is no training, and the ratio says nothing."""
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return REFUSED  # its mask has another type and another meaning
    training = input_at(node, 2)
    if training is not None:
        known = known_array(training)
        if known is None or bool(known):
            return REFUSED
    _drop(place, node, 1)
    node.attributes.pop("seed", None)
    return ASK


def _dropout_up(place: Place, node: ir.Node) -> str:
    del place
    node.attributes.pop("ratio", None)
    return ASK


_REDUCES = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")

# (operator, newer revision): the step that leads down from it, and the one that leads up to it.
DOWN: dict[tuple[str, int], Step] = {
    **{(f"Reduce{kind}", 18): _reduce_down for kind in _REDUCES},
    ("ReduceSum", 13): _reduce_down,
    ("Squeeze", 13): to_attribute("axes", 1),
    ("Unsqueeze", 13): to_attribute("axes", 1),
    ("Split", 18): _split_down,
    ("Split", 13): to_attribute("split", 1),
    **{(op, 13): _softmax_down for op in ("Softmax", "LogSoftmax", "Hardmax")},
    ("Shape", 15): _shape_down,
    ("Constant", 12): _constant_down,
    ("GroupNormalization", 21): _group_norm,
    ("GridSample", 20): _grid_sample({"linear": "bilinear", "cubic": "bicubic"}),
    ("RoiAlign", 16): _roi_align_down,
    ("Pad", 19): refused_when("mode", "wrap"),
    ("Resize", 19): refused_when("coordinate_transformation_mode", "half_pixel_symmetric"),
    ("Resize", 13): _resize_down,
    ("ScatterElements", 18): refused_when("reduction", "min", "max"),
    ("ScatterND", 18): refused_when("reduction", "min", "max"),
    ("DFT", 20): _dft_down,
    ("Dropout", 12): _dropout_down,
    **{(op, 22): _rounded_up for op in ("AveragePool", "MaxPool", "LpPool")},
    ("Mod", 28): _mod_down,
    ("QuantizeLinear", 13): _one_scale,
    ("DequantizeLinear", 13): _one_scale,
}
UP: dict[tuple[str, int], Step] = {
    **{(f"Reduce{kind}", 18): to_input("axes", 1) for kind in _REDUCES},
    ("ReduceSum", 13): to_input("axes", 1),
    ("Squeeze", 13): to_input("axes", 1),
    ("Unsqueeze", 13): to_input("axes", 1),
    ("Split", 13): to_input("split", 1),
    ("Split", 18): _split_up,
    **{(op, 13): _softmax_up for op in ("Softmax", "LogSoftmax", "Hardmax")},
    ("GroupNormalization", 21): _group_norm,
    ("GridSample", 20): _grid_sample({"bilinear": "linear", "bicubic": "cubic"}),
    ("RoiAlign", 16): _roi_align_up,
    ("Resize", 13): _resize_up,
    ("DFT", 20): _dft_up,
    ("Dropout", 12): _dropout_up,
    **{(op, 22): _rounded_up for op in ("AveragePool", "MaxPool", "LpPool")},
}
