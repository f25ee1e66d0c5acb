"""Integer weights and static INT8 by NNCF, Intel's own compressor, on a model of OpenVINO (runs in the worker)."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from deploykit import lazy
from deploykit.converters.openvino.interface import dtype_name
from deploykit.data.carry import CarriedState
from deploykit.data.request import open_request
from deploykit.errors import UsageError, VendorError
from deploykit.report import Finding, failure, note
from deploykit.route import hidden

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

    import numpy as np
    import openvino as ov

    from deploykit.artifact import TensorSpec
    from deploykit.converters.openvino.options import Settings
    from deploykit.data.dataset import Dataset

    Array = np.ndarray[Any, Any]

# It looks for them and imports what it finds: seconds and hundreds of megabytes for backends that are not used here.
_FOUND = ("torch", "torchvision", "tensorflow", "openvino_telemetry", "transformers")
# NNCF's own default; more samples are not looked at.
SUBSET = 300
_GROUP = 128


@contextlib.contextmanager
def nncf_for(purpose: str) -> Iterator[ModuleType]:
    """NNCF without telemetry, progress bars and other frameworks. Raises MissingDependencyError."""
    os.environ["NNCF_CI"] = "1"  # its switch for environments that report nothing
    logging.getLogger("nncf").setLevel(logging.ERROR)
    with hidden(_FOUND), contextlib.redirect_stdout(io.StringIO()):
        nncf = lazy.require("nncf", "nncf", purpose=purpose)
        logging.getLogger("nncf").setLevel(logging.ERROR)
        yield nncf


class Feeds:
    """Samples as NNCF reads them, again and again; carried inputs come from the float model's previous call."""

    def __init__(
        self, model: ov.Model, specs: Sequence[TensorSpec], dataset: Dataset, carry: Mapping[str, str]
    ) -> None:
        self._model, self._specs, self._dataset, self._carry = model, specs, dataset, carry

    def __iter__(self) -> Iterator[dict[int, Array]]:
        """Arrays by the place of the input."""
        runner = _Runner(self._model, self._specs) if self._carry else None
        state = CarriedState(self._carry)
        for sample in self._dataset:
            feeds = state.fill(sample.feeds)
            if runner is not None:
                state.update(runner(feeds, set(self._carry.values())))
            yield {place: feeds[spec.name] for place, spec in enumerate(self._specs)}


class _Runner:
    """The float model, for the states that calls hand on."""

    def __init__(self, model: ov.Model, specs: Sequence[TensorSpec]) -> None:
        import openvino as ov

        self._request = (
            ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        )
        self._specs = specs

    def __call__(self, feeds: Mapping[str, Array], wanted: set[str]) -> dict[str, Array]:
        result = self._request.infer({place: feeds[spec.name] for place, spec in enumerate(self._specs)})
        return {name: array for port, array in result.items() for name in port.get_names() & wanted}


def samples_for(
    model: ov.Model, specs: Sequence[TensorSpec], request: Mapping[str, Any]
) -> tuple[Feeds, int, list[Finding]]:
    """The calibration set for NNCF, how many samples of it are read, and what is to be said of it.

    An empty set is refused here (DK303): NNCF would name a node that has no statistics. Raises DataError.
    """
    wanted = {**request, "samples": min(request.get("samples") or SUBSET, SUBSET)}
    dataset = open_request(wanted, specs)  # type: ignore[arg-type]  # a DataRequest, as JSON
    contract = request.get("contract") or {}
    carry = {name: rule["carry"] for name, rule in contract.items() if rule.get("carry")}
    total = dataset.total if dataset.total is not None else sum(1 for _ in dataset)
    return Feeds(model, specs, dataset, carry), total, dataset.findings


