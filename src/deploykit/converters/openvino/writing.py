"""An OpenVINO model on disk as an IR, in the form that the options ask for, with the interface of its source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.converters.openvino.compression import compress, expect_compiled, quantize, said, samples_for, stored
from deploykit.converters.openvino.doors import contract_of, remember_doors
from deploykit.converters.openvino.interface import interface, remember, versioned
from deploykit.converters.openvino.masks import keep_masks
from deploykit.converters.openvino.preprocessing import changes, embed, prove
from deploykit.converters.openvino.reproducible import normalise
from deploykit.errors import VendorError
from deploykit.lazy import versions_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import openvino as ov

    from deploykit.artifact import TensorSpec
    from deploykit.converters.openvino.doors import Door
    from deploykit.converters.openvino.options import Settings
    from deploykit.report import Finding


def write_ir(
    model: ov.Model,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    final: Path,
    settings: Settings,
    doors: Mapping[str, Door],
    calib: Mapping[str, Any] | None,
    known: AbstractSet[str],
    core: ov.Core,
) -> dict[str, Any]:
    """Writes `final` (.xml) and its .bin, and compares what is there with the interface; a `Product` as JSON.

    known: names from the source, which stay. Raises VendorError where the IR has another interface, and what NNCF
    raises in `compression`.
    """
    prove(doors)
    findings: list[Finding] = []
    uses_nncf = settings.mode is not None or settings.quantizer
    if uses_nncf:
        model, findings = _by_nncf(model, settings, inputs, calib)
    model = embed(model, inputs, outputs, doors)
    remember(model, inputs, outputs)
    remember_doors(model, doors)
    keep_masks(model)
    # The folder is a staging one: the user knows the file by its name.
    with io.no_space_named(Path(final.name)):
        _save(model, final, halved=settings.weights == "fp16")
        normalise(final, known)
    written = core.read_model(final)
    written_inputs, written_outputs = interface(written)
    _expect(inputs, written_inputs)
    _expect(outputs, written_outputs)
    findings += changes(doors, inputs)
    contract = contract_of(doors)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in written_outputs],
        "files": [final.name, final.with_suffix(".bin").name],
        "versions": {"openvino": versioned(), **(versions_of("nncf") if uses_nncf else {})},
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {"layers": len(model.get_ops()), "weights": stored(written)},
        "interface": {name: door.as_dict() for name, door in doors.items()},
        **({"contract": contract} if contract else {}),
    }


def _by_nncf(
    model: ov.Model,
    settings: Settings,
    inputs: Sequence[TensorSpec],
    calib: Mapping[str, Any] | None,
) -> tuple[ov.Model, list[Finding]]:
    """The model with what NNCF makes of it, and what is to be said of it."""
    before = stored(model)
    feeds, count = None, 0
    findings: list[Finding] = []
    if calib is not None:
        feeds, count, findings = samples_for(model, inputs, calib)
    if settings.quantizer:
        assert feeds is not None
        made = quantize(model, settings, feeds, count)
    else:
        made = compress(model, settings, feeds, count)
    expect_compiled(made)
    kernels = sum(node.get_type_name() == "FakeQuantize" for node in made.get_ops())
    return made, [*findings, *said(settings, before, stored(made), kernels)]


def _save(model: ov.Model, final: Path, *, halved: bool) -> None:
    import openvino as ov

    try:
        # compress_to_fp16 is on by default and would halve the weights of a float32 model without being asked.
        ov.save_model(model, final, compress_to_fp16=halved)
    except RuntimeError:
        # OpenVINO says "iostream error" and no more: writing on where it stopped tells whether the disk is full.
        for member in (final.with_suffix(".bin"), final):
            with member.open("ab") as stream:
                stream.write(bytes(1 << 20))
                stream.flush()
                os.fsync(stream.fileno())
        raise


def _expect(wanted: Sequence[TensorSpec], found: Sequence[TensorSpec]) -> None:
    """The IR must have the ONNX model's names, order and dtypes."""
    if [(spec.name, spec.dtype) for spec in wanted] != [(spec.name, spec.dtype) for spec in found]:
        raise VendorError(
            f"OpenVINO {versioned()} changed the interface: {told(wanted)} became {told(found)}", target="openvino"
        )


def told(specs: Sequence[TensorSpec]) -> str:
    """Names and types, for messages."""
    return ", ".join(f"{spec.name}: {spec.dtype}" for spec in specs)
