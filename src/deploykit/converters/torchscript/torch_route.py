"""TorchScript of a module, traced or scripted (in a worker)."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import torch

from deploykit.converters.torch_files import ENTRY, settled, tag
from deploykit.errors import UsageError, VendorError
from deploykit.report import warning

if TYPE_CHECKING:
    from deploykit.report import Finding
    from deploykit.route import Handed, HandedModule

_METHODS = ("auto", "trace", "script")
NAME = "torchscript"


def write(handed: Handed) -> dict[str, Any]:
    """A `route.Writer`: the module as TorchScript, with the interface inside; the same bytes each time.

    Raises UsageError (DK527) for an option's value, VendorError (DK556) where torch.jit does not take the module.
    """
    method = str(handed.options.get("method", "auto"))
    if method not in _METHODS:
        raise UsageError(
            f"option method={method!r} is none of {', '.join(_METHODS)}",
            code="DK527",
            target=NAME,
            hint="--option method=auto",
        )
    source: HandedModule = handed.program
    if method == "auto":
        method = "script" if source.decisions or source.scripted else "trace"
    findings: list[Finding] = []
    if method == "trace":
        program, places, findings = _traced(source)
    else:
        program, places = _scripted(source), source.places
    stream = io.BytesIO()
    kept = tag(handed.inputs, handed.outputs, handed.precision, method=method, places=list(places))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(program, stream, _extra_files={ENTRY: kept})
    handed.output.write_bytes(settled(stream.getvalue()))
    return {
        "inputs": [spec.as_dict() for spec in handed.inputs],
        "outputs": [spec.as_dict() for spec in handed.outputs],
        "files": [handed.output.name],
        "versions": {},
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {"method": method},
    }


def _scripted(source: HandedModule) -> Any:
    if source.scripted:
        return source.module
    if source.module is None:
        raise VendorError(
            "a module whose inputs or outputs are nested cannot be scripted with the flat interface of an artifact",
            code="DK556",
            target=NAME,
            context=list(source.decisions),
            hint="give and return tensors, or a tuple of them",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch.jit is deprecated, for each module
            return torch.jit.script(source.module)
    except Exception as problem:  # the compiler raises many kinds for what it does not know
        lines = [line for line in str(problem).splitlines() if line.strip()]
        why = "values of its tensors decide what it does, so that a trace would keep one way of it: "
        raise VendorError(
            f"torch.jit.script does not take the module: {lines[0] if lines else type(problem).__name__}",
            code="DK556",
            target=NAME,
            context=[why + line for line in source.decisions] or lines[1:6],
            log=lines[-20:],
            hint="write it in what TorchScript knows, or --to pt2, whose torch.cond keeps both ways",
        ) from problem


def _traced(source: HandedModule) -> tuple[Any, tuple[int | str, ...], list[Finding]]:
    """The trace, which argument of it each input is, and a warning for each decision that it has frozen."""
    findings = [
        warning(
            "DK582",
            f"the trace has kept one way of what values of tensors decide: {line}",
            target=NAME,
            hint="--option method=script keeps both",
        )
        for line in source.decisions
    ]
    tensors = [value.clone() for value in source.example.values()]  # the module may write into its input
    module, places = source.module, source.places
    # A trace has no arguments by name only.
    if module is None or any(isinstance(place, str) for place in places):
        module, places = source.flat, tuple(range(len(tensors)))
    args = tuple(value for _, value in sorted(zip(places, tensors, strict=True), key=lambda pair: pair[0]))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # decisions were looked for in eager mode
            made = torch.jit.trace(module, args, check_trace=False)
    except Exception as problem:  # tracing runs the user's code
        lines = [line for line in str(problem).splitlines() if line.strip()]
        raise VendorError(
            f"torch.jit.trace does not take the module: {lines[0] if lines else type(problem).__name__}",
            code="DK556",
            target=NAME,
            log=lines[-20:],
            hint="--option method=script",
        ) from problem
    return made, places, findings