def compress(model: ov.Model, settings: Settings, feeds: Feeds | None, count: int) -> ov.Model:
    """The model with weights stored in integers.

    feeds, count: calibration data, which 4-bit weights are fitted on. Raises UsageError (DK527) for a group size that
    layers do not have, VendorError.
    """
    with nncf_for("weights in integers") as nncf:
        arguments: dict[str, Any] = {"mode": nncf.CompressWeightsMode(settings.mode)}
        if settings.four_bits:
            fallback = nncf.GroupSizeFallbackMode.ERROR if settings.group_size else nncf.GroupSizeFallbackMode.ADJUST
            arguments |= {
                "ratio": 1.0 if settings.ratio is None else settings.ratio,
                "group_size": settings.group_size or _GROUP,
                # Without it the last layer stays at 8 bits whatever the ratio says.
                "all_layers": settings.ratio is None,
                "advanced_parameters": nncf.AdvancedCompressionParameters(group_size_fallback_mode=fallback),
            }
            if feeds is not None:
                arguments |= {
                    "dataset": nncf.Dataset(feeds),
                    "subset_size": count,
                    "awq": True,
                    "scale_estimation": True,
                }
        try:
            made: ov.Model = nncf.compress_weights(model, **arguments)
        except nncf.errors.InvalidGroupSizeError as problem:
            raise UsageError(
                f"group_size {settings.group_size}: {' '.join(str(problem).split())[:600]}",
                code="DK527",
                target="openvino",
                hint="a group size that divides the channels, -1 for one scale a channel, or leave it away",
            ) from problem
        except Exception as problem:  # NNCF raises anything
            raise _vendor(nncf, problem) from problem
    return made


def quantize(model: ov.Model, settings: Settings, feeds: Feeds, count: int) -> ov.Model:
    """The model with FakeQuantize by NNCF's post-training quantization, ranges of the CPU plugin. VendorError."""
    with nncf_for("quantizer=nncf") as nncf:
        try:
            made: ov.Model = nncf.quantize(
                model,
                nncf.Dataset(feeds),
                subset_size=count,
                target_device=nncf.TargetDevice.CPU,
                preset=nncf.QuantizationPreset(settings.preset) if settings.preset else None,
                model_type=nncf.ModelType.TRANSFORMER if settings.transformer else None,
            )
        except Exception as problem:  # NNCF raises anything
            raise _vendor(nncf, problem) from problem
    return made


def _vendor(nncf: Any, problem: Exception) -> VendorError:
    why = " ".join(str(problem).split())[:600]
    return VendorError(
        f"NNCF {nncf.__version__} failed: {type(problem).__name__}: {why}",
        target="openvino",
        hint="deploykit quantize MODEL -o OUT quantizes without NNCF",
    )


def expect_compiled(model: ov.Model) -> None:
    """Raises VendorError where the CPU plugin does not take what NNCF made, as with some products in 4 bits (3.4.0)."""
    import openvino as ov

    try:
        ov.Core().compile_model(model, "CPU")
    except RuntimeError as problem:
        why = " ".join(line.strip() for line in str(problem).splitlines() if "Exception from" not in line)[:600]
        raise VendorError(
            f"OpenVINO does not compile what NNCF made of the model: {why}",
            target="openvino",
            hint="another form or group size: --option weights=int8, --option group_size=64",
        ) from problem


def stored(model: ov.Model) -> dict[str, int]:
    """Bytes of the constants by type."""
    sizes: Counter[str] = Counter()
    for node in model.get_ops():
        if node.get_type_name() == "Constant":
            sizes[dtype_name(node.get_element_type())] += node.get_byte_size()
    return dict(sorted(sizes.items()))


def said(settings: Settings, before: Mapping[str, int], after: Mapping[str, int], kernels: int) -> list[Finding]:
    """What was done, or a failure (DK585) where nothing was: an artifact is what it is called.

    kernels: FakeQuantize operators of a quantized model.
    """
    if settings.quantizer:
        if not kernels:
            return [_nothing("NNCF quantized nothing: the model has no operator that it computes in integers")]
        return []
    if settings.mode is None:
        return []
    bits = ("int4", "uint4") if settings.four_bits else ("int8", "uint8")
    added = sum(after.get(kind, 0) - before.get(kind, 0) for kind in bits)
    if added <= 0:
        what = "4" if settings.four_bits else "8"
        return [_nothing(f"no weight became {what} bits: NNCF found no layer for it among {_told(before)}")]
    text = f"weights are stored in {_told(after)}, before in {_told(before)}; activations stay float"
    return [note("DK587", text, target="openvino")]


def _nothing(text: str) -> Finding:
    return failure("DK585", text, target="openvino", hint="leave the option away: the artifact would be the float one")


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} ({size:,} bytes)" for kind, size in sizes.items() if size) or "nothing"
