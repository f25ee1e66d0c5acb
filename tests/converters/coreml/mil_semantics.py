"""Evaluates a reloaded MIL program by Apple's documented semantics, in numpy and PyTorch.

It shares no code with the lowerings: each operator is written from the documentation of
`coremltools.converters.mil.mil.ops.defs`. It is not Core ML, and nothing here claims to be.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import coremltools as ct
import numpy as np
import torch
from coremltools.converters.mil.frontend.milproto.load import load

if TYPE_CHECKING:
    from pathlib import Path

_DTYPES = {
    "fp32": np.float32, "fp16": np.float16, "int32": np.int32, "bool": np.bool_, "int8": np.int8, "uint8": np.uint8,
}  # fmt: skip


def run_package(package: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by name of the package's main function."""
    spec = ct.models.MLModel(str(package), skip_model_load=True).get_spec()
    weights = package / "Data" / "com.apple.CoreML" / "weights"
    program = load(spec, specification_version=spec.specificationVersion, file_weights_dir=str(weights))
    function = program.functions["main"]
    values = {var: np.asarray(feeds[name]) for name, var in function.inputs.items()}
    for operation in function.operations:
        _step(operation, values)
    return {var.name: values[var] for var in function.outputs}


def _step(operation, values: dict) -> None:
    if operation.op_type == "const":
        values[operation.outputs[0]] = np.asarray(operation.outputs[0].val)
        return
    arguments = {
        name: [values[item] for item in var] if isinstance(var, (list, tuple)) else values[var]
        for name, var in operation.inputs.items()
        if var is not None
    }
    made = OPERATORS[operation.op_type](**arguments)
    for var, array in zip(operation.outputs, made if isinstance(made, (list, tuple)) else [made], strict=True):
        array = np.asarray(array)
        shape = [size for size in var.shape if isinstance(size, (int, np.integer))]
        if len(shape) == len(var.shape):
            assert array.shape == tuple(shape), (operation.op_type, var.name, array.shape, var.shape)
        values[var] = array


def _text(value) -> str:
    return str(value.item() if isinstance(value, np.ndarray) else value)


def _pads(x, pad_type, pad, count):
    if pad_type is None or _text(pad_type) == "valid":
        return [0] * 2 * count
    assert _text(pad_type) == "custom", pad_type
    return [int(size) for size in pad]


