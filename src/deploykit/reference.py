"""The reference: onnxruntime on the CPU with graph optimisation off; every check compares with it.

Runs user models in this process: call it in a worker.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - teaches numpy the names "bfloat16" and "float8_..."
import numpy as np
import onnx_ir as ir

from deploykit import graph
from deploykit.errors import DataError, VendorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.artifact import TensorSpec

    Array = np.ndarray[Any, Any]
    Interface = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]

# Types that onnxruntime computes with and its Python binding cannot pass; all values of them are exact in float32.
_NOT_BOUND = {
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
}


# Graphs hold cycles: what is no longer read is freed when the collector runs, which takes its time.
_LARGE = 32 << 20


class Reference:
    """An ONNX model in onnxruntime as it is written: no fusion, no constant folding, default CPU kernels.

    inputs, outputs: as the model declares them. Raises InvalidFileError and ModelError as `graph.load` does for a file
    that is not sound, VendorError (DK510) for a model that onnxruntime does not take.
    """

    def __init__(
        self, model: Path | str | bytes, *, threads: int | None = None, interface: Interface | None = None
    ) -> None:
        """Loads a file, or the bytes of a model without external data; threads: intra-op, None leaves the choice.

        interface: what `graph.interface` gave for this very file, which then need not be read here, too.
        """
        # Kept open while the session lives: onnxruntime maps external data from this folder.
        self._folder = tempfile.TemporaryDirectory(prefix="deploykit-reference-")
        try:
            path = self._on_disk(model)
            if interface is None or any(_needs_cast(spec) for specs in interface for spec in specs):
                loaded = graph.load(path)
                self.inputs, self.outputs = graph.interface(loaded)
                if _expose_unbound(loaded):
                    path = Path(self._folder.name) / "bound.onnx"
                    graph.save(loaded, path)
                del loaded  # its weights would stay beside those of the session
                if path.stat().st_size > _LARGE:
                    free_memory()
            else:
                self.inputs, self.outputs = interface
            self._session = _session(path, threads)
        except BaseException:  # an interrupt, too, must leave no folder behind
            self._folder.cleanup()
            raise

    def _on_disk(self, model: Path | str | bytes) -> Path:
        if not isinstance(model, bytes):
            return Path(model)
        path = Path(self._folder.name) / "model.onnx"
        path.write_bytes(model)
        return path

    def predict(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, in the model's own dtypes; feeds by input name in the declared dtypes.

        Raises DataError (DK301 missing or unknown name, DK312 dtype or shape), VendorError (DK510) when the run fails.
        """
        ready = {spec.name: _fit(spec, feeds) for spec in self.inputs}
        unknown = sorted(feeds.keys() - ready.keys())
        if unknown:
            raise DataError(
                f"the model has no input {unknown[0]!r}",
                code="DK301",
                tensor=unknown[0],
                context=[f"inputs: {', '.join(spec.name for spec in self.inputs)}"],
            )
        try:
            results = self._session.run([spec.name for spec in self.outputs], ready)
        except Exception as problem:  # onnxruntime's own classes, which differ by version
            raise VendorError(f"the reference run failed: {_reason(problem)}") from problem
        return {spec.name: _as_declared(spec, result) for spec, result in zip(self.outputs, results, strict=True)}

    def close(self) -> None:
        """Frees the session and its temporary files."""
        self._session = None
        self._folder.cleanup()


def free_memory() -> None:
    """Gives what is no longer read back to the system, before something large follows.

    Graphs hold cycles, which wait for the collector; and the C library keeps freed pieces for itself until asked.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


class StandardReference(Reference):
    """An ONNX model in the definitions of the standard (onnx.reference): slow, and free of any engine's limits.

    For models that onnxruntime has no kernels for, as those of opset 6. Raises VendorError (DK510) for operators
    without a definition.
    """

    def __init__(self, model: Path) -> None:
        """Loads a file."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        self._folder = tempfile.TemporaryDirectory(prefix="deploykit-reference-")
        try:
            self.inputs, self.outputs = graph.interface(graph.load(model))
            self._session = _Definitions(ReferenceEvaluator(onnx.load(model)))
        except Exception as problem:  # the library has no common class for models that it does not take
            self._folder.cleanup()
            raise VendorError(f"onnx.reference does not load {model.name}: {_reason(problem)}", file=model) from problem


