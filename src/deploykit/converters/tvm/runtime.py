"""Libraries of TVM in its own virtual machine, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from deploykit.artifact import TensorSpec
from deploykit.converters.tvm import trailer
from deploykit.converters.tvm.calls import Watched
from deploykit.converters.tvm.processor import refuse_other
from deploykit.converters.tvm.trust import refuse_unknown
from deploykit.converters.tvm.vendor import NAME, tvm, versioned
from deploykit.errors import DataError, InvalidFileError, UnavailableError, VendorError
from deploykit.runtime import Kernel, Runtime, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs

# How `runtime.config_threadpool` takes cores: -1, the little ones too.
_ANY_CORE = -1


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The library in TVM's virtual machine.

    Raises UsageError (DK580) for a library without its manifest, UnavailableError (DK591) for another processor's,
    (DK502) for another device than the CPU, InvalidFileError (DK528) for one that deploykit did not make.
    """
    return TvmRuntime(path, options)


class TvmRuntime(Runtime):
    """A library whose `main` takes the inputs in order."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """See `load`."""
        facts = expect(path)
        if options.device not in ("cpu", "all"):
            raise UnavailableError(
                f"TVM's libraries are made for the CPU here, not for {options.device}",
                code="DK502",
                target=NAME,
                hint="leave --device away",
            )
        self.inputs, self.outputs = (
            tuple(TensorSpec.from_dict(row) for row in facts[kind]) for kind in ("inputs", "outputs")
        )
        if options.threads:
            tvm.get_global_func("runtime.config_threadpool")(_ANY_CORE, options.threads)
        self._machine: Any = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
        self._main = self._machine["main"]
        self.watched = Watched(self._machine, facts["calls"], self.outputs, self.run)
        self._taps = tuple(name for name in options.taps if name in self.watched.tensors)
        self.taps = self._taps
        self._precision = str(facts["precision"])
        self.engine = f"tvm {versioned()} (llvm, {facts['built_for'].get('cpu', 'generic')})"

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name in the model's dtypes. Raises DataError (DK548) for sizes that it was not made for."""
        if not self._taps:
            return self.run(feeds)
        found, inner = self.watched.read(feeds, self._taps)
        return {**found, **inner}

    def run(self, feeds: Feeds) -> Outputs:
        """One call."""
        given = [tvm.runtime.tensor(np.asarray(feeds[spec.name], order="C")) for spec in self.inputs]
        try:
            made = self._main(*given)
        except (ValueError, RuntimeError, TypeError, IndexError) as problem:
            self._explain(feeds, problem)
            raise
        values = list(made) if len(self.outputs) > 1 else [made]
        return {spec.name: _array(value) for spec, value in zip(self.outputs, values, strict=True)}

    def _explain(self, feeds: Feeds, problem: Exception) -> None:
        """TVM checks sizes on entry and says it in the terms of its own program."""
        for spec in self.inputs:
            shape = np.shape(feeds[spec.name])
            wanted = spec.shape
            fixed = wanted is None or (
                len(wanted) == len(shape)
                and all(isinstance(size, str) or size == own for size, own in zip(wanted, shape, strict=True))
            )
            if not fixed:
                raise DataError(
                    f"input {spec.name!r} has the shape {list(shape)}, and the library takes {spec.describe()}",
                    code="DK548",
                    tensor=spec.name,
                    hint="give what it takes, or convert without --dim",
                ) from problem
        raise VendorError(f"TVM does not compute it: {str(problem).strip()[:400]}", target=NAME) from problem

    def kernels(self, feeds: Feeds) -> list[Kernel] | None:
        """Every compiled function that one call runs, with its time; None in a model with branches."""
        return self.watched.kernels(feeds, self._precision)

    def close(self) -> None:
        """Frees the machine; the library stays loaded in this process."""
        del self._main, self.watched, self._machine


def expect(path: Path) -> Mapping[str, Any]:
    """What the library says of itself, when it may be loaded here."""
    facts = trailer.read(path)
    refuse_unknown(path)
    if facts is None:
        raise InvalidFileError(
            f"{path.name} does not say what its inputs are: deploykit did not make it",
            code="DK528",
            file=path,
            target=NAME,
            hint=f"deploykit convert MODEL.onnx --to tvm -o {path.name}",
        )
    refuse_other(facts["built_for"])
    return facts


def _array(value: Any) -> np.ndarray[Any, Any]:
    """A tensor's content; a shape or a number as int64, which ONNX has for both."""
    if isinstance(value, tvm.runtime.Tensor):
        return value.numpy()  # type: ignore[no-any-return]
    return np.asarray(value if isinstance(value, int) else list(value), np.int64)
