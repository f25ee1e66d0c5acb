"""Readers of conditions that a source has in words: what of them a node's facts decide.

A reader gets the node and answers True (it holds), a text (it does not, and this is what the node has), or None (the
graph does not say).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.opsupport.attribute_checks import effective
from deploykit.opsupport.outcome import given, label

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deploykit.opsupport.facts import NodeFacts, TensorFacts

    Reader = Callable[[NodeFacts], bool | str | None]

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def constant(at: int) -> Reader:
    """Holds where the input is a constant or left out."""

    def reader(node: NodeFacts) -> bool | None:
        tensor = given(node, at)
        return True if tensor is None or tensor.constant else None

    return reader


def foldable(at: int) -> Reader:
    """As `constant`, where what follows from constants is computed before the node is looked at."""

    def reader(node: NodeFacts) -> bool | None:
        tensor = given(node, at)
        return True if tensor is None or tensor.foldable else None

    return reader


def absent(at: int) -> Reader:
    """Holds where the input is left out; otherwise its values decide."""
    return lambda node: True if given(node, at) is None else None


def any_of(*readers: Reader) -> Reader:
    """Holds where one of them does; otherwise it cannot be told."""
    return lambda node: True if any(reader(node) is True for reader in readers) else None


def fixed(tensor: TensorFacts | None) -> bool:
    """Whether all dimensions of a tensor are numbers."""
    return tensor is not None and tensor.shape is not None and all(isinstance(dim, int) for dim in tensor.shape)


def static_output(node: NodeFacts) -> bool | None:
    """The first output has a fixed shape."""
    return True if fixed(node.outputs[0] if node.outputs else None) else None


def values_of(node: NodeFacts, at: int, attribute: str | None = None) -> list[Any] | None:
    """Values of a constant input, or of the attribute that stood for it in earlier opsets."""
    if attribute is not None and attribute in node.attributes:
        found = node.attributes[attribute]
        return None if found is None else list(found) if isinstance(found, list) else [found]
    tensor = given(node, at)
    if tensor is None or tensor.value is None:
        return None
    values: list[Any] = tensor.value.ravel().tolist()
    return values


def none_negative(at: int, attribute: str | None = None) -> Reader:
    """A constant without negative entries."""

    def reader(node: NodeFacts) -> bool | str | None:
        values = values_of(node, at, attribute)
        if values is None:
            return None
        return True if all(value >= 0 for value in values) else f"input {at} has negative entries"

    return reader


def groups(weights: int) -> Reader:
    """A convolution with one group, or with one for each input channel."""

    def reader(node: NodeFacts) -> bool | str | None:
        group = effective(node, "group", 1)
        kernel = given(node, weights)
        if group == 1:
            return True
        if group is None or kernel is None or not kernel.shape or len(kernel.shape) < 2:
            return None
        if len(kernel.shape) == 5:
            return f"attribute 'group' is {group}, and the convolution is of rank 5"
        return True if kernel.shape[1] == 1 else f"attribute 'group' is {group}, of {kernel.shape[1]} channels each"

    return reader


def ungrouped_same_lower(node: NodeFacts) -> bool | str | None:
    """Not SAME_LOWER in a convolution over three dimensions."""
    if effective(node, "auto_pad", "NOTSET") != "SAME_LOWER":
        return True
    rank = node.inputs[0].rank if node.inputs and node.inputs[0] is not None else None
    if rank is None:
        return None
    return True if rank != 5 else "attribute 'auto_pad' is SAME_LOWER, and the input has rank 5"


def positive_steps(node: NodeFacts) -> bool | None:
    """A Slice that goes forward."""
    if given(node, 4) is None:
        return True
    steps = values_of(node, 4)
    return True if steps is not None and all(step > 0 for step in steps) else None


def output_padding(node: NodeFacts) -> bool | str | None:
    """Output padding below the stride."""
    padding = node.attributes.get("output_padding", [])
    if padding is None:
        return None
    strides = node.attributes.get("strides") or [1] * len(padding)
    fits = all(0 <= pad < stride for pad, stride in zip(padding, strides, strict=False))
    return True if fits else f"attribute 'output_padding' is {padding}, the strides are {strides}"


def pads_or_static(node: NodeFacts) -> bool | None:
    """No pads, or an output of a fixed shape."""
    return True if not any(node.attributes.get("pads") or []) else static_output(node)


def not_first(node: NodeFacts) -> bool | str | None:
    """What it takes is computed by another node."""
    tensor = given(node, 0)
    if tensor is None or tensor.constant or tensor.producer:
        return True
    return f"{label(0, tensor)} is an input of the graph"


def rank_of_gather(node: NodeFacts) -> bool | str | None:
    """A Gather whose output has at most five dimensions, by indices that are no scalar."""
    data, indices = given(node, 0), given(node, 1)
    if data is None or indices is None or data.rank is None or indices.rank is None:
        return None
    if indices.rank == 0:
        return f"{label(1, indices)} is a scalar"
    rank = data.rank + indices.rank - 1
    return True if rank <= 5 else f"the output has rank {rank}"


def row_bias(node: NodeFacts) -> bool | str | None:
    """A bias that is the same for every row."""
    bias = given(node, 2)
    if bias is None:
        return True
    if bias.shape is None:
        return None
    if len(bias.shape) < 2 or bias.shape[0] == 1:
        return True
    told = f"{label(2, bias)} has the shape {list(bias.shape)}"
    return told if isinstance(bias.shape[0], int) else None


def vector_bias(node: NodeFacts) -> bool | str | None:
    """A bias of one dimension."""
    bias = given(node, 2)
    if bias is None:
        return True
    if bias.shape is None:
        return None
    if len(bias.shape) == 1:
        return True if bias.shape[0] != 1 else None
    return f"{label(2, bias)} has rank {len(bias.shape)}"


def ranks(accepts: Callable[[int, int], bool]) -> Reader:
    """The ranks of two operands go together."""

    def reader(node: NodeFacts) -> bool | str | None:
        first, second = given(node, 0), given(node, 1)
        if first is None or second is None or first.rank is None or second.rank is None:
            return None
        return True if accepts(first.rank, second.rank) else f"the inputs have ranks {first.rank} and {second.rank}"

    return reader


def unless(attribute: str, value: Any, default: Any, otherwise: Reader) -> Reader:
    """Asks only where the attribute has the value."""

    def reader(node: NodeFacts) -> bool | str | None:
        found = effective(node, attribute, default)
        return None if found is None else True if found != value else otherwise(node)

    return reader


def static_input(node: NodeFacts) -> bool | None:
    """The first input has a fixed shape."""
    return True if fixed(given(node, 0)) else None


def kernel_shape(node: NodeFacts) -> bool | str | None:
    """A kernel_shape that says what the weights say."""
    stated, kernel = node.attributes.get("kernel_shape"), given(node, 1)
    if "kernel_shape" not in node.attributes:
        return True
    if stated is None or kernel is None or not fixed(kernel):
        return None
    sizes = list((kernel.shape or ())[2:])
    return True if stated == sizes else f"attribute 'kernel_shape' is {stated}, the weights are {sizes}"


def aligned(node: NodeFacts) -> bool | str:
    """Corners are aligned."""
    return True if effective(node, "align_corners", 0) else "attribute 'align_corners' is 0"


def shape_entries(most: int | None) -> Reader:
    """A Reshape without entries that stand for something that is not known when the model is converted."""

    def reader(node: NodeFacts) -> bool | str | None:
        entries, data = values_of(node, 1), given(node, 0)
        if entries is None:
            return None
        if most is not None and len(entries) > most:
            return f"input 1 has {len(entries)} entries"
        zeros = [at for at, entry in enumerate(entries) if entry == 0]
        if zeros and effective(node, "allowzero", 0):
            return "input 1 has an entry of 0, and attribute 'allowzero' is 1"
        # A 0 without allowzero takes the dimension of the data.
        shape = () if data is None or data.shape is None else data.shape
        known = all(at < len(shape) and isinstance(shape[at], int) for at in zeros)
        return True if most is not None or known else None

    return reader


def parts_of(node: NodeFacts) -> list[Any] | None:
    """Sizes of the parts of a Split; None where they are not known."""
    stated = values_of(node, 1, "split")
    if stated is not None or given(node, 1) is not None:
        return stated
    data = given(node, 0)
    axis = effective(node, "axis", 0)
    if data is None or data.shape is None or axis is None or not -len(data.shape) <= axis < len(data.shape):
        return None
    size, count = data.shape[axis], len(node.outputs)
    if not isinstance(size, int):
        return None
    part = -(-size // count)
    return [part] * (count - 1) + [size - part * (count - 1)]


def several_parts(node: NodeFacts) -> bool | str | None:
    """A Split into several parts, none of them empty."""
    parts = parts_of(node)
    if parts is None:
        return None
    if len(node.outputs) < 2:
        return "the node has one output"
    return True if all(part > 0 for part in parts) else f"the parts are {parts}"


def equal_parts(node: NodeFacts) -> bool | str | None:
    """A Split into equal parts."""
    parts = parts_of(node)
    return None if parts is None else True if len(set(parts)) == 1 else f"the parts are {parts}"


def bounds_of(node: NodeFacts) -> tuple[float, float] | None:
    """Both bounds of a Clip, where they are known."""
    low, high = values_of(node, 1, "min"), values_of(node, 2, "max")
    return (low[0], high[0]) if low and high else None


def known_clip(node: NodeFacts) -> bool | str | None:
    """A Clip that is one of the activations with a name."""
    bounds = bounds_of(node)
    return None if bounds is None else True if bounds in ((0, 6), (-1, 1)) else f"it clips to {list(bounds)}"


def open_clip(node: NodeFacts) -> bool | str | None:
    """A Clip that leaves something between its bounds."""
    bounds = bounds_of(node)
    if bounds is None:
        # One bound alone is not equal to the other.
        return True if given(node, 1) is None or given(node, 2) is None else None
    return True if bounds[0] != bounds[1] else f"both bounds are {bounds[0]}"


def dilated(node: NodeFacts) -> bool | str | None:
    """No dilations; with groups there must not be any."""
    dilations = node.attributes.get("dilations", [])
    if dilations is None:
        return None
    if set(dilations) <= {1}:
        return True
    return f"attribute 'dilations' is {dilations}, of groups" if effective(node, "group", 1) not in (1, None) else None


def constant_or(at: int, accepts: Callable[[NodeFacts, TensorFacts], bool]) -> Reader:
    """A constant, or what is accepted in its place."""

    def reader(node: NodeFacts) -> bool | str:
        tensor = given(node, at)
        if tensor is None or tensor.constant or accepts(node, tensor):
            return True
        return f"{label(at, tensor)} is not a constant"

    return reader


def output_rank(most: int) -> Reader:
    """An output of at most so many dimensions."""

    def reader(node: NodeFacts) -> bool | str | None:
        rank = node.outputs[0].rank if node.outputs and node.outputs[0] is not None else None
        return None if rank is None else True if rank <= most else f"the output has rank {rank}"

    return reader


def not_quantized(node: NodeFacts) -> bool | None:
    """Whether the node computes with floats that do not stand for quantized values."""
    known = [tensor for tensor in node.inputs if tensor is not None]
    return True if all(t.dtype in _FLOATS and t.producer != "DequantizeLinear" for t in known) else None


def float_divided(node: NodeFacts) -> bool:
    """The first input has a floating-point type."""
    tensor = given(node, 0)
    return tensor is not None and tensor.dtype in _FLOATS


def divisor(node: NodeFacts) -> bool | str | None:
    """A division of floats, or by constants without a 0."""
    if float_divided(node):
        return True
    values = values_of(node, 1)
    return None if values is None else True if all(values) else "input 1 has a 0 in it"


def branches_of(node: NodeFacts) -> list[Sequence[Any]]:
    """The outputs of both branches of an If."""
    return [node.attributes[name].outputs for name in ("then_branch", "else_branch") if node.attributes.get(name)]


def names_differ(node: NodeFacts) -> bool | str | None:
    """The branches of an If have no output name in common."""
    branches = branches_of(node)
    if len(branches) != 2:
        return None
    shared = {value.name for value in branches[0]} & {value.name for value in branches[1]}
    return f"both branches have an output {sorted(shared)[0]!r}" if shared else True


def same_ranks(node: NodeFacts) -> bool | str | None:
    """The outputs of the branches of an If have the same ranks."""
    branches = branches_of(node)
    if len(branches) != 2:
        return None
    for yes, no in zip(*branches, strict=False):
        if yes.shape is None or no.shape is None:
            return None
        if len(yes.shape) != len(no.shape):
            return f"outputs {yes.name!r} and {no.name!r} have ranks {len(yes.shape)} and {len(no.shape)}"
    return True


def one_type(node: NodeFacts) -> bool | None:
    """All inputs have one floating-point type."""
    known = {tensor.dtype for tensor in node.inputs if tensor is not None}
    return True if len(known) == 1 and known <= set(_FLOATS) else None


def known_length(node: NodeFacts) -> bool | None:
    """Bounds of a Slice of a known length, constants unless the rank of the data is known."""
    bounds = [tensor for at in (1, 2) if (tensor := given(node, at)) is not None]
    dynamic = not all(tensor.constant for tensor in bounds)
    return True if all(map(fixed, bounds)) and (not dynamic or ranked_first(node)) else None


def ranked_first(node: NodeFacts) -> bool | None:
    """The rank of the first input is known."""
    tensor = given(node, 0)
    return True if tensor is not None and tensor.rank is not None else None
