"""Equalisation: channels of an activation are scaled to like ranges, and the weights that read them scaled back.

In float nothing changes; in 8 bits a scale for the whole tensor fits all of its channels. M. Nagel et al., Data-Free
Quantization Through Weight Equalization and Bias Correction, ICCV 2019, section 4.1 (between two layers); G. Xiao et
al., SmoothQuant, ICML 2023 (from activations to weights). Which factors to take is decided for each tensor by the
error that they predict.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit.quantize.absorbing import Absorber, absorber_of
from deploykit.quantize.calibration import tapped_session
from deploykit.quantize.plan import is_float
from deploykit.quantize.prepare import add_constant, constant_of, drop_unused_initializers, names_in, unique_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Array = np.ndarray[Any, Any]
# Exponents that are tried: 0 leaves the channels as they are, 1 gives all of them the same range.
STRENGTHS = (0.25, 0.5, 0.75, 1.0)
# Equalised only where the predicted error falls below this share of what it is.
WORTHWHILE = 0.7
# An extra Mul in front of a layer has to earn its time.
WORTH_A_MUL = 0.1
LARGEST_FACTOR = 1e4
READERS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})


@dataclasses.dataclass(slots=True)
class ChannelStatistics:
    """Extremes, mean and mean square of each channel of a tensor, shape [channels]."""

    low: Array
    high: Array
    mean: Array
    square: Array
    samples: int = 1

    @classmethod
    def of(cls, values: Array, axis: int) -> ChannelStatistics:
        """Of one tensor; NaN and infinities give NaN."""
        flat = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
        low, high = flat.min(axis=1).astype(np.float64), flat.max(axis=1).astype(np.float64)
        wide = flat.astype(np.float64)
        return cls(low, high, wide.mean(axis=1), np.einsum("ij,ij->i", wide, wide) / wide.shape[1])

    def merge(self, other: ChannelStatistics) -> None:
        """Takes in another sample, which weighs as much as each one before."""
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        self.samples += 1
        self.mean = self.mean + (other.mean - self.mean) / self.samples
        self.square = self.square + (other.square - self.square) / self.samples

    @property
    def largest(self) -> Array:
        """The largest magnitude of each channel."""
        found: Array = np.maximum(np.abs(self.low), np.abs(self.high))
        return found


@dataclasses.dataclass(slots=True)
class Site:
    """A tensor that can be equalised.

    axis: of its channels, of which there are `channels`. readers: the layers with constant weights that read it.
    absorber: takes the factors in before the tensor; None when only an extra Mul in front of the readers could.
    """

    value: ir.Value
    axis: int
    channels: int
    readers: list[ir.Node]
    absorber: Absorber | None

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.value.name or ""


def measure_channels(model: ir.Model, sites: Iterable[Site], replay: Any) -> dict[str, ChannelStatistics]:
    """Statistics of the tensors of the sites. replay: runs a session over samples, giving outputs by name."""
    found: dict[str, ChannelStatistics] = {}
    axes = {site.name: site.axis for site in sites}
    if not axes:
        return {}
    with tapped_session(model, list(axes)) as session:
        for values in replay(session):
            for name, axis in axes.items():
                if name not in values or values[name].size == 0:
                    continue
                one = ChannelStatistics.of(values[name], axis)
                if name in found:
                    found[name].merge(one)
                else:
                    found[name] = one
    return found


def find_sites(model: ir.Model) -> list[Site]:
    """Every tensor of the main graph that layers with constant weights read, in graph order."""
    found = []
    seen: set[ir.Value] = set()
    for node in model.graph:
        value = node.inputs[0] if node.op_type in READERS and not node.domain else None
        if value is None or value in seen or not is_float(value) or value.shape is None:
            continue
        if value.is_initializer() and not value.is_graph_input():  # a constant, of which nothing is measured
            continue
        seen.add(value)
        site = _site(model.graph, value, len(value.shape))
        if site is not None:
            found.append(site)
    return found


def _site(main: ir.Graph, value: ir.Value, rank: int) -> Site | None:
    uses = [use for use in value.uses() if use.node.graph is main]
    readers = [
        use.node
        for use in uses
        if use.idx == 0 and use.node.op_type in READERS and not use.node.domain and _channels(use.node) is not None
    ]
    counts = {_channels(node) for node in readers}
    axes = {1 if node.op_type in {"Conv", "ConvTranspose"} else rank - 1 for node in readers}
    if len(counts) != 1 or len(axes) != 1:
        return None
    channels, axis = counts.pop(), axes.pop()
    assert channels is not None
    alone = len(readers) == len(list(value.uses())) and not value.is_graph_output() and not value.is_graph_input()
    return Site(value, axis, channels, readers, absorber_of(value, axis, rank, channels) if alone else None)


def _channels(node: ir.Node) -> int | None:
    """How many channels a layer with constant weights reads; None when its weights do not tell."""
    weight = node.inputs[1]
    if weight is None or not weight.is_initializer() or weight.is_graph_input() or weight.const_value is None:
        return None
    shape = weight.const_value.shape.numpy()
    if not is_float(weight):
        return None
    if node.op_type == "Conv":
        return int(shape[1]) * node.attributes.get_int("group", 1)
    if node.op_type == "ConvTranspose":
        return int(shape[0])
    if node.op_type == "Gemm":
        return None if node.attributes.get_int("transA", 0) else int(shape[node.attributes.get_int("transB", 0)])
    return int(shape[0]) if len(shape) == 2 else None


def rows_by_channel(node: ir.Node, weight: Array) -> Array:
    """The weight as [outputs, channels, positions], channels in the order in which the layer reads them.

    Grouped and depthwise layers read a part of the channels for each output: the others are NaN.
    """
    blocks = _blocks(node, weight)
    groups, outputs, inside, positions = blocks.shape
    if groups == 1:
        rows: Array = blocks[0]
        return rows
    whole = np.full((groups, outputs, groups, inside, positions), np.nan, np.float32)
    for group in range(groups):
        whole[group, :, group] = blocks[group]
    return whole.reshape(groups * outputs, groups * inside, positions)


def _blocks(node: ir.Node, weight: Array) -> Array:
    """The weight as [groups, outputs, channels, positions], outputs and channels of one group each; a view."""
    groups = node.attributes.get_int("group", 1) if node.op_type in {"Conv", "ConvTranspose"} else 1
    if node.op_type == "MatMul" or (node.op_type == "Gemm" and not node.attributes.get_int("transB", 0)):
        return weight.T[None, :, :, None]
    if node.op_type == "Gemm":
        return weight[None, :, :, None]
    if node.op_type == "ConvTranspose":
        inside, outside = weight.shape[0] // groups, weight.shape[1]
        return weight.reshape(groups, inside, outside, -1).transpose(0, 2, 1, 3)
    return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What predictions need to know of a layer's weights, taken from them once for all factors that are tried.

    squares: sum of the squared weights that read a channel, shape [channels]. largest: magnitudes over the positions,
    shape [groups, outputs, channels of a group]. positions: weights of one output and channel.
    """

    squares: Array
    largest: Array
    positions: int

    @classmethod
    def of(cls, node: ir.Node, weight: Array) -> Reading:
        """Of the constant weight of a layer."""
        blocks = _blocks(node, weight)
        squares = np.einsum("goip,goip->gi", blocks, blocks, dtype=np.float64)
        largest = np.abs(blocks[..., 0] if blocks.shape[3] == 1 else blocks)
        if blocks.shape[3] != 1:
            largest = largest.max(axis=3)
        return cls(squares.reshape(-1), largest, blocks.shape[3])

    @property
    def reach(self) -> Array:
        """The largest weight that reads each channel, shape [channels]."""
        found: Array = self.largest.max(axis=1).reshape(-1)
        return found


