"""Fourier transforms as products with constant matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.emitting import known_array, size_of
from deploykit.optimizers.rewrites.normalizations import integer, is_float
from deploykit.optimizers.rewrites.shaping import dim, reshape_to

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter

_LARGEST = 4_000_000  # elements of the matrix: a transform of 1,000 complex numbers


def matrix(samples: int, length: int, components: int, *, onesided: bool, inverse: bool) -> np.ndarray[Any, Any] | None:
    """Maps `samples` numbers, flat [samples * components], to [bins * 2]; None when it is too large.

    length: of the transform; samples beyond it are left out, missing ones are 0. X_k = sum x_n exp(-2 pi i k n / N);
    the inverse has the other sign and is divided by N (spec, DFT-20).
    """
    bins = length // 2 + 1 if onesided else length
    if samples * components * bins * 2 > _LARGEST:
        return None
    count = min(samples, length)
    # k n modulo N first: large angles lose their fraction.
    angles = 2 * np.pi * (np.outer(np.arange(count), np.arange(bins)) % length) / length
    cosine, sine = np.cos(angles), np.sin(angles) if inverse else -np.sin(angles)
    made = np.zeros((samples, components, bins, 2))
    made[:count, 0, :, 0], made[:count, 0, :, 1] = cosine, sine
    if components == 2:
        made[:count, 1, :, 0], made[:count, 1, :, 1] = -sine, cosine
    return made.reshape(samples * components, bins * 2) / (length if inverse else 1)


def fourier(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """DFT of x [..., n, ..., 1 or 2] along an axis of known size; the axis is an attribute before opset 20."""
    x, rank = node.inputs[0], rank_of(node.inputs[0])
    if x is None or not is_float(x) or rank is None or rank < 2:
        return None
    lengths, axes = (node.inputs[at] if at < len(node.inputs) else None for at in (1, 2))
    if op.opset >= 20:
        placed = known_array(axes) if axes is not None else np.array(-2)
    else:
        placed = np.array(integer(node, "axis", 1))
    wanted = known_array(lengths)
    if placed is None or (lengths is not None and wanted is None):
        return None
    axis = int(placed.ravel()[0]) % rank
    samples, components = size_of(x, axis), size_of(x, rank - 1)
    onesided, inverse = bool(integer(node, "onesided", 0)), bool(integer(node, "inverse", 0))
    if axis == rank - 1 or samples is None or components not in (1, 2) or (onesided and (inverse or components == 2)):
        return None
    length = samples if wanted is None else int(wanted.ravel()[0])
    weights = matrix(samples, length, components, onesided=onesided, inverse=inverse)
    if weights is None or length < 1:
        return None
    others = [at for at in range(rank - 1) if at != axis]
    order = [*others, axis, rank - 1]
    outer = [dim(x, at) for at in others]
    flat = reshape_to(op, op.transpose(x, order), [*outer, samples * components], kept=len(outer))
    bins = weights.shape[1] // 2
    found = reshape_to(op, op.op("MatMul", flat, op.const(weights, x.dtype)), [*outer, bins, 2], kept=len(outer))
    return [op.transpose(found, [order.index(at) for at in range(rank)])]


def short_time_fourier(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """STFT of a real signal [batch, n] or [batch, n, 1] of any length: a Conv with the windowed transform as weights.

    Gives [batch, frames, bins, 2] (spec, STFT-17).
    """
    signal, step = node.inputs[0], known_array(node.inputs[1])
    window = node.inputs[2] if len(node.inputs) > 2 else None
    given = known_array(node.inputs[3]) if len(node.inputs) > 3 else None
    rank = rank_of(signal)
    if signal is None or not is_float(signal) or step is None or rank not in (2, 3):
        return None
    if rank == 3 and size_of(signal, 2) != 1:
        return None
    shape = known_array(window)
    if (window is not None and shape is None) or (shape is None and given is None):
        return None
    length = int(given.ravel()[0]) if given is not None else len(shape if shape is not None else ())
    shape = np.ones(length) if shape is None else shape
    weights = matrix(length, length, 1, onesided=bool(integer(node, "onesided", 1)), inverse=False)
    if weights is None or len(shape) != length:
        return None
    kernel = (weights * np.asarray(shape, np.float64)[:, None]).T[:, None, :]
    line = op.unsqueeze(signal, [1]) if rank == 2 else op.transpose(signal, [0, 2, 1])
    frames = op.op("Conv", line, op.const(kernel, signal.dtype), strides=[int(step.ravel()[0])])
    return [op.reshape(op.transpose(frames, [0, 2, 1]), [0, 0, weights.shape[1] // 2, 2])]


class DecomposeSpectra(Decomposition):
    """DFT along an axis of known size, STFT of real signals."""

    name: ClassVar[str] = "decompose-spectra"
    title: ClassVar[str] = "writes DFT as MatMul and STFT as Conv with constant weights"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "DFT"): fourier,
        ("", "STFT"): short_time_fourier,
    }
