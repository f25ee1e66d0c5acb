"""Whether a rewritten ONNX model still is the same one: interface, outputs over every dynamic dimension, random nodes.

Compares in this process, with the reference: call it in a worker.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph, io
from deploykit.comparison import compare
from deploykit.data import dim_ranges, open_data
from deploykit.errors import VendorError
from deploykit.graph.stochastic import stochastic_in
from deploykit.parity import TOLERANCES, row_for
from deploykit.progress import OnProgress, Progress, silent
from deploykit.reference import Reference, StandardReference, free_memory
from deploykit.report import Finding, failure, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.data import DimRange, Sample

# Random data takes the minimum of every dimension first, then the maximum, then values between.
POINTS = 5
# Fewer sizes than this prove too little about a dynamic dimension.
_ENOUGH = 3
# Lengths and image sizes that models are made for; 576 is a speech window with its context.
_LARGEST_ALIKE = 128
_COMMON_SIZES = (16, 32, 64, 128, 224, 256, 512, 576, 640, 1024, 4096, 16000)
_QUANTIZED = {"QuantizeLinear", "DequantizeLinear"}


def compare_models(
    original: Path,
    candidate: Path,
    *,
    dims: Mapping[str, Sequence[int | None]] | None = None,
    seed: int = 0,
    samples: int = POINTS,
    bound: str = "fp32",
    requantized: Collection[str] = (),
    opener: Callable[[Path], Reference] = Reference,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Proves a candidate against its original; returns JSON: outputs, samples, compared, findings.

    The tolerance is that of the original's float type, or of `bound` (a row of `parity.TOLERANCES`) where that is
    looser. requantized: names of quantization nodes that were replaced on purpose. opener: opens both models.
    Random nodes get the same seeds on both sides. Operators that the reference does not have are replaced on both sides
    by one that passes its first input on, and a warning names them. compared: False when not even that runs. Error
    findings are differences.
    """
    first, second = graph.load(original), graph.load(candidate)
    findings = interface_differences(first, second)
    findings += kept_differences(first, second, requantized)
    findings += [
        warning("DK630", f"the model is random in {name}: compared with fixed seeds") for name in stochastic_in(first)
    ]
    if any(finding.severity == "error" for finding in findings):
        return _result(findings)
    unknown = stand_in(first), stand_in(second)
    if unknown[0]:
        named = ", ".join(unknown[0])
        findings.append(
            warning("DK631", f"the reference has no operator for {named}: only what is around it was compared")
        )
    with io.scratch_folder() as folder:
        paths = []
        for name, model, given in (("original", first, original), ("candidate", second, candidate)):
            changed = pin_seeds(model) or bool(unknown[0])
            path = Path(folder) / f"{name}.onnx" if changed else given
            if changed:
                graph.save(model, path)
            paths.append(path)
        precision = row_for(_precision(first), bound)
        del first, second, model  # their weights would stay beside those of the sessions
        free_memory()
        return _compare_outputs(paths, opener, precision, findings, dims or {}, seed, samples, on_progress)


def _opened(
    original: Path, opener: Callable[[Path], Reference], findings: list[Finding]
) -> tuple[Reference, Callable[[Path], Reference]] | None:
    """The original, opened or by the standard's own definitions, and what opens the other; None: it does not run."""
    try:
        return opener(original), opener
    except VendorError as problem:
        refusal = problem.message[:300]
    try:
        standard = StandardReference(original)
    except VendorError:
        findings.append(warning("DK632", f"the original does not run here: {refusal}"))
        return None
    text = "onnxruntime does not take the original: compared by the standard's own definitions (onnx.reference)"
    findings.append(warning("DK660", text))
    return standard, StandardReference


