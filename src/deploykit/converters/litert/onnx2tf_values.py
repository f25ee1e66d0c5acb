"""Results of onnx2tf's pieces beside those of ONNX Runtime (runs in the managed environment)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import onnx

    Array = np.ndarray[Any, Any]

# As tight as the row for fp32: what a piece adds is not to use up the tolerance of the whole.
RTOL, ATOL = 1e-4, 1e-5
# ONNX Runtime approximates the logistic function: 0 below -18, and off by up to 9.2e-8 elsewhere (measured against
# float64 from -30 to 0). Where a noisy input leaves nothing but small results, that is more than the tolerance.
_LOGISTIC = 2.0**-22
_MOVES = frozenset({"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten"})


def slacks(nodes: Iterable[onnx.NodeProto]) -> dict[str, float]:
    """How far ONNX Runtime itself may be off, of tensors where that is not in proportion to their values."""
    found: dict[str, float] = {}
    for node in nodes:
        if node.op_type == "Sigmoid" or (node.op_type in _MOVES and node.input[0] in found):
            found[node.output[0]] = _LOGISTIC
    return found


def axes_that_fit(pairs: list[tuple[Array, Array]], slack: float = 0.0) -> tuple[int, ...] | None:
    """Axes by which all results become what was wanted: none, or channels to the front again; None: nothing does.

    slack: of `slacks`.
    """
    rank = pairs[0][1].ndim
    orders: list[tuple[int, ...]] = [()]
    if rank >= 3:
        orders += [(0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)]
    for axes in orders:
        if all(equal(wanted, given.transpose(axes) if axes else given, slack) for wanted, given in pairs):
            return axes
    return None


def equal(wanted: Array, given: Array, slack: float = 0.0) -> bool:
    """Whether values are equal within the tolerance of fp32, or `slack`; exact kinds exactly."""
    if wanted.shape != given.shape:
        return False
    if wanted.dtype.kind != "f":
        return bool(np.array_equal(wanted, given))
    finite = wanted[np.isfinite(wanted)]
    top = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(given, wanted, rtol=RTOL, atol=max(ATOL * top, slack), equal_nan=True))


def told(pairs: list[tuple[Array, Array]]) -> str:
    """What is different about results, (wanted, given) for each feed."""
    for wanted, given in pairs:
        if wanted.shape != given.shape:
            return f"onnx2tf gives shape {list(given.shape)} where ONNX Runtime gives {list(wanted.shape)}"
    wanted, given = max(pairs, key=lambda pair: _distance(*pair))
    return f"onnx2tf gives other values than ONNX Runtime: they differ by up to {_distance(wanted, given):.3g}"


def _distance(wanted: Array, given: Array) -> float:
    with np.errstate(all="ignore"):
        return float(np.nanmax(np.abs(wanted.astype(np.float64) - given.astype(np.float64)), initial=0.0))


def sentence(problem: BaseException) -> str:
    """The lines of a message that say something of the node."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    speaking = [
        line for line in lines if not line.startswith(("Exception encountered", "Call arguments", "•", "Arguments"))
    ]
    text = " ".join(speaking or lines)[:300]
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
