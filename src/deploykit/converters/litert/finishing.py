"""What every way to a LiteRT file ends in: names and doors in the file, the precision, and what is said of it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.converters.litert.flatbuffer import NAME, interpreter, parse, serialize, text, versioned
from deploykit.converters.litert.halving import halve_weights, widen_weights
from deploykit.converters.litert.interface import AXES, Door, Interface, interface_of, remember
from deploykit.converters.litert.micro import write_beside
from deploykit.converters.litert.quantizing import computing, quantize
from deploykit.errors import VendorError
from deploykit.lazy import versions_of
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.converters.litert.interface import Port
    from deploykit.converters.litert.options import Settings

SIGNATURE = "serving_default"


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """What a vendor's converter made, before it is finished.

    content: a float model. inputs, outputs: the model's own specs in its order. tensors: index of the main graph's
    tensor for each of them; None: by the names of the file's signature. permutations: from the model's axes to the
    file's, by name, where they differ. versions: of what made it. names: finds the file's tensor by the model's name of
    it, given the file's content with names and doors.
    """

    content: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    tensors: tuple[Sequence[int], Sequence[int]] | None = None
    permutations: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    names: Callable[[bytes], Mapping[str, str]] | None = None


def finish(
    made: Made, final: Path, settings: Settings, precision: str, calib: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Writes the file at `final` and returns the facts of a product as JSON.

    precision: the model's own. calib: a `DataRequest`.
    Raises VendorError where the file's interface is not the model's, and what `quantize` raises.
    """
    model = _named(made, final.name)
    # On a microcontroller every byte of the file takes memory.
    names = made.names(serialize(model)) if made.names is not None and not settings.micro else {}
    _open_doors(model, made, names)
    findings: list[Finding] = []
    metrics: dict[str, Any] = {}
    if settings.precision == "fp16":
        saved = halve_weights(model)
        metrics["halved_bytes"] = saved
        if not saved:
            findings.append(
                failure(
                    "DK565",
                    "no weight became float16: the model has none in float32 that float16 can hold",
                    target=NAME,
                    hint="leave the precision away: the artifact would be the float32 one",
                )
            )
    if settings.integers:
        widen_weights(model)  # the quantizer takes float32 constants only
    content = serialize(model)
    if settings.integers:
        content, said, count = quantize(content, final.name, settings, calib)
        findings += said
        symbols = _varying(model)
        model = parse(content, final.name)
        _keep_varying(model, symbols)
        _open_doors(model, made, names)
        content = serialize(model)
        if count:
            metrics["calibration_samples"] = count
    found = interface_of(model)
    interpreter(content, final.name, delegates=False)  # what is written has to pass its verifier
    with io.no_space_named(type(final)(final.name)):
        final.write_bytes(content)
    findings += changes(found)
    left, taken = computing(model)
    companions: list[str] = []
    if settings.micro:
        companions, said, metrics["micro"] = write_beside(final, content, model)
        findings += said
    quantizer = versions_of("ai-edge-quantizer") if settings.integers else {}
    return {
        "inputs": [spec.as_dict() for spec in made.inputs],
        "outputs": [spec.as_dict() for spec in found.specs(found.outputs)],
        "files": [final.name],
        "companions": companions,
        "versions": {**made.versions, "ai-edge-litert": versioned(), **quantizer},
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {
            "operators": sum(len(graph.operators or []) for graph in model.subgraphs),
            "float_operators": sum(left.values()),
            "integer_operators": sum(taken.values()),
            **metrics,
        },
        "precision": settings.named(precision),
        "interface": {name: door.as_dict() for name, door in found.doors.items()},
    }


def _named(made: Made, name: str) -> Any:
    """The model with one signature of the public names, and everything else remembered.

    Raises VendorError where inputs or outputs are not those of the model.
    """
    interpreter(made.content, name, delegates=False)
    model = parse(made.content, name)
    for (
        code
    ) in model.operatorCodes:  # files of before 2020 have the old field only, and the quantizer reads the new one
        code.builtinCode = max(code.builtinCode, code.deprecatedBuiltinCode)
    tensors = made.tensors or _by_signature(model, made)
    graph = model.subgraphs[0]
    sides = ((made.inputs, tensors[0], graph.inputs), (made.outputs, tensors[1], graph.outputs))
    if any(len(specs) != len(indices) or not set(indices) <= set(there) for specs, indices, there in sides):
        raise VendorError(
            f"the converter changed the interface: {_told(made.inputs)} -> {_told(made.outputs)} became "
            f"{len(graph.inputs)} inputs and {len(graph.outputs)} outputs",
            target=NAME,
        )
    # The main graph lists each once, in the model's order: engines without signatures go by place.
    graph.inputs, graph.outputs = list(tensors[0]), list(tensors[1])
    for specs, indices in ((made.inputs, tensors[0]), (made.outputs, tensors[1])):
        for spec, index in zip(specs, indices, strict=True):
            _mark_varying(graph.tensors[index], spec, made.permutations.get(spec.name, ()))
    _sign(model, made, tensors)
    _open_doors(model, made)
    return model


