"""ONNX to TensorFlow's formats through onnx2tf: the graph prepared here, converted in the managed environment."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from deploykit import graph, io
from deploykit.converters.bounds import bounds_of_input, fixed_by, unused_bounds
from deploykit.converters.litert.finishing import Made
from deploykit.converters.litert.flatbuffer import parse
from deploykit.converters.litert.interface import interface_of
from deploykit.data.request import data_request, open_request
from deploykit.environments import interpreter_of
from deploykit.errors import GateError, VendorError
from deploykit.isolation import run_alone
from deploykit.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.report import Finding

ENVIRONMENT = "onnx2tf"
# Of processor time, for open sizes: a model of 258 nodes in 59 pieces takes 30 s.
_LIMIT_S = 150
_HALF, _FULL = ir.DataType.FLOAT16, ir.DataType.FLOAT
# Sizes of open dimensions to try, of the first and the second feed: of a first axis, of pictures' sides, of others.
# The least that differ and that no pooling uses up; then what some detectors and recognisers want.
_SIZES = (
    ((1, 3), (64, 96), (7, 10)),
    ((1, 2), (160, 320), (32, 64)),
    ((1, 2), (48, 96), (160, 320)),
    ((1, 8), (1, 8), (1, 8)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Converted:
    """What came of it: the model's specs with fixed sizes in place, the signature's names, and the job's facts."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    called: Mapping[str, str]
    versions: dict[str, str]
    pieces: list[int]
    findings: list[Finding]


def float_model(
    model: Path,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
) -> tuple[Made, list[Finding]]:
    """The LiteRT file of an ONNX model, in float32, and what is to be said; layouts stay those of the ONNX.

    Raises UnavailableError (DK561) without the managed environment, GateError (DK526) with every node that onnx2tf or
    LiteRT refuses, VendorError for anything else.
    """
    with io.scratch_folder() as folder:
        file = Path(folder) / "model.tflite"
        found = convert(model, file, "litert", dims, profiles, target="litert")
        content = file.read_bytes()
    ports = interface_of(parse(content, file.name))
    tensors = {port.name: port.tensor for port in (*ports.inputs, *ports.outputs)}
    sides = [[tensors.get(found.called[spec.name]) for spec in specs] for specs in (found.inputs, found.outputs)]
    if any(tensor is None for side in sides for tensor in side):
        raise VendorError(
            f"TensorFlow's converter changed the interface: {', '.join(found.called.values())} became "
            f"{', '.join(tensors)}",
            target="litert",
        )
    inputs, outputs = ([tensor for tensor in side if tensor is not None] for side in sides)
    return Made(content, found.inputs, found.outputs, (inputs, outputs), versions=found.versions), found.findings


def convert(
    model: Path,
    output: Path,
    kind: str,
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    *,
    target: str,
) -> Converted:
    """Writes `output` in the managed environment. kind: "litert" or "savedmodel".

    Its inputs and outputs are the model's in order, dtype (float32 for float16) and layout, under `called` names.
    Raises what `float_model` does.
    """
    interpreter = interpreter_of(ENVIRONMENT, "converting ONNX to TensorFlow's formats")
    loaded = graph.load(model)
    inputs, outputs = graph.interface(loaded)
    limits = [bounds_of_input(spec, dims, profiles.get(spec.name)) for spec in inputs]
    findings = unused_bounds(inputs, dims, profiles, target=target)
    inputs = tuple(
        dataclasses.replace(spec, shape=fixed_by(spec, shape)) for spec, shape in zip(inputs, limits, strict=True)
    )
    called = _called(inputs, outputs, plain=kind == "litert")
    with io.scratch_folder() as folder:
        prepared = Path(folder) / "model.onnx"
        _prepare(loaded, inputs)
        graph.save(loaded, prepared)
        del loaded
        feeds = _feeds(prepared, inputs, dims, Path(folder))
        facts = run_alone(
            ENVIRONMENT,
            "deploykit.converters.litert.onnx2tf_job:convert_job",
            {
                "model": str(prepared),
                "output": str(output),
                "kind": kind,
                "feeds": [str(file) for file in feeds],
                "inputs": [_port(spec, called) for spec in inputs],
                "outputs": [_port(spec, called) for spec in outputs],
                "limit_s": _LIMIT_S if _fixing(inputs) else None,
            },
            interpreter=interpreter,
        )
    if facts.get("late"):
        raise GateError(
            f"onnx2tf makes nothing of {model.name} with open sizes in {_LIMIT_S} s of processor time",
            code="DK564",
            file=model,
            target=target,
            hint=f"with fixed sizes it needs less: {_fixing(inputs)}",
        )
    if facts["refused"]:
        raise _refusal(model, facts["refused"], facts["versions"], target, _fixing(inputs))
    return Converted(inputs, outputs, called, facts["versions"], facts["pieces"], findings)


def _called(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, plain: bool) -> dict[str, str]:
    """Names in the signature, where TensorFlow takes Python's only.

    plain: numbers will do, since a LiteRT file gets the model's own names afterwards.
    """
    found: dict[str, str] = {}
    for kind, specs in (("input", inputs), ("output", outputs)):
        for place, spec in enumerate(specs):
            numbered = f"deploykit_{kind}_{place}"
            name = numbered if plain else re.sub(r"\W", "_", spec.name, flags=re.ASCII)
            name = f"_{name}" if name[:1].isdigit() else name
            found[spec.name] = name if name and name not in found.values() else numbered
    return found


