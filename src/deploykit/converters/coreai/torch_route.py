"""Core AI from PyTorch by Apple's coreai-torch, of an exported program (in a worker)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.converters.bounds import bounds_of_input
from deploykit.converters.coreai.asset import save
from deploykit.converters.coreai.convert import narrowed, runtime_bounds
from deploykit.converters.coreai.inspect import expect_interface
from deploykit.converters.coreai.vendor import quiet
from deploykit.errors import VendorError
from deploykit.lazy import versions_of

if TYPE_CHECKING:
    from deploykit.route import Handed


def write(handed: Handed) -> dict[str, Any]:
    """A `route.Writer`: the asset of an ExportedProgram. Raises VendorError (DK556) with coreai-torch's reason."""
    import coreai_torch

    inputs, outputs = handed.inputs, handed.outputs
    try:
        with quiet():
            program = handed.program.run_decompositions(coreai_torch.get_decomp_table())
            converter = coreai_torch.TorchConverter(mode=coreai_torch.TorchConverter.Mode.RELEASE)
            converter.add_exported_program(
                program, input_names=[s.name for s in inputs], output_names=[s.name for s in outputs]
            )
            made = converter.to_coreai()
    except Exception as problem:  # lowerings raise anything
        why = f"{type(problem).__name__}: {' '.join(str(problem).split())[:400]}"
        raise VendorError(
            f"coreai-torch does not take it: {why}", code="DK556", target="coreai", log=[why]
        ) from problem
    limits = {spec.name: bounds_of_input(spec, handed.dims, handed.profiles.get(spec.name)) for spec in inputs}
    save(made, handed.output, inputs, outputs, runtime_bounds(inputs, limits))
    expect_interface(handed.output, inputs, outputs)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": [handed.output.name],
        "versions": versions_of("coreai-core", "coreai-torch"),
        "findings": [finding.as_dict() for finding in narrowed(inputs, outputs)],
        "metrics": {},
    }