def _open_doors(model: Any, made: Made, names: Mapping[str, str] | None = None) -> None:
    """Remembers the model's specs, and a door for each of them that has another form in the file."""
    remember(model, made.inputs, made.outputs)
    found = interface_of(model)
    ports = {port.name: port for port in (*found.inputs, *found.outputs)}
    doors = {}
    for spec in (*made.inputs, *made.outputs):
        order = made.permutations.get(spec.name, ())
        if order or (spec.name in ports and ports[spec.name].dtype != spec.dtype):
            doors[spec.name] = Door(spec, order)
    places = {text(tensor.name): place for place, tensor in enumerate(model.subgraphs[0].tensors)}
    found_at = {}
    for name, own in (names or {}).items():
        tensor = own.partition(AXES)[0]
        if tensor in places:
            found_at[name] = f"{places[tensor]}{own.removeprefix(tensor)}"
    remember(model, made.inputs, made.outputs, doors, found_at)


def _mark_varying(tensor: Any, spec: TensorSpec, order: Sequence[int]) -> None:
    """Writes -1 where the model's size varies; some converters leave the example's size."""
    sizes = spec.shape or ()
    if len(sizes) != len(tensor.shape if tensor.shape is not None else []):
        return
    moved = [sizes[axis] for axis in order] if order else list(sizes)
    if any(isinstance(size, str) for size in moved):
        before = tensor.shapeSignature if tensor.shapeSignature is not None else tensor.shape
        tensor.shapeSignature = [
            -1 if isinstance(size, str) else int(was) for size, was in zip(moved, before, strict=True)
        ]


def _varying(model: Any) -> list[Any]:
    """The shapes with -1 of the main graph's inputs and outputs, in order."""
    graph = model.subgraphs[0]
    return [graph.tensors[index].shapeSignature for index in (*graph.inputs, *graph.outputs)]


def _keep_varying(model: Any, shapes: Sequence[Any]) -> None:
    """Gives them back where the quantizer put a tensor of its own in the place of an input or output."""
    graph = model.subgraphs[0]
    for index, shape in zip((*graph.inputs, *graph.outputs), shapes, strict=True):
        tensor = graph.tensors[index]
        if tensor.shapeSignature is None and shape is not None and len(shape) == len(tensor.shape):
            tensor.shapeSignature = shape


def _by_signature(model: Any, made: Made) -> tuple[list[int], list[int]]:
    """The tensors of the model's inputs and outputs by the names of the file."""
    found = interface_of(model)
    sides = []
    for specs, ports in ((made.inputs, found.inputs), (made.outputs, found.outputs)):
        tensors = {port.name: port.tensor for port in ports}
        lacking = [spec.name for spec in specs if spec.name not in tensors]
        if lacking or len(specs) != len(ports):
            told = ", ".join(port.name for port in ports)
            raise VendorError(f"the converter changed the interface: {_told(specs)} became {told}", target=NAME)
        sides.append([tensors[spec.name] for spec in specs])
    return sides[0], sides[1]


def _sign(model: Any, made: Made, tensors: tuple[Sequence[int], Sequence[int]]) -> None:
    from ai_edge_litert.schema_py_generated import SignatureDefT, TensorMapT

    def pairs(specs: Sequence[TensorSpec], indices: Sequence[int]) -> list[Any]:
        found = []
        for spec, index in zip(specs, indices, strict=True):
            pair = TensorMapT()
            pair.name, pair.tensorIndex = spec.name, int(index)
            found.append(pair)
        return found

    signature = SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = SIGNATURE, 0
    signature.inputs, signature.outputs = pairs(made.inputs, tensors[0]), pairs(made.outputs, tensors[1])
    model.signatureDefs = [signature]
    graph = model.subgraphs[0]
    graph.name = text(graph.name) or "main"


def changes(found: Interface) -> list[Finding]:
    """A note (DK529) for each input and output that the file has in another form than the model."""
    findings = []
    for kind, ports in (("input", found.inputs), ("output", found.outputs)):
        for port in ports:
            door = found.doors.get(port.name)
            if door is not None:
                findings.append(note("DK529", _changed(kind, port, door), target=NAME, tensor=port.name))
    return findings


def _changed(kind: str, port: Port, door: Door) -> str:
    told = f"{kind} {port.name!r} is {port.spec.describe()} in the file and {door.spec.describe()} in the model"
    if port.scale:
        told += f": real = {port.scale:.9g} * (integer - {port.zero_point})"
    if door.permutation:
        told += f": the model's axes in the order {', '.join(map(str, door.permutation))}"
    return f"{told}; deploykit's commands take and give the model's"


def _told(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name}: {spec.dtype}" for spec in specs)
