"""OpenVINO IR in OpenVINO's own runtime."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import openvino as ov

from deploykit.converters.openvino.doors import contract_of, doors_of
from deploykit.converters.openvino.extension import core_with
from deploykit.converters.openvino.inspect import read
from deploykit.converters.openvino.interface import interface, versioned
from deploykit.converters.openvino.profile import kernels_of, matrix_products, warm_kernels
from deploykit.errors import UnavailableError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deploykit.runtime import Feeds, Kernel, Outputs

# A profile: so many calls that make code and reorder weights, then calls that count, at least and at most.
_COLD, _WARM, _PROFILE_S = 2, (3, 200), 0.2


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The IR (or an ONNX file) compiled for the device.

    Raises UnavailableError (DK222) when the device is not on this machine, ModelError (DK202, DK203) for a file that
    OpenVINO does not read.
    """
    return OpenVinoRuntime(path, options)


def properties(options: RuntimeOptions, device: str) -> dict[str, Any]:
    """OpenVINO's properties for our options."""
    chosen: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if options.exact and device != "NPU":  # which has float16 only
        # On CPUs with bf16 instructions the default is bf16, 1e-3 off the model's own numbers. Activations that meet
        # int8 weights are quantized on the fly by default, too: 50 dB where the model itself has float activations.
        chosen["INFERENCE_PRECISION_HINT"] = "f32"
        chosen["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    if device == "CPU" and options.threads is not None:
        chosen["INFERENCE_NUM_THREADS"] = options.threads
    return chosen


class OpenVinoRuntime(Runtime):
    """A compiled IR with one infer request."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Compiles the model for the device; see `load` for what it raises."""
        library = options.custom_ops.get("openvino")
        core = core_with(library)
        device = options.device.upper()
        if not any(name == device or name.startswith(f"{device}.") for name in core.available_devices):
            raise UnavailableError(
                f"OpenVINO finds no {device} on this machine",
                code="DK222",
                context=[f"it finds {', '.join(core.available_devices) or 'no device'}"],
                hint="leave --device away to run on the CPU",
                target="openvino",
            )
        self._model = read(path, core)
        self._properties = properties(options, device)
        self._device = device
        self._core = core
        self.engine = f"openvino {versioned()} ({device})"
        self.inputs, self.outputs = interface(self._model)
        self._doors = doors_of(self._model)
        self.contract = contract_of(self._doors)
        self.taps = _tap(self._model, options.taps)
        self._request = self._compile({}).create_infer_request()

    def _compile(self, more: dict[str, Any]) -> ov.CompiledModel:
        return self._core.compile_model(self._model, self._device, {**self._properties, **more})

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, in the artifact's own dtypes; feeds by input name in the declared dtypes."""
        return self._infer(self._request, feeds)

    def _infer(self, request: ov.InferRequest, feeds: Feeds) -> Outputs:
        for index, spec in enumerate(self.inputs):
            array = feeds[spec.name] if spec.name not in self._doors else self._doors[spec.name].given(feeds[spec.name])
            request.set_input_tensor(index, as_tensor(array, self._model.inputs[index]))
        request.infer()
        names = (*(spec.name for spec in self.outputs), *self.taps)
        found = {name: as_array(request.get_output_tensor(place)) for place, name in enumerate(names)}
        for spec in self.outputs:
            if spec.name in self._doors:
                found[spec.name] = self._doors[spec.name].taken(found[spec.name])
        return found

    def kernels(self, feeds: Feeds) -> list[Kernel] | None:
        """The kernels of one call, from the graph the plugin executes and its own performance counters."""
        compiled = self._compile({"PERF_COUNT": True})
        request = compiled.create_infer_request()
        for _ in range(_COLD):
            self._infer(request, feeds)
        names = [spec.name for spec in self.inputs]
        given = {name: self._doors[name].given(feeds[name]) if name in self._doors else feeds[name] for name in names}
        shapes = {name: array.shape for name, array in given.items()}
        products = matrix_products(self._model, shapes, names)
        cold = kernels_of(compiled.get_runtime_model(), products)
        calls, end = 0, time.perf_counter() + _PROFILE_S
        while calls < _WARM[0] or (calls < _WARM[1] and time.perf_counter() < end):
            self._infer(request, feeds)
            calls += 1
        return warm_kernels(kernels_of(compiled.get_runtime_model(), products), cold, _COLD, calls)

    def close(self) -> None:
        """Frees the compiled model."""
        del self._request, self._model


def _tap(model: ov.Model, names: Sequence[str]) -> tuple[str, ...]:
    """Adds the tensors of these names to the outputs; those that the model has, and no output is already."""
    results = {name for port in model.outputs for name in port.get_names()}
    known = {name for node in model.get_ops() for port in node.outputs() for name in port.get_names()}
    tapped = tuple(name for name in names if name in known - results)
    if tapped:
        model.add_outputs(list(tapped))
    return tapped


def as_tensor(array: np.ndarray[Any, Any], port: ov.Output) -> ov.Tensor:
    """The array in memory of OpenVINO's, in the port's type."""
    kind = port.get_element_type()
    if kind == ov.Type.bf16:
        tensor = ov.Tensor(kind, ov.Shape(array.shape))
        # OpenVINO shows bfloat16 memory as float16: the bits are what counts.
        tensor.data[...] = array.astype(ml_dtypes.bfloat16).view(np.float16)
        return tensor
    if kind == ov.Type.string:
        return ov.Tensor(array)
    return ov.Tensor(np.asarray(array, order="C"), shared_memory=False)


def as_array(tensor: ov.Tensor) -> np.ndarray[Any, Any]:
    """A copy of the tensor."""
    kind = tensor.get_element_type()
    if kind == ov.Type.string:
        return np.array(tensor.str_data, dtype=object)
    data = np.array(tensor.data)  # the request reuses its memory
    return data.view(ml_dtypes.bfloat16) if kind == ov.Type.bf16 else data
