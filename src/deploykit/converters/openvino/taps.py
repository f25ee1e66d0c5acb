"""The tensors inside an OpenVINO model, read by compiling the part that computes them with a result behind each.

A result keeps the plugin from fusing across that tensor, and only there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openvino as ov
from openvino import opset13 as ops

from deploykit.converters.openvino.doors import doors_of
from deploykit.converters.openvino.extension import core_with
from deploykit.converters.openvino.inspect import read
from deploykit.converters.openvino.interface import interface, versioned
from deploykit.converters.openvino.runtime import as_array, as_tensor, properties
from deploykit.taps import Inner, Taps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from deploykit.runtime import Feeds, Outputs, RuntimeOptions

    Array = np.ndarray[Any, np.dtype[Any]]

_NO_TENSOR = {"Constant", "Parameter", "Result"}


class OpenVinoTaps(Taps):
    """A model that stays loaded; each reading compiles the part that it needs."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Reads the model. Raises ModelError (DK202, DK203)."""
        self._core = core_with(options.custom_ops.get("openvino"))
        self._model = read(path, self._core)
        self._device = options.device.upper()
        self._properties = properties(options, self._device)
        self.engine = f"openvino {versioned()} ({self._device})"
        self.inputs, self.outputs = interface(self._model)
        self._doors = doors_of(self._model)
        self._ports: dict[str, tuple[str, int]] = {}  # operator and output by tensor
        self._known: dict[str, str] = {}  # tensor by ONNX name
        self.tensors = {}
        for operator in self._model.get_ordered_ops():
            if operator.get_type_name() in _NO_TENSOR:
                continue
            for place, port in enumerate(operator.outputs()):
                name = f"{operator.get_name()}:{place}"
                self.tensors[name] = Inner(name, operator.get_friendly_name(), operator.get_type_name())
                self._ports[name] = (operator.get_name(), place)
                self._known.update(dict.fromkeys(port.get_names(), name))
                if len(operator.outputs()) == 1 and not port.get_names():
                    self._known.setdefault(operator.get_friendly_name(), name)
        for spec, result in zip(self.outputs, self._model.results, strict=True):
            source = result.input_value(0)
            name = f"{source.get_node().get_name()}:{source.get_index()}"
            if name in self.tensors:
                self._known[spec.name] = name

    def find(self, names: Iterable[str]) -> dict[str, str]:
        """By the names that the conversion from ONNX has left at the outputs of operators."""
        return {name: self._known[name] for name in names if name in self._known}

    def read(self, feeds: Feeds, names: Sequence[str], given: Mapping[str, Array] | None = None) -> Outputs:
        """Tensors by name."""
        part, order = self._part(names, given or {})
        compiled = self._core.compile_model(part, self._device, self._properties)
        request = compiled.create_infer_request()
        values = {spec.name: self._taken(spec.name, feeds[spec.name]) for spec in self.inputs if spec.name in feeds}
        values |= given or {}
        for place, name in enumerate(order):
            request.set_input_tensor(place, as_tensor(values[name], part.inputs[place]))
        request.infer()
        return {name: as_array(request.get_output_tensor(place)) for place, name in enumerate(names)}

    def _taken(self, name: str, array: Array) -> Array:
        return self._doors[name].given(array) if name in self._doors else array

    def save_part(
        self,
        path: Path,
        names: Sequence[str],
        given: Mapping[str, Array],
        called: Mapping[str, str],
        like: Mapping[str, Array],
    ) -> tuple[Path, ...]:
        """The part as an IR."""
        part, order = self._part(names, given)
        for port, name in zip((*part.inputs, *part.outputs), (*order, *names), strict=True):
            port.get_tensor().set_names({called.get(name, name)})
        file = path.with_suffix(".xml")
        ov.save_model(part, str(file), compress_to_fp16=False)
        return file, file.with_suffix(".bin")

    def _part(self, names: Sequence[str], given: Mapping[str, Array]) -> tuple[ov.Model, list[str]]:
        """The part with the named tensors as results, and which tensor or input each of its parameters is."""
        work = self._model.clone()
        # A clone names its operators anew; their friendly names and order stay.
        twins = {}
        for old, new in zip(self._model.get_ordered_ops(), work.get_ordered_ops(), strict=True):
            if old.get_friendly_name() != new.get_friendly_name():
                raise RuntimeError(f"{old.get_friendly_name()!r} is another operator in OpenVINO's copy of the model")
            twins[old.get_name()] = new

        def port_of(name: str) -> Any:
            operator, place = self._ports[name]
            return twins[operator].output(place)

        parameters: list[tuple[Any, str]] = []
        wanted = [port_of(name) for name in names]
        for name, array in given.items():
            port = port_of(name)
            parameter = ops.parameter(list(array.shape), port.get_element_type())
            for reader in port.get_target_inputs():
                reader.replace_source_output(parameter.output(0))
            parameters.append((parameter, name))
        parameters += zip(work.get_parameters(), [spec.name for spec in self.inputs], strict=True)
        needed = _reached(wanted)
        kept = [(node, name) for node, name in parameters if node.get_name() in needed]
        results = [ops.result(port) for port in wanted]
        return ov.Model(results, [node for node, _ in kept], "part"), [name for _, name in kept]


def open_taps(path: Path, options: RuntimeOptions) -> Taps:
    """The tensors of an IR. Raises ModelError (DK202, DK203)."""
    return OpenVinoTaps(path, options)


def _reached(ports: Iterable[Any]) -> set[str]:
    """Names of all operators that make these ports."""
    found: set[str] = set()
    pending = [port.get_node() for port in ports]
    while pending:
        node = pending.pop()
        if node.get_name() not in found:
            found.add(node.get_name())
            pending += [source.get_node() for source in node.input_values()]
    return found