def _port(spec: TensorSpec, called: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": spec.name,
        "called": called[spec.name],
        "dtype": "float32" if spec.dtype == "float16" else spec.dtype,
        "shape": None if spec.shape is None else [size if isinstance(size, int) else None for size in spec.shape],
    }


def _prepare(model: ir.Model, inputs: Sequence[TensorSpec]) -> None:
    """Changes the graph in place: fixed sizes, no functions, constants as initializers, names, float32, shapes."""
    shapes = {spec.name: spec.shape for spec in inputs}
    for value in model.graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(list(shape))
    graph.name_nodes(model)
    if model.functions:
        passes.InlinePass()(model)
        graph.name_nodes(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _widen(model)
    graph.infer_shapes(model)


def _widen(model: ir.Model) -> None:
    """float16 becomes float32: LiteRT's CPU kernels compute so, and its float16 files only store weights in it.

    Every value of a float16 weight is one of float32; what is stored in float16 afterwards is the same again.
    """
    for part in model.graphs():
        for value in part.initializers.values():
            if value.dtype == _HALF and value.const_value is not None:
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
                value.dtype = _FULL
        for value in (*part.inputs, *(output for node in part for output in node.outputs)):
            if value.dtype == _HALF:
                value.dtype = _FULL
        for node in part:
            for name in ("to", "dtype"):
                attribute = node.attributes.get(name)
                if attribute is not None and attribute.type == ir.AttributeType.INT and attribute.value == _HALF:
                    node.attributes[name] = ir.AttrInt64(name, _FULL.value)
            value_of = node.attributes.get("value")
            if value_of is not None and value_of.type == ir.AttributeType.TENSOR and value_of.value.dtype == _HALF:
                wide = ir.tensor(value_of.value.numpy().astype(np.float32))
                node.attributes["value"] = ir.AttrTensor("value", wide)


def _feeds(
    prepared: Path, inputs: Sequence[TensorSpec], dims: Mapping[str, Sequence[int | None]], folder: Path
) -> list[Path]:
    """Two sets of inputs that ONNX Runtime takes, every size that varies different in each."""
    wide = [dataclasses.replace(spec, dtype="float32") if spec.dtype == "float16" else spec for spec in inputs]
    reference = Reference(prepared)
    problem: Exception | None = None
    for sizes in _SIZES:
        try:
            found = list(_sampled(wide, dims, prepared, sizes))
            for feeds in found:
                reference.predict(feeds)
        except (GateError, VendorError, ValueError) as refused:
            problem = problem or refused
            continue
        files = []
        for place, feeds in enumerate(found):
            files.append(folder / f"feeds{place}.npz")
            np.savez(files[-1], **feeds)
        return files
    raise problem or AssertionError("no sizes were tried")


def _sampled(
    inputs: Sequence[TensorSpec],
    dims: Mapping[str, Sequence[int | None]],
    prepared: Path,
    sizes: tuple[tuple[int, int], ...],
) -> Iterator[dict[str, Any]]:
    bounds: dict[str, list[int | None]] = {}
    for spec in inputs:
        for axis, size in enumerate(spec.shape or ()):
            if isinstance(size, str):
                kind = 0 if axis == 0 else 1 if len(spec.shape or ()) > 3 else 2
                bounds.setdefault(size, _within(sizes[kind], dims.get(size)))
    request = data_request("random:0", "parity", samples=2, dims=bounds)
    for sample in open_request(request, tuple(inputs), prepared):  # type: ignore[arg-type]
        yield sample.feeds


def _within(wanted: tuple[int, int], given: Sequence[int | None] | None) -> list[int | None]:
    """The two sizes, moved into the bounds; their ends where the bounds are narrower."""
    if given is None:
        return list(wanted)
    low, high = given[0] or 1, given[1]
    least = max(low, wanted[0]) if high is None else min(max(low, wanted[0]), high)
    most = max(wanted[1], least + 1)
    return [low, high] if high is not None and most > high else [least, most]


def _refusal(
    model: Path, refused: Sequence[Mapping[str, str]], versions: Mapping[str, str], target: str, fixing: str
) -> GateError:
    first, *others = refused
    operator = f"{first['domain']}.{first['op']}" if first["domain"] else first["op"]
    return GateError(
        f"onnx2tf {versions['onnx2tf']} refuses node {first['node']!r} ({operator}) of {model.name}: {first['reason']}",
        code="DK526",
        file=model,
        node=first["node"],
        op=first["op"],
        target=target,
        context=[f"and {row['op']} {row['node']!r}: {row['reason']}" for row in others[:10]],
        hint=(f"fixed sizes are easier for onnx2tf: {fixing}; " if fixing else "")
        + f"deploykit check {model.name} --target litert --fix rewrites what it can",
    )


def _fixing(inputs: Sequence[TensorSpec]) -> str:
    """The options that fix every open size; "" where none is open. A `?` may be any, so its input's shape is told."""
    found: list[str] = []
    for spec in inputs:
        symbols = [size for size in spec.shape or () if isinstance(size, str)]
        if "?" in symbols:
            shape = "x".join("SIZE" if isinstance(size, str) else str(size) for size in spec.shape or ())
            found.append("--profile " + shlex.quote(f"{spec.name}={shape}:{shape}:{shape}"))
        else:
            found += ["--dim " + shlex.quote(f"{symbol}=SIZE") for symbol in symbols]
    return " ".join(dict.fromkeys(found))
