"""The time of each operator of an MNN model, by the callbacks of its sessions."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from deploykit.runtime import Kernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

# Operators that only modules run: a session ends the process over them.
_MODULES_ONLY = {"If", "While"}
# What MNN adds to the name of the tensor that an operator makes: changes of layout, a product as a convolution.
_ADDED = re.compile(r"(_raster_\d+|__matmul_converted)+$")


def can_profile(operators: Mapping[str, int]) -> bool:
    """Whether a session runs a model with these operators."""
    return not _MODULES_ONLY & operators.keys()


class Profile:
    """A session of a model, whose operators are timed one by one."""

    def __init__(self, path: Path, threads: int, hints: Sequence[tuple[int, int]], precision: str) -> None:
        """hints: of MNN's `setSessionHint`, as the runtime has them. precision: "high" or "normal"."""
        import MNN

        self._engine: Any = MNN
        self._network: Any = MNN.Interpreter(str(path))
        for mode, value in hints:
            self._network.setSessionHint(mode, value)
        self._session: Any = self._network.createSession(
            {"backend": "CPU", "precision": precision, "numThread": threads}
        )

    def kernels(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[Kernel]:
        """Those of one call, in order. feeds: in MNN's types (float32 or int32).

        macs: MNN's own count, which is of multiplications for products and of elements for all else.
        """
        network, session, mnn = self._network, self._session, self._engine
        inputs = network.getSessionInputAll(session)
        if any(tuple(inputs[name].getShape()) != array.shape for name, array in feeds.items()):
            for name, array in feeds.items():
                network.resizeTensor(inputs[name], array.shape)
            network.resizeSession(session)
        held = []  # MNN reads where the arrays lie
        for name, array in feeds.items():
            kind = mnn.Halide_Type_Float if array.dtype.kind == "f" else mnn.Halide_Type_Int
            held.append(mnn.Tensor(array.shape, kind, array, mnn.Tensor_DimensionType_Caffe))
            inputs[name].copyFrom(held[-1])
        found: list[Kernel] = []
        begun = [0.0]

        def begin(_: Any, __: Any) -> bool:
            begun[0] = time.perf_counter()
            return True

        def end(_: Any, info: Any) -> bool:
            taken = (time.perf_counter() - begun[0]) * 1e6
            name, op = str(info.getName()), str(info.getType())
            macs = round(float(info.getFlops()) * 1e6) if "Conv" in op or "MatMul" in op else 0
            found.append(Kernel(name, op, "fp32", (_ADDED.sub("", name),), macs, taken))
            return True

        network.runSessionWithCallBackInfo(session, begin, end)
        return found
