"""ONNX models in ONNX Runtime."""

from __future__ import annotations

import ctypes
import math
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as native

from deploykit.artifact import TensorSpec
from deploykit.converters.onnxruntime.placement import judge_placement, record
from deploykit.converters.onnxruntime.profile import kernels_of
from deploykit.converters.onnxruntime.providers import CPU, Provider, provider_for, refused_options, session_entries
from deploykit.errors import GateError, ModelError, UnavailableError, UsageError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.runtime import Feeds, Kernel, Outputs

_LOAD_ERRORS = (
    native.NotImplemented,
    native.InvalidGraph,
    native.InvalidProtobuf,
    native.InvalidArgument,
    native.Fail,
    native.RuntimeException,
    native.EPFail,
    native.EngineError,
    RuntimeError,  # a provider that is not made of its options
)
_UNKNOWN_OPERATOR = ("No Op registered for", "is not a registered function/op")
_ON_CPU = Provider(CPU)
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "bool": "bool",
    "string": "string",
    **{name: name for name in ("float16", "bfloat16", "int4", "uint4")},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: name for name in ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")},
}


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The model in a session of the installed ONNX Runtime.

    Raises UnavailableError (DK220, DK221) for a provider that is not here or does not take the session, ModelError
    (DK202) for a file that is no valid model, GateError (DK201) for an operator the engine has no kernel for.
    """
    return OnnxRuntime(path, options)


def session_options(options: RuntimeOptions) -> ort.SessionOptions:
    """ONNX Runtime's session options for ours. Raises UsageError (DK231) for a library that does not load."""
    chosen = ort.SessionOptions()
    chosen.log_severity_level = 4  # what fails is an exception here; a line on stderr would stand between JSON logs
    if not options.optimize:
        chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not (options.spin and options.optimize):  # a reference is nothing to measure speed with
        chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if options.threads is not None:
        chosen.intra_op_num_threads = options.threads
        chosen.inter_op_num_threads = 1
    library = options.custom_ops.get("onnxruntime")
    if library is not None:
        _register(chosen, library)
    return chosen


def with_library(options: Mapping[str, Any]) -> RuntimeOptions:
    """RuntimeOptions for a job's options, which may name the target's own extension library, and a provider."""
    library, provider = options.get("custom_ops"), options.get("provider")
    return RuntimeOptions(provider=provider, custom_ops={"onnxruntime": str(library)} if library else {})


def _register(chosen: ort.SessionOptions, library: str) -> None:
    try:
        chosen.register_custom_ops_library(library)
    except _LOAD_ERRORS as problem:
        raise UsageError(
            f"ONNX Runtime {ort.__version__} does not load {library}: {_sentence(problem)}",
            code="DK231",
            file=library,
            target="onnxruntime",
            hint="--custom-ops takes a library for this machine that exports RegisterCustomOps",
        ) from problem


def open_session(
    path: Path, options: ort.SessionOptions, provider: Provider = _ON_CPU, without: Sequence[str] = ()
) -> ort.InferenceSession:
    """A session on this provider, the CPU behind it. without: names of graph optimisers that are left out.

    Raises UnavailableError (DK221) when ONNX Runtime leaves out the provider, UsageError (DK527) when the provider
    refuses its options, ModelError or GateError as in `load`.
    """
    try:
        session = ort.InferenceSession(
            str(path),
            options,
            providers=session_entries(provider),
            disabled_optimizers=list(without) or None,
            # A provider that fails to start is otherwise left out, with a line on stdout.
            enable_fallback=0,
        )
    except _LOAD_ERRORS as problem:
        told = _sentence(problem)
        if (refused := refused_options(provider, told)) is not None:
            raise refused from problem
        engine = f"ONNX Runtime {ort.__version__}"
        if provider.name != CPU:
            engine += f" with {provider.name}"
        if isinstance(problem, native.NotImplemented) or any(sign in told for sign in _UNKNOWN_OPERATOR):
            raise GateError(
                f"{engine} cannot run a node of {path.name}: {told}",
                code="DK201",
                file=path,
                target="onnxruntime",
                hint=f"deploykit check '{path}' --target onnxruntime names every such node",
            ) from problem
        raise ModelError(
            f"{engine} does not take {path.name}: {told}",
            code="DK202",
            file=path,
            hint=f"deploykit check '{path}' --target onnxruntime",
        ) from problem
    # A provider whose library or device is missing is dropped with a log line only: numbers and times would be the
    # CPU's under another name.
    if provider.name not in session.get_providers():
        raise UnavailableError(
            f"{provider.name} is built in but does not start on this machine, and ONNX Runtime would silently use "
            f"{session.get_providers()[0]}",
            code="DK221",
            hint="deploykit doctor",
        )
    return session