def _padded(x, pads, value):
    # torch wants the last dimension first
    pairs = [pads[2 * axis : 2 * axis + 2] for axis in range(len(pads) // 2)]
    return torch.nn.functional.pad(
        torch.from_numpy(np.array(x)), [s for pair in reversed(pairs) for s in pair], value=value
    )


def conv(x, weight, bias=None, strides=None, pad_type=None, pad=None, dilations=None, groups=1):
    count = x.ndim - 2
    call = [torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d][count - 1]
    padded = _padded(x, _pads(x, pad_type, pad, count), 0.0)
    made = call(
        padded.double(),
        torch.from_numpy(np.array(weight)).double(),
        None if bias is None else torch.from_numpy(np.array(bias)).double(),
        stride=[int(s) for s in strides] if strides is not None else 1,
        dilation=[int(d) for d in dilations] if dilations is not None else 1,
        groups=int(groups),
    )
    return made.numpy().astype(x.dtype)


def conv_transpose(
    x, weight, bias=None, strides=None, pad_type=None, pad=None, dilations=None, groups=1, output_shape=None
):
    count = x.ndim - 2
    functional = torch.nn.functional
    call = [functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d][count - 1]
    made = call(
        torch.from_numpy(np.array(x)).double(),
        torch.from_numpy(np.array(weight)).double(),
        None if bias is None else torch.from_numpy(np.array(bias)).double(),
        stride=[int(s) for s in strides] if strides is not None else 1,
        dilation=[int(d) for d in dilations] if dilations is not None else 1,
        groups=int(groups),
    ).numpy()
    pads = _pads(x, pad_type, pad, count)
    cut = tuple(slice(pads[2 * i], made.shape[2 + i] - pads[2 * i + 1]) for i in range(count))
    made = made[(slice(None), slice(None), *cut)].astype(x.dtype)
    assert output_shape is None or made.shape == tuple(output_shape)
    return made


def _windows(x, kernel_sizes, strides, pads, value):
    count = x.ndim - 2
    padded = _padded(x, pads, value).numpy()
    view = np.lib.stride_tricks.sliding_window_view(
        padded, [int(k) for k in kernel_sizes], axis=tuple(range(2, x.ndim))
    )
    steps = tuple(slice(None, None, int(s)) for s in (strides if strides is not None else [1] * count))
    return view[(slice(None), slice(None), *steps)]


def max_pool(x, kernel_sizes, pad_type, strides=None, pad=None, ceil_mode=False):
    assert not bool(ceil_mode)
    windows = _windows(x, kernel_sizes, strides, _pads(x, pad_type, pad, x.ndim - 2), -math.inf)
    return windows.max(axis=tuple(range(x.ndim, windows.ndim)))


def avg_pool(x, kernel_sizes, pad_type, strides=None, pad=None, ceil_mode=False, exclude_padding_from_average=False):
    assert not bool(ceil_mode)
    pads = _pads(x, pad_type, pad, x.ndim - 2)
    windows = _windows(x.astype(np.float64), kernel_sizes, strides, pads, 0.0)
    axes = tuple(range(x.ndim, windows.ndim))
    if not bool(exclude_padding_from_average):
        return windows.mean(axis=axes).astype(x.dtype)
    counts = _windows(np.ones_like(x, np.float64), kernel_sizes, strides, pads, 0.0).sum(axis=axes)
    return (windows.sum(axis=axes) / counts).astype(x.dtype)


def slice_by_index(x, begin, end, stride=None, begin_mask=None, end_mask=None, squeeze_mask=None):
    rank = x.ndim
    stride = [1] * rank if stride is None else [int(s) for s in stride]
    assert all(step > 0 for step in stride)
    cuts, squeezed = [], []
    for axis in range(rank):
        first = None if begin_mask is not None and begin_mask[axis] else int(begin[axis])
        last = None if end_mask is not None and end_mask[axis] else int(end[axis])
        if squeeze_mask is not None and squeeze_mask[axis]:
            first, last = int(begin[axis]), int(begin[axis]) + 1 or None
            squeezed.append(axis)
        cuts.append(slice(first, last, stride[axis]))
    return np.squeeze(x[tuple(cuts)], axis=tuple(squeezed))


def reshape(x, shape):
    sizes = [int(size) for size in np.atleast_1d(shape)]
    assert 0 not in sizes
    return x.reshape(sizes)


def gather(x, indices, axis=0, batch_dims=0, validate_indices=False):
    assert np.all((indices >= 0) & (indices < x.shape[int(axis)])), "iOS17 takes indices from 0 only"
    if int(batch_dims) == 0:
        return np.take(x, indices, axis=int(axis))
    return np.stack([gather(row, picks, int(axis) - 1, batch_dims - 1) for row, picks in zip(x, indices, strict=True)])


def gather_along_axis(x, indices, axis=0, validate_indices=False):
    assert np.all(indices >= 0)
    return np.take_along_axis(x, indices.astype(np.int64), axis=int(axis))


def pad(x, pad, mode="constant", constant_val=0.0):
    pairs = [(int(a), int(b)) for a, b in np.asarray(pad).reshape(-1, 2)]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    kind = _text(mode)
    if kind == "constant":
        return np.pad(x, pairs, constant_values=x.dtype.type(constant_val))
    return np.pad(x, pairs, mode={"reflect": "reflect", "replicate": "edge"}[kind])


def _reduction(function):
    def reduce(x, axes=None, keep_dims=False):
        over = tuple(int(a) for a in np.atleast_1d(axes)) if axes is not None else None
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        return function(wide, axis=over, keepdims=bool(keep_dims)).astype(x.dtype)

    return reduce


def layer_norm(x, axes, gamma=None, beta=None, epsilon=1e-5):
    over = tuple(int(a) for a in axes)
    wide = x.astype(np.float64)
    made = (wide - wide.mean(over, keepdims=True)) / np.sqrt(wide.var(over, keepdims=True) + float(epsilon))
    made = made * gamma if gamma is not None else made
    return (made + beta if beta is not None else made).astype(x.dtype)


def instance_norm(x, gamma=None, beta=None, epsilon=1e-5):
    shape = [1, -1] + [1] * (x.ndim - 2)
    made = layer_norm(x, list(range(2, x.ndim)), epsilon=epsilon)
    made = made * gamma.reshape(shape) if gamma is not None else made
    return (made + beta.reshape(shape) if beta is not None else made).astype(x.dtype)


def batch_norm(x, mean, variance, gamma=None, beta=None, epsilon=1e-5):
    shape = [1, -1] + [1] * (x.ndim - 2)
    made = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape).astype(np.float64) + float(epsilon))
    made = made * gamma.reshape(shape) if gamma is not None else made
    return (made + beta.reshape(shape) if beta is not None else made).astype(x.dtype)


