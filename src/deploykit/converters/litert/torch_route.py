"""LiteRT from PyTorch by litert-torch, in its managed environment: torch.export's program goes there as a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deploykit import io
from deploykit.converters.bounds import bounds_of_input, fixed_by, unused_bounds
from deploykit.converters.litert.finishing import Made, finish
from deploykit.converters.litert.flatbuffer import interpreter, parse, text
from deploykit.converters.litert.options import settings_of
from deploykit.environments import interpreter_of
from deploykit.errors import UnavailableError, VendorError
from deploykit.isolation import run_isolated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.route import Handed

ENVIRONMENT = "litert-torch"
_PLACE = re.compile(r"(?:args|output)_(\d+)")


def write(handed: Handed) -> dict[str, Any]:
    """A `route.Writer`: the file of an ExportedProgram.

    Raises VendorError (DK556) with litert-torch's reason or without its environment, UsageError (DK527).
    """
    settings = settings_of(handed.options, calibrated=handed.calib is not None)
    findings = unused_bounds(handed.inputs, handed.dims, handed.profiles, target="litert")
    facts = finish(_made(handed), handed.output, settings, "fp32", handed.calib)
    facts["findings"][:0] = [finding.as_dict() for finding in findings]
    return facts


def _made(handed: Handed) -> Made:
    try:
        python = interpreter_of(ENVIRONMENT, "litert-torch")
    except UnavailableError as problem:  # the way through ONNX may be there
        raise VendorError(problem.message, code="DK556", target="litert", hint=problem.hint) from problem
    specs = tuple(
        type(spec)(
            spec.name, spec.dtype, fixed_by(spec, bounds_of_input(spec, handed.dims, handed.profiles.get(spec.name)))
        )
        for spec in handed.inputs
    )
    with io.scratch_folder() as folder:
        program, output = Path(folder) / "program.pt2", Path(folder) / "model.tflite"
        torch.export.save(handed.program, str(program))
        varying = [_varying(spec) for spec in specs]
        facts = run_isolated(
            ENVIRONMENT,
            "deploykit.converters.litert.torch_job:convert_job",
            {"program": str(program), "output": str(output), "varying": varying},
            interpreter=python,
        )
        if "refused" in facts:
            told = f"litert-torch {facts['versions']['litert-torch']} does not take it: {facts['refused']}"
            raise VendorError(told, code="DK556", target="litert", log=[facts["refused"]])
        content = output.read_bytes()
    tensors = _tensors(content, handed.output.name)
    return Made(content, specs, handed.outputs, tensors, versions=facts["versions"])


def _varying(spec: TensorSpec) -> dict[str, int]:
    return {f"axis{axis}": axis for axis, size in enumerate(spec.shape or ()) if isinstance(size, str)}


def _tensors(content: bytes, name: str) -> tuple[Sequence[int], Sequence[int]]:
    """The tensors in the order of the program: a signature sorts `args_10` before `args_2`."""
    interpreter(content, name, delegates=False)
    (signature,) = parse(content, name).signatureDefs
    sides = []
    for pairs in (signature.inputs, signature.outputs):
        found = {}
        for pair in pairs:
            match = _PLACE.fullmatch(text(pair.name))
            if match is None:
                raise VendorError(f"litert-torch calls an input or output {text(pair.name)!r}", code="DK556")
            found[int(match[1])] = int(pair.tensorIndex)
        sides.append([found[place] for place in sorted(found)])
    return sides[0], sides[1]