def _compare_outputs(
    paths: Sequence[Path],
    opener: Callable[[Path], Reference],
    precision: str,
    findings: list[Finding],
    dims: Mapping[str, Sequence[int | None]],
    seed: int,
    samples: int,
    on_progress: OnProgress,
) -> dict[str, Any]:
    # One after the other, so that the weights of one model are in memory.
    opened = _opened(paths[0], opener, findings)
    if opened is None:
        return _result(findings)
    reference, opener = opened
    try:
        # Inputs without a rank have no random data: such a model is compared by its structure only.
        if any(spec.shape is None for spec in reference.inputs):
            findings.append(warning("DK632", "an input has no declared rank: the outputs were not compared"))
            return _result(findings)
        probe = Probe(paths[0], reference, dim_ranges(dims), seed)
        count = samples if _varies(reference.inputs) else min(samples, 3)
        taken: list[tuple[Sample, dict[str, Any]]] = []
        for sample in probe.samples(count):
            on_progress(Progress("running the original", sample.name, len(taken), None))
            taken.append((sample, copy.deepcopy(probe.outputs)))  # the arrays would keep the session's memory
    finally:
        reference.close()
    if not taken:
        findings.append(warning("DK632", f"the original refuses every input that was tried: {probe.refusal}"))
        return _result(findings)
    del reference, probe, opened
    free_memory()
    other = opener(paths[1])
    outputs, tolerance = iter([given for _, given in taken]), TOLERANCES[precision]
    inputs = [sample for sample, _ in taken]
    try:
        result = compare(
            lambda feeds: next(outputs), other.predict, inputs, tolerance=tolerance, on_progress=on_progress
        )
    except VendorError as problem:
        text = f"the rewritten model refuses an input that the original takes: {problem.message[:300]}"
        findings.append(failure("DK636", text))
        return _result(findings)
    finally:
        other.close()
    findings += [Finding.from_dict(facts) for facts in result["findings"]]
    return {**_result(findings), "outputs": result["outputs"], "samples": result["samples"], "compared": True}


class Probe:
    """Random inputs that the original takes, each run once.

    The declared ranges are tried first. Where the model takes fewer sizes than it declares (a minimum length, two
    dimensions that have to be equal), sizes that are common in practice are tried until enough have been found.
    """

    def __init__(self, model: Path, reference: Reference, ranges: Mapping[str, DimRange], seed: int) -> None:
        """outputs: the original's for the sample that was yielded last; refusal: why it took none."""
        self.refusal = ""
        self._model = model
        self._reference = reference
        self._ranges = ranges
        self._seed = seed
        self.outputs: dict[str, Any] = {}

    def samples(self, count: int) -> Iterator[Sample]:
        """At most `count` samples that the original takes, and some with other values of single integers."""
        first = list(self._random(count))
        found = 0
        for index, sample in enumerate(itertools.chain(first, self._common_sizes(first[-1]))):
            if found == count or (found >= _ENOUGH and index >= len(first)):
                return
            if self._takes(sample):
                found += 1
                yield (taken := self._finite(sample))
                if found == 1:
                    yield from self._other_branches(taken)

    def _other_branches(self, sample: Sample) -> Iterator[Sample]:
        """The sample with other values of single integers (a rate, a mode), where the graph has If nodes."""
        if not any(node.op_type == "If" for node in graph.all_nodes(graph.load(self._model))):
            return
        for name, array in sample.feeds.items():
            if array.size != 1 or array.dtype.kind not in "iu":
                continue
            for value in sorted({0, 1, int(array.item()) // 2} - {int(array.item())}):
                other = dataclasses.replace(sample, feeds={**sample.feeds, name: np.full_like(array, value)})
                if self._takes(other):
                    yield other

    def _random(self, count: int) -> Iterable[Sample]:
        return open_data(
            f"random:{self._seed}",
            self._reference.inputs,
            purpose="parity",
            samples=count,
            dims=self._ranges,
            model=self._model,
        )

    def _common_sizes(self, like: Sample) -> Iterator[Sample]:
        """Samples with each undeclared dimension at common sizes, the others at 1 and 2; then all of them alike."""
        shapes = [spec.shape or () for spec in self._reference.inputs]
        symbols = dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str))
        free = [name for name in symbols if name not in self._ranges]
        fixed = {name: self._ranges[name].minimum for name in symbols if name in self._ranges}
        for size in _COMMON_SIZES if free else ():
            for rest in (1, 2):
                for name in free:
                    yield self._sized(like, {**fixed, **dict.fromkeys(free, rest), name: size})
            if size <= _LARGEST_ALIKE:
                yield self._sized(like, {**fixed, **dict.fromkeys(free, size)})

    def _sized(self, like: Sample, sizes: Mapping[str, int]) -> Sample:
        """A sample of these sizes: fresh floats, and the integers of `like` again, which the graph takes."""
        rng = np.random.default_rng([self._seed, *sizes.values()])
        feeds = {}
        for spec in self._reference.inputs:
            shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape or ())
            array = like.feeds[spec.name]
            floats = array.dtype.kind not in "iubOSU"
            values = rng.standard_normal(shape) if floats else np.resize(array, shape)
            feeds[spec.name] = values.astype(array.dtype)
        return dataclasses.replace(like, feeds=feeds, name=", ".join(f"{name}={size}" for name, size in sizes.items()))

    def _finite(self, sample: Sample) -> Sample:
        """The sample, or its absolute values where the outputs are NaN (Sqrt, Log) and those give numbers."""
        if _all_finite(self.outputs):
            return sample
        before = self.outputs
        feeds = {name: np.abs(array) if array.dtype.kind == "f" else array for name, array in sample.feeds.items()}
        other = dataclasses.replace(sample, feeds=feeds, name=f"{sample.name}, absolute")
        if self._takes(other) and _all_finite(self.outputs):
            return other
        self.outputs = before
        return sample

    def _takes(self, sample: Sample) -> bool:
        try:
            self.outputs = self._reference.predict(sample.feeds)
        except VendorError as problem:
            self.refusal = problem.message[:300]
            return False
        return True


