"""Integers by ai-edge-quantizer, Google's own quantizer of LiteRT models, on a float model (runs in the worker)."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from typing import TYPE_CHECKING, Any

from deploykit import lazy
from deploykit.converters.litert.flatbuffer import NAME, dtype_name, interpreter, operator_name, parse
from deploykit.converters.litert.interface import interface_of
from deploykit.data.carry import CarriedState
from deploykit.data.request import open_request
from deploykit.errors import GateError, VendorError
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

    from deploykit.converters.litert.options import Settings
    from deploykit.data.samples import Sample

    Array = np.ndarray[Any, Any]

# More samples change a range of the smallest and largest value little; what `quantize` takes at most.
SUBSET = 512
_ROUNDINGS = {"minmax": "min_max_uniform_quantize", "mse": "MSE", "octav": "OCTAV", "gptq": "GPTQ"}
_WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL", "EMBEDDING_LOOKUP")
_INTEGERS = ("int8", "uint8", "int4", "int16")


def quantize(
    content: bytes, name: str, settings: Settings, calib: Mapping[str, Any] | None
) -> tuple[bytes, list[Finding], int]:
    """The model in integers, what is to be said of it, and how many samples were measured.

    content: a float model whose interface is remembered. calib: a `DataRequest`.
    Raises VendorError where the quantizer fails, DataError for calibration data that does not fit, and
    MissingDependencyError.
    """
    quantizer = lazy.require("ai_edge_quantizer.quantizer", "litert", purpose=f"precision={settings.precision}")
    findings: list[Finding] = []
    count = 0
    with _quiet():
        work = quantizer.Quantizer(content, _recipe(settings))
        measured = None
        if work.need_calibration:
            assert calib is not None
            measured, count, findings = _calibrated(content, name, work, settings, calib)
        try:
            made = bytes(
                work.quantize(measured, enable_progress_bar=False, enable_progress_report=False).quantized_model
            )
        except Exception as problem:  # it raises ValueError, RuntimeError, KeyError
            raise _failed(problem) from problem
    interpreter(made, name, delegates=False)
    return made, [*findings, *_said(content, made, name, settings)], count


def _recipe(settings: Settings) -> Any:
    from ai_edge_quantizer import qtyping
    from ai_edge_quantizer.recipe_manager import RecipeManager

    every = qtyping.TFLOperationName.ALL_SUPPORTED
    manager, key = RecipeManager(), _ROUNDINGS[settings.rounding]
    if settings.precision == "int8":
        manager.add_static_config(".*", every, 8, 8, algorithm_key=key)
        if not settings.integer_io:
            for door in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
                manager.add_quantization_config(".*", door, algorithm_key="no_quantize")
    elif settings.precision == "int8-dynamic":
        manager.add_dynamic_config(".*", every, 8, algorithm_key=key)
    else:
        bits = 4 if settings.precision == "int4-weights" else 8
        manager.add_weight_only_config(".*", every, bits, algorithm_key=key)
    return manager.get_quantization_recipe()


def _calibrated(
    content: bytes, name: str, work: Any, settings: Settings, calib: Mapping[str, Any]
) -> tuple[Any, int, list[Finding]]:
    """Ranges by tensor, how many samples they come from, and what is to be said of the data."""
    from ai_edge_quantizer import calibrator
    from ai_edge_quantizer.utils import qsv_utils

    model = parse(content, name)
    found = interface_of(model)
    wanted: dict[str, Any] = {**calib, "samples": min(calib.get("samples") or SUBSET, SUBSET)}
    dataset = open_request(wanted, found.specs(found.inputs))  # type: ignore[arg-type]  # a DataRequest, as JSON
    carry = {at: rule["carry"] for at, rule in (calib.get("contract") or {}).items() if rule.get("carry")}
    feeds = _Feeds(content, name, dataset, carry)
    (signature,) = [one.signatureKey for one in model.signatureDefs if one.subgraphIndex == 0][:1]
    key = signature.decode() if isinstance(signature, bytes) else signature
    # Its own default follows a moving average, which cuts what only some samples reach: 15 dB instead of 40 on the
    # digits CNN.
    update = qsv_utils.min_max_update if settings.ranges == "minmax" else qsv_utils.moving_average_update
    if settings.rounding == "gptq":
        update = qsv_utils.gptq_and_moving_average_update
    measuring = calibrator.Calibrator(memoryview(content), num_threads=1, qsv_update_func=update)
    try:
        measuring.calibrate({key: feeds}, work._recipe_manager)
    except Exception as problem:  # whatever its interpreter and its statistics raise
        if feeds.raised is not None:
            raise feeds.raised from problem
        raise _failed(problem) from problem
    return measuring.get_model_qsvs(), feeds.count, dataset.findings


class _Feeds:
    """Samples as the file takes them; carried inputs come from the float model's previous call."""

    def __init__(self, content: bytes, name: str, dataset: Any, carry: Mapping[str, str]) -> None:
        self._dataset, self._carry = dataset, carry
        self._interface = interface_of(parse(content, name))
        self._engine = interpreter(content, name) if carry else None
        self.count = 0
        self.raised: Exception | None = None

    def __len__(self) -> int:
        total = self._dataset.total
        return int(total) if total is not None else sum(1 for _ in self._dataset)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        state = CarriedState(self._carry)
        self.count = 0
        try:
            for sample in self._dataset:
                feeds = self._given(sample, state)
                self.count += 1
                yield feeds
        except Exception as problem:  # of the data: the calibrator's own words would hide it
            self.raised = problem
            raise

    def _given(self, sample: Sample, state: CarriedState) -> dict[str, Array]:
        feeds = state.fill(sample.feeds)
        doors = self._interface.doors
        given = {
            port.name: doors[port.name].given(feeds[port.name], port) if port.name in doors else feeds[port.name]
            for port in self._interface.inputs
        }
        if self._engine is not None:
            state.update(self._outputs(self._engine, given))
        return given

    def _outputs(self, engine: Any, given: Mapping[str, Array]) -> dict[str, Array]:
        for port in self._interface.inputs:
            engine.resize_tensor_input(port.tensor, list(given[port.name].shape))
        engine.allocate_tensors()
        for port in self._interface.inputs:
            engine.set_tensor(port.tensor, given[port.name])
        engine.invoke()
        doors = self._interface.doors
        made = {port.name: engine.get_tensor(port.tensor) for port in self._interface.outputs}
        return {
            port.name: doors[port.name].taken(made[port.name], port) if port.name in doors else made[port.name]
            for port in self._interface.outputs
        }