def scaled_weight(node: ir.Node, weight: Array, factors: Array) -> Array:
    """The weight of a layer that reads channels divided by `factors` [channels]."""
    if node.op_type == "MatMul" or (node.op_type == "Gemm" and not node.attributes.get_int("transB", 0)):
        found: Array = weight * factors[:, None]
    elif node.op_type == "Gemm":
        found = weight * factors[None, :]
    elif node.op_type == "ConvTranspose":
        found = weight * factors.reshape(-1, *[1] * (weight.ndim - 1))
    else:
        groups = node.attributes.get_int("group", 1)
        blocks = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        shaped = factors.reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
        found = (blocks * shaped).reshape(weight.shape)
    return found.astype(np.float32, copy=False)


def predicted_error(readings: Iterable[Reading], statistics: ChannelStatistics, factors: Array) -> float:
    """Mean squared error of the outputs of layers, in their units, by the usual model of rounding.

    Rounding adds step^2 / 12 to each value, uniformly and independently: of the activation, whose step is that of the
    widest channel, and of the weights, whose step is that of the largest of an output channel. The mean error of the
    weights is left out, because it goes into the bias. readings: of the readers.
    """
    low, high = float((statistics.low / factors).min()), float((statistics.high / factors).max())
    step = (max(high, 0.0) - min(low, 0.0)) / 255
    variance = np.maximum(statistics.square - np.square(statistics.mean), 0.0) / np.square(factors)
    error = 0.0
    for reading in readings:
        groups, _, inside = reading.largest.shape
        of_activation = step**2 / 12 * np.sum(reading.squares * np.square(factors))
        scaled = reading.largest * factors.reshape(groups, 1, inside).astype(np.float32)
        steps = scaled.max(axis=2).astype(np.float64) / 127
        read = reading.positions * variance.reshape(groups, inside).sum(axis=1)
        of_weights = np.sum(np.square(steps).sum(axis=1) / 12 * read)
        error += float(of_activation + of_weights)
    return error