def _all_finite(outputs: Mapping[str, Any]) -> bool:
    arrays = [np.asarray(value) for value in outputs.values() if not isinstance(value, (list, dict))]
    return all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f")


def _result(findings: Iterable[Finding]) -> dict[str, Any]:
    return {"outputs": [], "samples": 0, "compared": False, "findings": [finding.as_dict() for finding in findings]}


def _varies(inputs: Iterable[TensorSpec]) -> bool:
    return any(isinstance(dim, str) for spec in inputs for dim in spec.shape or ())


def _precision(model: ir.Model) -> str:
    """The tolerance's row: rounding of the float type; a quantized model's own rewriting must stay exact as fp32."""
    found = graph.precision_of(model)
    return found if found in ("fp16", "bf16") else "fp32"


def interface_differences(original: ir.Model, candidate: ir.Model) -> list[Finding]:
    """Failures for inputs and outputs whose name, order, dtype or shape differ; a symbol must keep its name."""
    found = []
    for kind, before, after in zip(
        ("input", "output"), graph.interface(original), graph.interface(candidate), strict=True
    ):
        names = [spec.name for spec in before], [spec.name for spec in after]
        if names[0] != names[1]:
            text = f"the {kind}s were {', '.join(names[0])} and became {', '.join(names[1])}"
            found.append(failure("DK633", text))
            continue
        for old, new in zip(before, after, strict=True):
            if not _same(old, new, exact=kind == "input"):
                text = f"{kind} {old.name!r} was {old.describe()} and became {new.describe()}"
                found.append(failure("DK633", text, tensor=old.name))
    return found


