"""Runtime: an artifact loaded into the engine that runs it, and what the engine says about its kernels.

Runtimes live in worker processes (`deploykit.isolation`); nothing here imports an engine.
"""

from __future__ import annotations

import abc
import dataclasses
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from deploykit.errors import UnavailableError, UsageError
from deploykit.target import format_of, refuse_foreign, resolve, target_of_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from deploykit.artifact import TensorSpec
    from deploykit.report import Finding

    Feeds = Mapping[str, np.ndarray[Any, Any]]
    Outputs = dict[str, np.ndarray[Any, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel the engine ran, by its own profile.

    precision: "fp32", "fp16", "bf16", "int8", "int32", ... of the computation. nodes: ONNX node names fused into it.
    macs: multiply-accumulates for one call, 0 where it has none. microseconds: time of one call when profiled.
    """

    name: str
    op: str
    precision: str
    nodes: tuple[str, ...] = ()
    macs: int = 0
    microseconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How to load: device, onnxruntime provider, intra-op threads (None: the engine's choice), exact fp32 compute.

    device: all lets Core ML use every one. custom_ops: each engine's extension library, by target name; each engine
    loads its own.
    exact: ask for the artifact's own precision where the engine would lower it (OpenVINO's bf16 on newer CPUs).
    optimize: False turns graph optimisation off where the engine can (the reference runs that way).
    spin: False has threads sleep between operators: half the processor time where only outputs count, and not speed.
    taps: ONNX names of tensors inside that `predict` gives, too, those that the engine knows; the others are left out.
    """

    device: Literal["cpu", "gpu", "npu", "all"] = "cpu"
    provider: str | None = None
    threads: int | None = None
    exact: bool = True
    optimize: bool = True
    spin: bool = True
    taps: tuple[str, ...] = ()
    custom_ops: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def as_reference(self) -> RuntimeOptions:
        """For an ONNX model that others are compared with: the CPU's kernels, and the other one has the device."""
        return dataclasses.replace(self, optimize=False, device="cpu", provider=None)


class Runtime(abc.ABC):
    """A loaded artifact.

    concurrent: whether `predict` may be called from several threads at once.
    taps: tensors inside that `predict` gives besides the outputs, of those that `RuntimeOptions.taps` asked for.
    bounds: [min, max or None, *sizes] of each axis of an input that takes less than its spec says, by its name.
    contract: the preprocessing, in JSON form, of inputs that are images in the artifact: only pixel data fits them.
    findings: what loading it told: where its nodes run, say.
    """

    execution: Literal["real", "simulated"] = "real"
    concurrent: bool = False
    engine: str  # "onnxruntime 1.32.0 (CPUExecutionProvider)"
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    taps: tuple[str, ...] = ()
    bounds: Mapping[str, Sequence[Sequence[int | None]]] = MappingProxyType({})
    contract: Mapping[str, Any] = MappingProxyType({})
    findings: Sequence[Finding] = ()

    @abc.abstractmethod
    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, in the artifact's own dtypes; feeds by input name in the declared dtypes."""

    def kernels(self, feeds: Feeds) -> list[Kernel] | None:
        """The kernels one call runs, by the engine's own profile; None when the engine does not tell."""
        return None

    def close(self) -> None:
        """Frees the engine's memory."""


def open_runtime(path: Path, options: RuntimeOptions | None = None) -> Runtime:
    """Loads an artifact into its engine, in this process: call it in a worker.

    Raises UsageError (DK804) for a file no runtime knows, UnavailableError (DK502) where the engine cannot run here.
    """
    format = format_of(path)
    target = target_of_format(format) if format else None
    if target is None:
        raise UsageError(
            f"nothing here runs {path.name!r}",
            code="DK804",
            file=path,
            hint="deploykit targets lists what runs on this machine",
        )
    if target.runtime is None:
        raise UnavailableError(
            f"{target.title} artifacts do not run on this machine", code="DK502", file=path, target=target.name
        )
    refuse_foreign(target, path)
    load: Callable[[Path, RuntimeOptions], Runtime] = resolve(target.runtime)
    return load(path, options or RuntimeOptions())