class _Definitions:
    """The evaluator, called as a session of onnxruntime is."""

    def __init__(self, evaluator: Any) -> None:
        self._evaluator = evaluator

    def run(self, names: list[str], feeds: Mapping[str, Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            results: list[Any] = self._evaluator.run(names, dict(feeds))
        return results


def _session(path: Path, threads: int | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    # Nothing to measure speed with: threads that spin between operators take the other work's processor.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The arena keeps what was the most so far, in ever larger pieces: beside large weights it is too much.
    options.enable_cpu_mem_arena = path.stat().st_size <= _LARGE
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # onnxruntime's own classes, which differ by version
        raise VendorError(
            f"onnxruntime does not load {path.name}: {_reason(problem)}",
            file=path,
            hint="deploykit check MODEL --target onnxruntime names the operators that it lacks",
        ) from problem


def _reason(problem: Exception) -> str:
    return " ".join(str(problem).split())[:1000]


def _fit(spec: TensorSpec, feeds: Mapping[str, Array]) -> Array:
    if spec.name not in feeds:
        raise DataError(
            f"no data for input {spec.name!r}",
            code="DK301",
            tensor=spec.name,
            context=[f"expected {spec.describe()}; given: {', '.join(feeds) or 'nothing'}"],
        )
    array = np.asarray(feeds[spec.name])
    if spec.dtype == "string":
        if array.dtype.kind not in "USO":
            raise _unfit(spec, array)
        return array.astype(object)
    if array.dtype.name != spec.dtype:
        raise _unfit(spec, array)
    if spec.shape is not None and not _shape_fits(spec.shape, array.shape):
        raise _unfit(spec, array)
    return array.astype(np.float32) if _needs_cast(spec) else array


def _shape_fits(declared: tuple[int | str, ...], shape: tuple[int, ...]) -> bool:
    return len(declared) == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(declared, shape, strict=True)
    )


def _unfit(spec: TensorSpec, array: Array) -> DataError:
    return DataError(
        f"input {spec.name!r} takes {spec.describe()}, and the data is {array.dtype.name} {list(array.shape)}",
        code="DK312",
        tensor=spec.name,
    )


def _needs_cast(spec: TensorSpec) -> bool:
    return spec.dtype == "bfloat16" or spec.dtype.startswith("float8")


def _as_declared(spec: TensorSpec, result: Any) -> Any:
    return result.astype(np.dtype(spec.dtype)) if _needs_cast(spec) else result


def _expose_unbound(model: ir.Model) -> bool:
    """Puts a Cast to and from float32 around inputs and outputs of types that the binding cannot pass."""
    changed = False
    body = model.graph
    for value in list(body.inputs):
        if value.dtype not in _NOT_BOUND or value.name in body.initializers:
            continue
        cast = ir.node("Cast", [value], attributes={"to": value.dtype}, name=f"bind/{value.name}")
        inner = cast.outputs[0]
        inner.name, inner.dtype, inner.shape = f"bind/{value.name}/value", value.dtype, value.shape
        value.replace_all_uses_with(inner, replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        value.dtype = ir.DataType.FLOAT
        body.insert_before(body[0], cast) if len(body) else body.append(cast)
        changed = True
    for at, value in enumerate(list(body.outputs)):
        if value.dtype not in _NOT_BOUND:
            continue
        name = value.name
        value.name = f"bind/{name}/value"
        cast = ir.node("Cast", [value], attributes={"to": ir.DataType.FLOAT}, name=f"bind/{name}")
        outer = cast.outputs[0]
        outer.name, outer.dtype, outer.shape = name, ir.DataType.FLOAT, value.shape
        body.append(cast)
        body.outputs[at] = outer
        changed = True
    return changed
