"""The direct route from PyTorch: torch.export's program, or a TorchScript module, handed to a target's writer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deploykit.data import Sample
from deploykit.exporters import torch_call, torch_source
from deploykit.exporters.direct import add_beside, frameworks_turn, output_specs, prove, route_of, writer_of
from deploykit.exporters.torch_checks import refuse_unstable
from deploykit.exporters.torch_dynamo import dynamic_shapes
from deploykit.exporters.torch_export import precision_of
from deploykit.exporters.torch_program import in_order, index_bounds
from deploykit.exporters.torch_tracing import data_dependent_lines
from deploykit.io import file_sha256
from deploykit.lazy import versions_of
from deploykit.parity import row_for
from deploykit.progress import OnProgress, silent
from deploykit.route import Handed, HandedModule
from deploykit.target import get_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from deploykit.data import DataRequest
    from deploykit.exporters.direct import Run
    from deploykit.exporters.request import TorchRequest
    from deploykit.exporters.torch_call import Call
    from deploykit.exporters.torch_source import Loaded

_SPAN = 32  # sizes of an open dimension that are looked at


def convert_job(
    request: TorchRequest,
    output: str,
    target: str,
    options: Mapping[str, Any],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    data: DataRequest,
    calib: DataRequest | None = None,
) -> dict[str, Any]:
    """Writes a target's artifact of a PyTorch source at `output`; the facts of a `Product` as JSON.

    calib: what the writer measures on, for routes that do.
    Raises what loading the source raises, GateError (DK685, DK686) for a module that is random or mixes its batch, and
    VendorError (DK556) where torch.export or the target's vendor does not take the module.
    """
    loaded = torch_source.load(request)
    call = torch_call.prepare(loaded, request)
    refuse_unstable(call)
    route = route_of(target, "torch")
    writer = writer_of(route)
    wants_module = "module" in route.takes
    with frameworks_turn("PyTorch" if wants_module else "torch.export"):
        program = _module(loaded, call) if wants_module else _program(loaded, call)
    bounds = {name: [r.minimum, r.maximum, *r.sizes] for name, r in call.symbols.items()}
    handed = Handed(
        program,
        call.specs if wants_module else in_order(program, call),
        output_specs(_runs(call)),
        Path(output),
        options,
        get_target(target).bounded(bounds),
        profiles,
        calib,
        precision_of(loaded.module),
    )
    made = writer(handed)
    made["findings"] = [finding.as_dict() for finding in (*loaded.findings, *call.findings)] + made["findings"]
    made["versions"] |= versions_of("torch")
    made["precision"] = made.get("precision") or precision_of(loaded.module)
    made["metrics"]["integers"] = {} if wants_module else index_bounds(program, call)
    made["metrics"]["source_files"] = {str(file): file_sha256(file) for file in loaded.files}
    row = row_for(precision_of(loaded.module), made["precision"])
    place, seed = Path(output), request["seed"]
    add_beside(made, route, place, call.run, call.specs, call.symbols, row, data, seed, options)
    return made


def prove_job(
    request: TorchRequest,
    artifact: str,
    precision: str,
    data: DataRequest,
    integers: Mapping[str, int],
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Compares the artifact with the module of the request; JSON as `direct.prove`.

    precision: of the artifact. data: what the user gave to compare on, or random inputs. integers: of `convert_job`.
    """
    loaded = torch_source.load(request)
    call = torch_call.prepare(loaded, request)
    example = {name: torch_call.as_array(tensor) for name, tensor in call.example.items()}
    row = row_for(precision_of(loaded.module), precision)
    given = [Sample(example, None, "the example")]
    found = prove(
        artifact,
        call.run,
        "the module",
        call.specs,
        call.symbols,
        row,
        data,
        request["seed"],
        given,
        integers,
        on_progress,
    )
    found["engines"]["reference"] = "PyTorch, eager"
    return found


def _program(loaded: Loaded, call: Call) -> Any:
    """What the writer gets: TorchScript as it is; everything else exported, in the core operators only."""
    if loaded.scripted and call.plain:
        return loaded.module
    target, args, kwargs = call.for_export(loaded)
    program = loaded.program
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside torch itself
        if program is None or not call.plain:
            program = torch.export.export(target, args, kwargs or None, dynamic_shapes=dynamic_shapes(call))
        return program.run_decompositions({})


def _module(loaded: Loaded, call: Call) -> HandedModule:
    """What a writer gets that takes the module itself; TorchScript's own decisions are part of it."""
    decisions = () if loaded.scripted else tuple(line.describe() for line in data_dependent_lines(call))
    places: tuple[int | str, ...] = ()
    if call.plain:
        args, kwargs = call.arguments(call.example)
        found: dict[int, int | str] = {id(value): place for place, value in enumerate(args)}
        found |= {id(value): name for name, value in kwargs.items()}
        places = tuple(found[id(call.example[spec.name])] for spec in call.specs)
    example = {spec.name: call.example[spec.name] for spec in call.specs}
    module = loaded.module if call.plain else None
    return HandedModule(module, places, call.flat, example, loaded.scripted, decisions)


def _runs(call: Call) -> list[Run]:
    """The module at the example's sizes, and at others where it takes some."""
    first = _sizes(call, call.example)
    runs: list[Run] = [(first, _outputs(call, call.example))]
    second = _others(call, first)
    if call.symbols and second != first:
        tensors = torch_call.resized(call, second)
        try:
            runs.append((second, _outputs(call, tensors)))
        except Exception:  # a size that the module does not take: the proof says so
            return runs
    return runs


def _others(call: Call, first: Mapping[str, int]) -> dict[str, int]:
    """Another size for each symbol that has one, above 1 and different from all others where there are such."""
    sizes: dict[str, int] = {}
    for name, bounds in call.symbols.items():
        span = range(bounds.minimum, (first[name] + _SPAN if bounds.maximum is None else bounds.maximum) + 1)
        found = [size for size in (bounds.sizes or span[:_SPAN]) if size != first[name]]
        taken = {*first.values(), *sizes.values()}
        best = sorted(found, key=lambda size: (size in taken, size < 2))
        sizes[name] = best[0] if best else first[name]
    return sizes


def _outputs(call: Call, tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    return call.run({name: torch_call.as_array(tensor) for name, tensor in tensors.items()})


def _sizes(call: Call, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    return {
        dim: int(size)
        for spec in call.specs
        for dim, size in zip(spec.shape or (), tensors[spec.name].shape, strict=True)
        if isinstance(dim, str)
    }