def choose_factors(
    sites: Iterable[Site], statistics: Mapping[str, ChannelStatistics], *, strength: float | None = None
) -> dict[str, Array]:
    """Factors [channels], by tensor, to divide its channels by, for the tensors where that is worthwhile.

    strength: the exponent of SmoothQuant to take; None: the best of several. The choice is the same for symmetric and
    affine activations, so that one calibration serves both.
    """
    found = {}
    for site in sites:
        known = statistics.get(site.name)
        chosen = None if known is None else _best_factors(site, known, strength)
        if chosen is None:
            continue
        limit = WORTHWHILE if site.absorber is not None else WORTH_A_MUL
        if chosen[1] < (1.0 if strength is not None else limit):
            found[site.name] = chosen[0].astype(np.float32)
    return found


def _best_factors(site: Site, statistics: ChannelStatistics, strength: float | None) -> tuple[Array, float] | None:
    """Factors and the error that they leave as a share of today's; None when nothing is known."""
    largest = statistics.largest
    if largest.size != site.channels or not np.isfinite(largest).all() or not largest.max() > 0:
        return None
    readings = [Reading.of(node, np.asarray(constant_of(node.inputs[1]))) for node in site.readers]
    reach = np.max([reading.reach for reading in readings], axis=0)
    used = (largest > 0) & (reach > 0)
    if not used.any() or not np.isfinite(reach).all():
        return None
    today = predicted_error(readings, statistics, np.ones(site.channels))
    tried: list[tuple[float, int, Array]] = []
    for exponent in STRENGTHS if strength is None else (strength,):
        for towards_weights in (False, True) if strength is None else (True,):
            factors = np.ones(site.channels)
            factors[used] = largest[used] ** exponent
            if towards_weights:
                factors[used] /= reach[used] ** (1 - exponent)
            factors[used] /= np.exp(np.log(factors[used]).mean())
            factors = np.clip(factors, 1 / LARGEST_FACTOR, LARGEST_FACTOR)
            tried.append((predicted_error(readings, statistics, factors), len(tried), factors))
    error, _, best = min(tried, key=lambda item: item[:2])
    return (best, error / today) if today > 0 else None


def equalise(model: ir.Model, factors: Mapping[str, Array]) -> list[str]:
    """Divides the channels of the named tensors by their factors, in place; names of those that took an extra Mul."""
    taken = names_in(model)
    extra = []
    values = {site.name: site.value for site in find_sites(model)} if factors else {}
    for name, found in factors.items():
        # Looked at again each time: an earlier tensor may have taken a constant that this one reads.
        value = values.get(name)
        site = None if value is None or value.shape is None else _site(model.graph, value, len(value.shape))
        if site is None or site.channels != found.size:
            continue
        if site.absorber is not None:
            site.absorber.apply(model.graph, found, taken)
        else:
            _insert_mul(model, site, found, taken)
            extra.append(name)
        for node in site.readers:
            weight = node.inputs[1]
            array = constant_of(weight)
            assert weight is not None
            assert array is not None
            wanted = f"{weight.name}_equalised"
            node.replace_input_with(1, add_constant(model.graph, wanted, scaled_weight(node, array, found), taken))
    drop_unused_initializers(model.graph)
    return extra


def _insert_mul(model: ir.Model, site: Site, factors: Array, taken: set[str]) -> None:
    main = model.graph
    rank = len(site.value.shape) if site.value.shape is not None else 0
    inverse = (1 / factors).reshape(-1, *[1] * (rank - 1 - site.axis))
    constant = add_constant(main, f"{site.name}_inverse_factors", inverse.astype(np.float32), taken)
    node = ir.node("Mul", [site.value, constant], name=unique_name(main, f"{site.name}/equalise", taken))
    node.outputs[0].name = unique_name(main, f"{site.name}_equalised", taken)
    node.outputs[0].type, node.outputs[0].shape = site.value.type, site.value.shape
    producer = site.value.producer()
    if producer is None:
        main.insert_before(main[0], [node])
    else:
        main.insert_after(producer, [node])
    for reader in site.readers:
        reader.replace_input_with(0, node.outputs[0])
