"""`--option compute_precision=fp16` and `io_precision=fp16`: what is asked, and the program that comes of it."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

from deploykit.converters.coreml.mixing import Mixture, mix
from deploykit.converters.coreml.precision import make_half
from deploykit.data.request import data_request
from deploykit.errors import UsageError
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.converters.coreml.asked import Asked
    from deploykit.converters.coreml.frontend import Built

CHOICES = ("fp32", "fp16")
# Without data of the user's: so many random samples.
RANDOM = 16


@dataclasses.dataclass(slots=True)
class Halving:
    """What is asked, and what was made of it.

    request: a `DataRequest` to measure on. interface: inputs and outputs are fp16, too.
    """

    model: Path
    inputs: Sequence[TensorSpec]
    request: dict[str, Any]
    interface: bool
    asked: Asked
    mixture: Mixture | None = None
    refused: list[str] = dataclasses.field(default_factory=list)

    def made(self, built: Built, interface: Sequence[Any], target: Any) -> Any:
        """The lowered program after coremltools' passes, in fp16 but for what has to stay fp32.

        interface: the declared inputs. Raises UnavailableError (DK502) for a program that is not simulated, and what
        reading the data raises.
        """
        import coremltools as ct

        from deploykit.converters.coreml.convert import passes

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # coremltools' notes about its own passes
            program = ct.convert(
                built.program,
                source="milinternal",
                inputs=list(interface),
                convert_to="milinternal",
                minimum_deployment_target=target,
                compute_precision=ct.precision.FLOAT32,
                pass_pipeline=passes(),
            )
        function = program.functions["main"]
        self.mixture = mix(function, self.inputs, built.names, self.model, self.request, self.asked.images)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.refused = make_half(program, self.mixture.half, interface=self.interface)
        return program

    def doors(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Inputs or outputs in the types that they have when the interface is fp16."""
        if not self.interface:
            return tuple(specs)
        return tuple(dataclasses.replace(s, dtype="float16") if s.dtype == "float32" else s for s in specs)

    def findings(self, built: Built, ends: Sequence[TensorSpec]) -> list[Finding]:
        """What the report says, first of all. ends: inputs and outputs of the model."""
        assert self.mixture is not None
        found = self.mixture.findings(built.origins, self.refused)
        if self.interface:
            found += [
                note(
                    "DK529",
                    f"{spec.name!r} is float16 in the package, float32 in the model",
                    target="coreml",
                    tensor=spec.name,
                    hint="feed and read it as float16; io_precision=fp32 keeps the model's type",
                )
                for spec in ends
                if spec.dtype == "float32"
            ]
        return found

    def precision(self, held: str) -> str:
        """What the package is. held: what the ONNX holds; fp32 stays fp32 where nothing can be fp16."""
        assert self.mixture is not None
        return "fp16" if held == "fp32" and self.mixture.half else held

    @property
    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        assert self.mixture is not None
        kept = {**self.mixture.islands, **dict.fromkeys(self.refused, "coremltools has no fp16 form of it")}
        return {**self.mixture.measured, "kept_fp32": kept}


def asked_half(
    options: Mapping[str, Any],
    precision: str,
    model: Path,
    inputs: Sequence[TensorSpec],
    dims: Mapping[str, Sequence[int | None]],
    asked: Asked,
    calib: Mapping[str, Any] | None,
) -> Halving | None:
    """What the options say about fp16; None where the program's own types stay. precision: what the ONNX holds.

    Raises UsageError (DK527) for other values and for what does not go together.
    """
    wanted = _choice(options, "compute_precision")
    doors = _choice(options, "io_precision")
    half = wanted == "fp16" and precision != "fp16"
    if wanted == "fp32" and precision == "fp16":
        raise _wrong(
            f"compute_precision=fp32, and {model.name} holds fp16 already",
            "convert the fp32 model that it was made from",
        )
    if doors == "fp16" and not half:
        raise _wrong(
            "io_precision=fp16 goes with compute_precision=fp16",
            "--option compute_precision=fp16"
            if precision != "fp16"
            else "an fp16 ONNX model has the interface that it was quantized with: leave the option away",
        )
    if doors == "fp16" and asked.images:
        raise _wrong("io_precision=fp16 and image_input: an image has pixels, not fp16", "leave io_precision away")
    if calib is not None and not half:
        raise _wrong(
            "--calib measures what fp16 costs, and nothing becomes fp16 here",
            "--option compute_precision=fp16"
            if precision != "fp16"
            else "deploykit quantize measured when it made the fp16 model: leave --calib away",
        )
    if not half:
        return None
    contract = asked.contract or None
    request = dict(calib) if calib is not None else data_request(None, "parity", samples=RANDOM, dims=dims)
    return Halving(model, inputs, {**request, "contract": request["contract"] or contract}, doors == "fp16", asked)


def _choice(options: Mapping[str, Any], name: str) -> str | None:
    value = options.get(name)
    if value is not None and str(value) not in CHOICES:
        raise _wrong(f"{name} {value!r} is none of {', '.join(CHOICES)}", f"--option {name}=fp16")
    return None if value is None else str(value)


def _wrong(why: str, hint: str) -> UsageError:
    return UsageError(why, code="DK527", target="coreml", hint=hint)