def _said(before: bytes, after: bytes, name: str, settings: Settings) -> list[Finding]:
    """Which operators stay in float, or a failure (DK565) where all of them do: an artifact is what it is called."""
    left, taken = computing(parse(after, name))
    if settings.static:
        if not taken:
            return [_nothing("no operator became an integer one: the quantizer takes none of them", before, name)]
        told = ", ".join(f"{op} {count}" for op, count in sorted(left.items()))
        if told:
            text = f"{sum(taken.values())} operators compute in integers; these stay in float: {told}"
            return [note("DK566", text, target=NAME)]
        return []
    if len(after) >= len(before):
        return [_nothing("no weight became an integer: the quantizer takes none of the operators", before, name)]
    told = ", ".join(f"{op} {count}" for op, count in sorted(_float_weights(parse(after, name)).items()))
    return [note("DK566", f"weights of these stay in float: {told}", target=NAME)] if told else []


def _float_weights(model: Any) -> dict[str, int]:
    """Operators by name whose weights, their second input, are float constants."""
    found: dict[str, int] = {}
    for graph in model.subgraphs:
        for operator in graph.operators or []:
            name, inputs = operator_name(model, operator), operator.inputs
            if name not in _WEIGHTED or inputs is None or len(inputs) < 2 or inputs[1] < 0:
                continue
            tensor = graph.tensors[inputs[1]]
            data = model.buffers[tensor.buffer].data if tensor.buffer else None
            if dtype_name(tensor.type) == "float32" and data is not None and len(data):
                found[name] = found.get(name, 0) + 1
    return found


def _nothing(text: str, before: bytes, name: str) -> Finding:
    model = parse(before, name)
    operators = sorted({operator_name(model, op) for graph in model.subgraphs for op in graph.operators or []})
    return failure(
        "DK565",
        f"{text} ({', '.join(operators)})",
        target=NAME,
        hint="leave the precision away: the artifact would be the float one",
    )


def computing(model: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Operators by name that compute in float, and those that compute in integers; what converts counts for neither."""
    sides: tuple[dict[str, int], dict[str, int]] = ({}, {})
    for graph in model.subgraphs:
        for operator in graph.operators or []:
            name = operator_name(model, operator)
            if name in ("QUANTIZE", "DEQUANTIZE") or not len(operator.outputs or []):
                continue
            kinds = [graph.tensors[index] for index in operator.outputs]
            if dtype_name(kinds[0].type) in _INTEGERS and kinds[0].quantization is not None:
                side = sides[1]
            elif dtype_name(kinds[0].type).startswith("float"):
                side = sides[0]
            else:
                continue  # shapes and indices
            side[name] = side.get(name, 0) + 1
    return sides


def _failed(problem: Exception) -> Exception:
    if isinstance(problem, (GateError, VendorError)):
        return problem
    why = " ".join(str(problem).split())[:600]
    return VendorError(
        f"ai-edge-quantizer {lazy.version_of('ai-edge-quantizer')} failed: {type(problem).__name__}: {why}",
        target=NAME,
        hint="leave the precision away: the float model is converted without it",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without its progress bars, and warnings that are about what we do on purpose."""
    os.environ["TQDM_DISABLE"] = "1"
    logging.getLogger().setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
