"""ONNX as a source: checked, at the opset that was asked for, in one file, with names for every node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.equivalence import compare_models
from deploykit.errors import UsageError, VendorError
from deploykit.exporters.diagnosis import reason
from deploykit.exporters.symbols import describe_inputs, described
from deploykit.lazy import versions_of
from deploykit.progress import OnProgress, silent
from deploykit.reference import Reference
from deploykit.report import Finding, note

# Engines of today read it, and so do those of five years ago.
_OLDEST_IR = 8
_SHOWN = 5

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx
    import onnx_ir as ir


def export_job(
    model: str, output: str, opset: int | None, inputs: list[dict[str, Any]], dims: dict[str, list[int | None]]
) -> dict[str, Any]:
    """Writes the cleaned model at `output`; returns its facts as JSON.

    Raises UsageError (DK627) when `inputs` do not describe the model, VendorError (DK628) when the opset cannot be
    changed.
    """
    path = Path(model)
    loaded = graph.load(path)
    findings = _initializers_off_inputs(loaded)
    describe_inputs(loaded, described(graph.interface(loaded)[0], inputs, dims, path))
    was = graph.opset(loaded)
    if opset is not None and opset != was:
        loaded = to_opset(loaded, opset)
        findings.append(note("DK629", f"opset {was} became {opset}"))
    findings += _ir_version_raised(loaded)
    unnamed = sum(not node.name for node in graph.all_nodes(loaded))
    graph.name_nodes(loaded)
    if unnamed:
        told = "1 node had no name and has" if unnamed == 1 else f"{unnamed} nodes had no name and have"
        findings.append(note("DK629", f"{told} one now"))
    files = graph.save(loaded, Path(output))
    made_inputs, made_outputs = graph.interface(loaded)
    return {
        "inputs": [spec.as_dict() for spec in made_inputs],
        "outputs": [spec.as_dict() for spec in made_outputs],
        "files": list(files),
        "opset": graph.opset(loaded),
        "precision": graph.precision_of(loaded),
        "versions": versions_of("onnx", "onnx-ir"),
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {"source_files": {}},
    }


def prove_job(
    original: str,
    model: str,
    inputs: list[dict[str, Any]],
    dims: dict[str, list[int | None]],
    seed: int,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """The written file against the source with its dimensions described alike; JSON as `compare_models` gives it."""
    path = Path(original)
    loaded = graph.load(path)
    specs = described(graph.interface(loaded)[0], inputs, dims, path)
    seen: dict[str, set[int]] = {}
    with io.scratch_folder() as folder:
        if specs:
            describe_inputs(loaded, specs)
            path = Path(folder) / path.name
            graph.save(loaded, path)
        del loaded  # its weights would stay beside those of the sessions
        result = compare_models(
            path,
            Path(model),
            dims=dims,
            seed=seed,
            opener=lambda file: _Noting(file, seen),
            on_progress=on_progress,
        )
    return {**result, "proven": {name: sorted(sizes) for name, sizes in seen.items()}}


class _Noting(Reference):
    """A reference that notes the sizes of the symbolic dimensions it was run at."""

    def __init__(self, model: Path, seen: dict[str, set[int]]) -> None:
        super().__init__(model)
        self._seen = seen

    def predict(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        found = super().predict(feeds)
        for spec in self.inputs:
            for dim, size in zip(spec.shape or (), feeds[spec.name].shape, strict=False):
                if isinstance(dim, str):
                    self._seen.setdefault(dim, set()).add(int(size))
        return found


def _initializers_off_inputs(model: ir.Model) -> list[Finding]:
    """Initializers that are inputs too (IR version 3 asked for that) become constants: engines fold only those."""
    doubles = [value for value in model.graph.inputs if value.name in model.graph.initializers]
    for value in doubles:
        model.graph.inputs.remove(value)
    if not doubles:
        return []
    # From IR version 4 on an initializer need not be an input.
    model.ir_version = max(model.ir_version, 4)
    return [note("DK629", f"{len(doubles)} weights were inputs too and are constants now")]


def _ir_version_raised(model: ir.Model) -> list[Finding]:
    """The file format that the opset asks for, and none from before functions and typed attributes."""
    import onnx

    entries = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    needed = onnx.helper.find_min_ir_version_for(entries, ignore_unknown=True)
    was = model.ir_version
    model.ir_version = max(was, needed, _OLDEST_IR)
    return [note("DK629", f"IR version {was} became {model.ir_version}")] if model.ir_version != was else []


def check_opset(opset: int) -> None:
    """Raises UsageError (DK628) for an opset that the onnx package does not know."""
    import onnx

    latest = onnx.defs.onnx_opset_version()
    if opset > latest:
        text = f"there is no opset {opset}: onnx {onnx.__version__} knows opsets up to {latest}"
        raise UsageError(text, code="DK628", hint=f"--opset {latest}, or leave --opset away")


def to_opset(model: ir.Model, opset: int) -> ir.Model:
    """The model at another opset of the standard domain, by the converter of the onnx package.

    Where that has no way down, the graph as it is, if every node is valid at the lower opset: many revisions of an
    operator only add types. The caller compares the outputs, so a changed meaning does not pass.
    Raises VendorError (DK628) when neither works, naming the operator; UsageError (DK628) for an opset not yet known.
    """
    import onnx
    import onnx.version_converter
    import onnx_ir

    check_opset(opset)
    proto = onnx_ir.to_proto(model)
    try:
        converted = onnx.version_converter.convert_version(proto, opset)
    except Exception as problem:  # the converter raises RuntimeError, ConvertError and others, by operator
        converted = _relabelled(proto, opset) if opset < graph.opset(model) else None
        if converted is None:
            newer = _not_at(model, opset)
            node, why = next(iter(newer.items()), (None, reason(problem)))
            raise VendorError(
                f"the model cannot be brought to opset {opset}: {why}",
                code="DK628",
                node=node,
                context=list(newer.values())[1:_SHOWN],
                hint="leave --opset away, or export the model again at that opset from its source",
            ) from problem
    found: ir.Model = onnx_ir.from_proto(converted)
    if graph.opset(found) != opset:
        raise VendorError(f"the converter left the model at opset {graph.opset(found)}, not {opset}", code="DK628")
    return found


def _not_at(model: ir.Model, opset: int) -> dict[str, str]:
    """Why nodes are not valid at the opset, by node: their operator came later."""
    import onnx

    found = {}
    for node in graph.all_nodes(model):
        if node.domain not in ("", "ai.onnx"):
            continue
        try:
            onnx.defs.get_schema(node.op_type, opset, "")
        except onnx.defs.SchemaError:
            first = min(s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == node.op_type)
            found[str(node.name)] = f"node {node.name!r} is {node.op_type}, which came with opset {first}"
    return found


def _relabelled(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto | None:
    """The same graph at a lower opset; None when a node is not valid there."""
    import onnx

    for entry in proto.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = opset
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return proto