def local_response_norm(x, size, alpha=1e-4, beta=0.75, k=1.0):
    half, squares = int(size) // 2, x.astype(np.float64) ** 2
    sums = np.stack([squares[:, max(c - half, 0) : c + half + 1].sum(1) for c in range(x.shape[1])], axis=1)
    return (x / (float(k) + float(alpha) / int(size) * sums) ** float(beta)).astype(x.dtype)


def softmax(x, axis=-1):
    wide = x.astype(np.float64)
    shifted = np.exp(wide - wide.max(int(axis), keepdims=True))
    return (shifted / shifted.sum(int(axis), keepdims=True)).astype(x.dtype)


def gelu(x, mode="EXACT"):
    if _text(mode) == "EXACT":
        return (0.5 * x * (1 + _erf(x / math.sqrt(2)))).astype(x.dtype)
    assert _text(mode) == "TANH_APPROXIMATION"
    return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))).astype(x.dtype)


def _erf(x):
    return torch.erf(torch.from_numpy(np.asarray(x, np.float64))).numpy()


def _along(parameter, x, axis):
    if parameter is None:
        return 0
    return (
        parameter.reshape([-1 if i == int(axis) % x.ndim else 1 for i in range(x.ndim)])
        if parameter.ndim
        else parameter
    )


def quantize(input, scale, output_dtype, zero_point=None, axis=0):
    kind = np.dtype(_text(output_dtype))
    limits = np.iinfo(kind)
    offset = np.asarray(_along(zero_point, input, axis)).astype(np.int32)
    levels = np.rint(input.astype(np.float32) / _along(scale, input, axis)) + offset
    return np.clip(levels, limits.min, limits.max).astype(kind)


def dequantize(input, scale, zero_point=None, axis=0):
    offset = np.asarray(_along(zero_point, input, axis)).astype(np.int32)
    return ((input.astype(np.int32) - offset) * _along(scale, input, axis)).astype(scale.dtype)


def topk(x, k=1, axis=-1, ascending=False, sort=True, return_indices=True, output_indices_dtype="int32"):
    order = np.argsort(x if bool(ascending) else -x, axis=int(axis), kind="stable")
    indices = np.take(order, range(int(k)), axis=int(axis))
    return np.take_along_axis(x, indices, int(axis)), indices.astype(np.int32)


def cumsum(x, axis=0, exclusive=False, reverse=False):
    axis = int(axis)
    made = np.flip(x, axis) if bool(reverse) else x
    total = np.cumsum(made, axis, dtype=x.dtype)
    total = total - made if bool(exclusive) else total
    return np.flip(total, axis) if bool(reverse) else total


def depth_to_space(x, block_size):
    n, c, h, w = x.shape
    b = int(block_size)
    return x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)


def pixel_shuffle(x, upscale_factor):
    return torch.pixel_shuffle(torch.from_numpy(np.array(x)), int(upscale_factor)).numpy()


def space_to_depth(x, block_size):
    n, c, h, w = x.shape
    b = int(block_size)
    return x.reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


def split(x, num_splits=None, split_sizes=None, axis=0):
    if split_sizes is None:
        return np.split(x, int(num_splits), int(axis))
    return np.split(x, np.cumsum(split_sizes)[:-1], int(axis))


def cast(x, dtype):
    kind = _DTYPES[_text(dtype)]
    return np.trunc(x).astype(kind) if x.dtype.kind == "f" and np.dtype(kind).kind in "iu" else x.astype(kind)


def linear(x, weight, bias=None):
    made = x.astype(np.float64) @ weight.astype(np.float64).T
    return (made if bias is None else made + bias).astype(x.dtype)


def matmul(x, y, transpose_x=False, transpose_y=False):
    left = np.swapaxes(x, -1, -2) if bool(transpose_x) else x
    right = np.swapaxes(y, -1, -2) if bool(transpose_y) else y
    return (left.astype(np.float64) @ right.astype(np.float64)).astype(x.dtype)


def _elementwise(function):
    def apply(x, y=None):
        kind = x.dtype
        made = function(x) if y is None else function(x, y)
        return np.asarray(made).astype(kind) if np.asarray(made).dtype.kind == "f" else made

    return apply


def _unary(function):
    return lambda x: np.asarray(function(x)).astype(x.dtype)


def _argument(function):
    return lambda x, axis=-1, keep_dims=False, output_dtype=None: function(
        x, axis=int(axis), keepdims=bool(keep_dims)
    ).astype(np.int32)


def upsample_nearest_neighbor(x, scale_factor_height=1, scale_factor_width=1):
    return np.repeat(np.repeat(x, int(scale_factor_height), axis=-2), int(scale_factor_width), axis=-1)