class OnnxRuntime(Runtime):
    """An ONNX model in a session."""

    concurrent = True

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Loads the model; see `load` for what it raises."""
        self._options = options
        self._provider = provider_for(options)
        # Kept open while the session lives: it maps external data from this folder.
        self._folder = tempfile.TemporaryDirectory(prefix="deploykit-taps-") if options.taps else None
        if self._folder is not None:
            path, self.taps = _tap(path, options.taps, Path(self._folder.name))
        self._path = path
        chosen = session_options(options)
        record(chosen)
        self._session = open_session(path, chosen, self._provider)
        self.findings = judge_placement(self._session, self._provider, path)
        self.engine = f"onnxruntime {ort.__version__} ({self._provider.name})"
        self.inputs = tuple(map(_spec, self._session.get_inputs()))
        given = tuple(map(_spec, self._session.get_outputs()))
        self.outputs = given[: len(given) - len(self.taps)]
        self._bfloat16 = any(spec.dtype == "bfloat16" for spec in (*self.inputs, *given))

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, in the artifact's own dtypes; feeds by input name in the declared dtypes."""
        return self._run(self._session, feeds)

    def _run(self, session: ort.InferenceSession, feeds: Feeds) -> Outputs:
        names = [*(spec.name for spec in self.outputs), *self.taps]
        if not self._bfloat16:
            return dict(zip(names, session.run(names, dict(feeds)), strict=True))
        values = {name: _as_value(array) for name, array in feeds.items()}
        return {
            name: _as_array(value)
            for name, value in zip(names, session.run_with_ort_values(names, values), strict=True)
        }

    def kernels(self, feeds: Feeds) -> list[Kernel] | None:
        """The kernels of one call, from ONNX Runtime's own profiler and the graph it made of the model."""
        with tempfile.TemporaryDirectory(prefix="deploykit-profile-") as name:
            folder = Path(name)
            chosen = session_options(self._options)
            chosen.enable_profiling = True
            chosen.profile_file_prefix = str(folder / "profile")
            chosen.optimized_model_filepath = str(folder / "optimized.onnx")
            # Without this the written graph would stop at protobuf's 2 GB.
            chosen.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
            session = open_session(self._path, chosen, self._provider)
            for _ in range(2):  # the first call allocates; the second one is what a caller sees
                self._run(session, feeds)
            profile = Path(session.end_profiling())
            return kernels_of(profile, folder / "optimized.onnx", self._path)

    def close(self) -> None:
        """Frees the session."""
        del self._session
        if self._folder is not None:
            self._folder.cleanup()


def _tap(path: Path, names: Sequence[str], folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The model with the tensors of these names among its outputs, and which ones its main graph makes."""
    from deploykit import graph

    model = graph.load(path)
    made = {value.name: value for node in model.graph for value in node.outputs if not value.is_graph_output()}
    tapped = [made[name] for name in names if name in made]
    model.graph.outputs.extend(tapped)
    written = folder / path.name
    graph.save(model, written)
    return written, tuple(value.name or "" for value in tapped)


def _spec(argument: Any) -> TensorSpec:
    # "tensor(float)"; sequences and maps keep their own description, which no array will fit.
    kind = argument.type
    inner = kind[7:-1] if kind.startswith("tensor(") else kind
    # A dimension without a name is called as `graph.interface` calls it, so that bounds of it are found.
    shape = tuple(
        f"{argument.name}_dim{axis}" if size in (None, "", -1) else size for axis, size in enumerate(argument.shape)
    )
    return TensorSpec(argument.name, _DTYPES.get(inner, inner), shape)


def _as_value(array: np.ndarray[Any, Any]) -> ort.OrtValue:
    # numpy has no bfloat16, so ONNX Runtime is told that these 16-bit integers are one.
    if array.dtype == ml_dtypes.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(array, order="C").view(np.uint16), _BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _as_array(value: ort.OrtValue) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any]
    if value.data_type() != "tensor(bfloat16)":
        found = value.numpy()
        return found
    shape = value.shape()
    if not math.prod(shape):
        return np.empty(shape, ml_dtypes.bfloat16)
    words = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    found = np.frombuffer(words, np.uint16).view(ml_dtypes.bfloat16).reshape(shape).copy()
    return found


def _sentence(problem: Exception) -> str:
    """The message without `[ONNXRuntimeError] : 10 : INVALID_GRAPH : Load model from X failed:` before it."""
    text = " ".join(str(problem).split())
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    text = re.sub(r"^Load model from .*? failed: ?", "", text)
    # ... and without the file, line and signature of the C++ function that said so.
    return re.sub(r"/onnxruntime(_src)?/\S+\.(cc|h):\d+ .*?[\w&*>.]\)( \[with .*?\])? (?=[A-Z\[])", "", text)