def _same(old: TensorSpec, new: TensorSpec, *, exact: bool) -> bool:
    """Equal, but an output whose size was not known may be told more precisely."""
    if old.dtype != new.dtype:
        return False
    if old.shape == new.shape or (old.shape is None and not exact):
        return True
    if old.shape is None or new.shape is None or exact or len(old.shape) != len(new.shape):
        return False
    return all(
        a == b or (isinstance(a, str) and not a.isidentifier()) for a, b in zip(old.shape, new.shape, strict=True)
    )


def kept_differences(original: ir.Model, candidate: ir.Model, requantized: Collection[str] = ()) -> list[Finding]:
    """Failures for nodes that must survive any rewriting: random ones, unknown ones, quantization.

    requantized: names of quantization nodes that need not, as `graph.name_nodes` gives them.
    """
    if requantized:
        graph.name_nodes(original)
    found = []
    for what, before, after in (
        ("random", random_nodes(original), random_nodes(candidate)),
        ("custom", unknown_nodes(original), unknown_nodes(candidate)),
    ):
        lost = Counter(map(_identity, before)) - Counter(map(_identity, after))
        for node in before:
            if _identity(node) in lost:
                text = f"the {what} node {node.name!r} ({node.op_type}) was removed or changed"
                found.append(failure("DK634", text, node=node.name, op=node.op_type))
    lost_scales = _count(original, requantized) - _count(candidate)
    if lost_scales > 0:
        text = f"{lost_scales} QuantizeLinear/DequantizeLinear nodes were removed: the quantization would be lost"
        found.append(failure("DK634", text))
    return found


def _count(model: ir.Model, without: Collection[str] = ()) -> int:
    return sum(node.op_type in _QUANTIZED and node.name not in without for node in graph.all_nodes(model))


def _identity(node: ir.Node) -> tuple[Any, ...]:
    attributes = sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())
    return (node.domain, node.op_type, *map(str, attributes))


def random_nodes(model: ir.Model) -> list[ir.Node]:
    """Nodes that draw random numbers."""
    return [node for node in graph.all_nodes(model) if node.op_type in _SEEDED and node.domain in ("", "ai.onnx")]


_SEEDED = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")


def pin_seeds(model: ir.Model) -> bool:
    """Gives every random node a seed of its own, from its attributes and how many like it came before."""
    changed = False
    before: Counter[Any] = Counter()
    for node in graph.all_nodes(model):
        drops = node.op_type == "Dropout" and len(node.inputs) > 2
        if (node.op_type in _SEEDED or drops) and node.domain in ("", "ai.onnx"):
            identity = _identity(node)
            before[identity] += 1
            text = f"{identity} {before[identity]}"
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:2], "big")
            node.attributes["seed"] = ir.AttrInt64("seed", seed) if drops else ir.AttrFloat32("seed", float(seed))
            changed = True
    return changed


def unknown_nodes(model: ir.Model) -> list[ir.Node]:
    """Nodes that neither the ONNX standard nor onnxruntime nor the model's own functions define."""
    import onnx
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    ours = {(function.domain, function.name) for function in model.functions.values()}
    contrib = {(schema.domain, schema.name) for schema in runtime.get_all_operator_schema()}
    found = []
    for node in graph.all_nodes(model):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in ours or (domain, node.op_type) in contrib:
            continue
        if not onnx.defs.has(node.op_type, domain):
            found.append(node)
    return found


def stand_in(model: ir.Model) -> list[str]:
    """Puts Identity of its first input in the place of each unknown node; returns their names with the operator."""
    named = []
    for node in unknown_nodes(model):
        named.append(f"{node.name or '(unnamed)'} ({node.op_type})")
        first = next((value for value in node.inputs if value is not None), None)
        owner = node.graph
        if owner is None or first is None:
            continue
        for output in node.outputs:
            replacement = ir.node("Identity", [first])
            owner.insert_before(node, replacement)
            made = replacement.outputs[0]
            output.replace_all_uses_with(made, replace_graph_outputs=True)
            made.name, output.name = output.name, None
            made.type = output.type or first.type
        owner.remove(node, safe=True)
    return named