def upsample_bilinear(x, scale_factor_height=1, scale_factor_width=1, align_corners=True, half_pixel_centers=None):
    size = [int(x.shape[2] * scale_factor_height), int(x.shape[3] * scale_factor_width)]
    tensor = torch.from_numpy(np.array(x))
    return torch.nn.functional.interpolate(tensor, size, mode="bilinear", align_corners=bool(align_corners)).numpy()


NAMED = [
    "conv", "conv_transpose", "max_pool", "avg_pool", "slice_by_index", "reshape", "gather", "gather_along_axis",
    "pad", "layer_norm", "instance_norm", "batch_norm", "local_response_norm", "softmax", "gelu", "quantize",
    "dequantize", "topk", "cumsum", "depth_to_space", "pixel_shuffle", "space_to_depth", "split", "cast", "linear",
    "matmul",
]  # fmt: skip
# MIL name:numpy name, or one name for both
BINARY = [
    "add", "sub:subtract", "mul:multiply", "real_div:true_divide", "floor_div:floor_divide", "maximum", "minimum",
    "pow:power", "mod", "equal", "not_equal", "less", "greater", "less_equal", "greater_equal", "logical_and",
    "logical_or", "logical_xor",
]  # fmt: skip
UNARY = [
    "abs", "exp", "sqrt", "floor", "ceil", "sign", "sin", "cos", "tan", "asin:arcsin", "acos:arccos",
    "atan:arctan", "sinh", "cosh", "atanh:arctanh", "tanh", "round:rint", "logical_not", "square",
]  # fmt: skip
OPERATORS = {
    **{name: globals()[name] for name in NAMED},
    "constexpr_affine_dequantize": lambda quantized_data, scale, zero_point, axis: dequantize(
        quantized_data, scale, zero_point, axis
    ),
    **{
        name: _elementwise(getattr(np, function or name))
        for name, _, function in (text.partition(":") for text in BINARY)
    },
    **{name: _unary(getattr(np, function or name)) for name, _, function in (text.partition(":") for text in UNARY)},
    "erf": _unary(_erf),
    "relu": _unary(lambda x: np.maximum(x, 0)),
    "sigmoid": _unary(lambda x: 1 / (1 + np.exp(-x.astype(np.float64)))),
    "silu": _unary(lambda x: x / (1 + np.exp(-x.astype(np.float64)))),
    "softplus": _unary(lambda x: np.logaddexp(0, x.astype(np.float64))),
    "softsign": _unary(lambda x: x / (1 + np.abs(x))),
    "log": lambda x, epsilon=1e-45: np.log(x.astype(np.float64) + float(epsilon)).astype(x.dtype),
    "clip": lambda x, alpha, beta: np.clip(x, alpha, beta),
    "leaky_relu": lambda x, alpha: np.where(x >= 0, x, x * alpha).astype(x.dtype),
    "elu": lambda x, alpha: np.where(x > 0, x, float(alpha) * np.expm1(np.minimum(x, 0).astype(np.float64))).astype(
        x.dtype
    ),
    "prelu": lambda x, alpha: np.where(x >= 0, x, x * alpha.reshape([1, -1] + [1] * (x.ndim - 2))).astype(x.dtype),
    "sigmoid_hard": lambda x, alpha=0.2, beta=0.5: np.clip(x * alpha + beta, 0, 1).astype(x.dtype),
    "upsample_nearest_neighbor": upsample_nearest_neighbor,
    "upsample_bilinear": upsample_bilinear,
    "identity": lambda x: x,
    "fill": lambda shape, value=0.0: np.full([int(size) for size in shape], value),
    "select": lambda cond, a, b: np.where(cond, a, b),
    "shape": lambda x: np.array(x.shape, np.int32),
    "expand_dims": lambda x, axes: np.expand_dims(x, tuple(int(a) for a in axes)),
    "squeeze": lambda x, axes=None: np.squeeze(x, None if axes is None else tuple(int(a) for a in axes)),
    "transpose": lambda x, perm: np.transpose(x, [int(a) for a in perm]),
    "tile": lambda x, reps: np.tile(x, [int(r) for r in reps]),
    "concat": lambda values, axis, interleave=False: (
        np.stack(values, 1).ravel() if interleave else np.concatenate(values, int(axis))
    ),
    "reverse": lambda x, axes=None: np.flip(x, None if axes is None else tuple(int(a) for a in axes)),
    "reduce_mean": _reduction(np.mean),
    "reduce_sum": _reduction(np.sum),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_prod": _reduction(np.prod),
    "reduce_argmax": _argument(np.argmax),
    "reduce_argmin": _argument(np.argmin),
}
