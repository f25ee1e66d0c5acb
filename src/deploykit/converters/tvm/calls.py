"""The calls of a running program, watched one by one: what each computes, and how long it takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from deploykit.converters.tvm.vendor import NAME, tvm
from deploykit.errors import VendorError
from deploykit.runtime import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from deploykit.artifact import TensorSpec
    from deploykit.runtime import Feeds, Outputs

    Array = np.ndarray[Any, np.dtype[Any]]


class Watched:
    """A machine whose compiled functions are told apart by their place in the order of calls.

    tensors: {ONNX name: place}. A function writes into its last argument.
    """

    def __init__(
        self,
        machine: Any,
        calls: Sequence[Sequence[str]],
        outputs: Sequence[TensorSpec],
        run: Callable[[Feeds], Outputs],
    ) -> None:
        """calls: [function, tensor or "", node or ""] in order, as the library says. run: one call of the program."""
        self._machine = machine
        self._run = run
        self.calls = [(str(name), str(tensor), str(node)) for name, tensor, node in calls]
        own = {spec.name for spec in outputs}
        self.tensors = {
            tensor: place for place, (_, tensor, _) in enumerate(self.calls) if tensor and tensor not in own
        }

    def read(
        self, feeds: Feeds, names: Sequence[str], given: Mapping[str, Array] | None = None
    ) -> tuple[Outputs, Outputs]:
        """Outputs, and the named tensors inside.

        given: values that take the place of what the program computes for these tensors.
        """
        wanted = {self.tensors[name]: name for name in names}
        put = {self.tensors[name]: array for name, array in (given or {}).items()}
        found: Outputs = {}

        def after(place: int, made: Any) -> None:
            if place in put:
                made.copyfrom(put[place])
            if place in wanted:
                found[wanted[place]] = made.numpy().copy()

        return self._watch(feeds, after), found

    def kernels(self, feeds: Feeds, precision: str) -> list[Kernel] | None:
        """Each call with its time; None where the order is not known."""
        if not self.calls:
            return None
        times: list[float] = []
        self._watch(feeds, lambda _, made: None, times)
        return [
            Kernel(name, name.rstrip("0123456789"), precision, (node,) if node else (), 0, spent * 1e6)
            for (name, _, node), spent in zip(self.calls, times, strict=True)
        ]

    def _watch(self, feeds: Feeds, after: Callable[[int, Any], None], times: list[float] | None = None) -> Outputs:
        known = {name for name, _, _ in self.calls}
        seen: list[str] = []
        began = 0.0
        failed: list[str] = []

        def instrument(_: Any, symbol: str, before: bool, __: Any, *args: Any) -> int:
            nonlocal began
            if symbol not in known:
                return 0
            if before:
                began = time.perf_counter()
                return 0
            spent = time.perf_counter() - began
            place = len(seen)
            seen.append(symbol)
            if place >= len(self.calls) or self.calls[place][0] != symbol:
                failed.append(symbol)
                return 0
            if times is not None:
                times.append(spent)
            after(place, args[-1])
            return 0

        self._machine.set_instrument(tvm.runtime.convert(instrument))
        try:
            outputs = self._run(feeds)
        finally:
            self._machine.set_instrument(tvm.runtime.convert(lambda *_: 0))
        if failed or len(seen) != len(self.calls):
            raise VendorError("the library calls its functions in another order than it says", target=NAME)
        return outputs
