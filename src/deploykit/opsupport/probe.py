"""Verdicts by trying: each node alone is built and run by the engine, where no other source settles it."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io, lazy
from deploykit.bundling import why_not_built
from deploykit.errors import (
    DataError,
    DeploykitError,
    GateError,
    ModelError,
    UnavailableError,
    UsageError,
    VendorError,
)
from deploykit.graph.extraction import NodeModels
from deploykit.isolation import run_isolated
from deploykit.lazy import versions_of
from deploykit.opsupport.verdict import Status, Verdict, conditional, supported, unknown, unsupported
from deploykit.progress import OnProgress, Progress, silent
from deploykit.target import Target, comparison_worker, unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    Bounds = Mapping[str, Sequence[int | None]]

# Compiling one node takes seconds; an engine that needs minutes for it hangs.
BUILD_SECONDS = 180
RUN_SECONDS = 60
_TRIAL = "deploykit.converters.trial:trial_job"
# About the inputs and outputs that the node has only because it stands alone, and not about its operator.
_OF_THE_INTERFACE = {"DK202", "DK520", "DK521", "DK529"}
_BATCH, _OTHER = 2, 32  # sizes of dimensions that nobody has bounded: the first one, and the others
# Values of larger float constants decide nothing about support: nodes that differ in them are tried once.
_COUNTS_BY_VALUE = 64
_ELSEWHERE = "rewrite it with operators that the target takes, or keep this part in another runtime"


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """What came of one node. status None: nothing was settled, for the reason given."""

    status: Status | None
    reason: str = ""
    how: str = ""


class Prober:
    """Tries nodes of one model; nodes alike are tried once for each target.

    dims: bounds by symbol; a dimension without bounds is tried open and with a size of 2 (the first one) or 32.
    options: what `RuntimeOptions` takes, by target name.
    """

    def __init__(
        self,
        model: ir.Model,
        *,
        dims: Bounds | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        seed: int = 0,
    ) -> None:
        """Names the nodes as `graph.name_nodes` does; the model is left as it is."""
        self._dims = dict(dims or {})
        self._options = options or {}
        self._seed = seed
        self._symbolic = NodeModels(model)
        self._sizes = sizes_of(model, self._dims)
        self._sized = NodeModels(model, dims=self._sizes)
        self._known: dict[tuple[str, str], Trial] = {}

    def probe(
        self,
        target: Target,
        settings: Mapping[str, Any],
        nodes: Sequence[str],
        on_progress: OnProgress = silent,
    ) -> dict[str, Verdict]:
        """A verdict for each of the named nodes; UNKNOWN where trying did not settle it.

        settings: the target's options as its jobs take them.
        """
        found = {}
        for done, name in enumerate(nodes):
            on_progress(Progress(f"probing on {target.title}", name, done, len(nodes)))
            found[name] = _verdict(target, self._tried(target, settings, name))
        return found

    def _tried(self, target: Target, settings: Mapping[str, Any], name: str) -> Trial:
        try:
            alone = self._symbolic.take(name)
            sized = self._sized.take(name)
        except ModelError as problem:
            return Trial(None, problem.message)
        key = (f"{target.name} {sorted(settings.items())}", identity(alone))
        if key not in self._known:
            untold = any(spec.shape is None for spec in graph.interface(alone)[0])
            one = self._try_sized(target, settings, sized) if untold else None
            self._known[key] = one or self._try(target, settings, alone, matched_sizes(alone, sized))
        return self._known[key]

    def _try_sized(self, target: Target, settings: Mapping[str, Any], sized: ir.Model) -> Trial | None:
        """A node whose ranks are known only with sizes; None when they are not even then."""
        if any(spec.shape is None for spec in graph.interface(sized)[0]):
            return None
        found = self._once(
            target, settings, sized, {name: [size, size] for name, size in matched_sizes(sized, sized).items()}
        )
        if found.status is not Status.SUPPORTED:
            return found
        named = ", ".join(f"{name}={size}" for name, size in self._sizes.items())
        return Trial(Status.CONDITIONAL, f"it is taken with {named}; without, its ranks are unknown", found.how)

    def _try(self, target: Target, settings: Mapping[str, Any], alone: ir.Model, sizes: Mapping[str, int]) -> Trial:
        """As it is; where that is refused and sizes are open, with sizes fixed."""
        given = {name: list(self._dims[name]) for name in sizes if name in self._dims}
        around = {name: given.get(name, [size, 2 * size]) for name, size in sizes.items()}
        first = self._once(target, settings, alone, around)
        if not sizes or first.status is Status.SUPPORTED:
            return first
        fixed = self._once(target, settings, alone, {name: [size, size] for name, size in sizes.items()})
        if fixed.status is not Status.SUPPORTED:
            return first if first.status is not None else fixed
        named = ", ".join(f"{name}={size}" for name, size in sizes.items())
        refused = first.status is Status.UNSUPPORTED
        open_sizes = "not with open sizes" if refused else "could not be tried with open sizes"
        return Trial(Status.CONDITIONAL, f"it is taken with {named}, and {open_sizes}: {first.reason}", fixed.how)

    def _once(self, target: Target, settings: Mapping[str, Any], alone: ir.Model, dims: Bounds) -> Trial:
        with io.scratch_folder() as folder:
            path = Path(folder) / "node.onnx"
            graph.save(alone, path)
            made = Path(folder) / f"made{target.suffix}"
            arguments = {
                "model": str(path),
                "output": str(made),
                "options": dict(settings),
                "dims": target.bounded(dims),
                "profiles": {},
                "precision": graph.precision_of(alone),
            }
            if target.converter is None:
                raise AssertionError(f"{target.name} has no converter")
            try:
                built = run_isolated(
                    target.worker, target.converter, arguments, block=target.blocked, timeout=BUILD_SECONDS
                )
            except DeploykitError as problem:
                return _stopped(problem)
            errors = [finding for finding in built["findings"] if finding["severity"] == "error"]
            for finding in errors:
                if finding["code"] not in _OF_THE_INTERFACE:
                    return Trial(Status.UNSUPPORTED, _plain(finding["message"]), "refused")
            if errors:
                return Trial(None, errors[0]["message"])
            return self._run(target, path, made, dims)

    def _run(self, target: Target, path: Path, made: Path, dims: Bounds) -> Trial:
        """What was built, on inputs; a machine that cannot run it leaves it at that."""
        if target.runtime is None or unavailable(target, simulated=True) is not None:
            return Trial(Status.SUPPORTED, how="built")
        arguments = {
            "model": str(path),
            "artifact": str(made),
            "dims": dict(dims),
            "seed": self._seed,
            "options": dict(self._options.get(target.name, {})),
        }
        try:
            tried = run_isolated(
                comparison_worker(target), _TRIAL, arguments, block=target.blocked, timeout=RUN_SECONDS
            )
        except UnavailableError:
            return Trial(Status.SUPPORTED, how="built")
        except DeploykitError as problem:
            return _stopped(problem)
        if tried["passed"] is False:
            return Trial(Status.UNSUPPORTED, tried["reason"], _HOW[tried["execution"]])
        how = _HOW[tried["execution"]]
        return Trial(Status.SUPPORTED, how=how if tried["compared"] or how == "built" else f"{how}, nothing compared")


_HOW = {"real": "run", "simulated": "simulated", "none": "built"}


def why_not_probed(target: Target, version: str | None, title: str) -> str | None:
    """Why that version of the target, called `title`, cannot try nodes on this machine; None when it can."""
    if not target.converts(version) or not target.asks_engine(version):
        return f"deploykit has no engine of {title} to ask"
    elsewhere = why_not_built(target)
    if elsewhere is not None:
        return elsewhere
    missing = [package for package in target.packages if not lazy.installed(package)]
    return f"{missing[0]!r} is not installed: {target.install}" if missing else None


def label(target: Target, how: str) -> str:
    """Who says so: "probed on OpenVINO 2026.4.1 (run)"."""
    (name, version), *_ = versions_of(*target.distributions).items() or [("", "")]
    # Core ML is reached through coremltools, whose version it is; the others are called as their packages are.
    same = re.sub(r"[^a-z]", "", name.lower()) == re.sub(r"\bfor\b|[^a-z]", "", target.title.lower())
    return f"probed on {target.title}{'' if same else f' with {name}'} {version} ({how})"


def _verdict(target: Target, trial: Trial) -> Verdict:
    if trial.status is None:
        return unknown(f"trying it alone settled nothing: {trial.reason}", remedy=_CONVERT)
    source = label(target, trial.how)
    if trial.status is Status.SUPPORTED:
        return supported(source)
    if trial.status is Status.CONDITIONAL:
        return conditional(
            trial.reason, remedy="fix the sizes: deploykit simplify MODEL -o OUT --dim NAME=VALUE", source=source
        )
    return unsupported(trial.reason, remedy=_ELSEWHERE, source=source)


_ABOUT_A_FILE = re.compile(r"^.{0,200}?( of node\.onnx|does not take node\.onnx| refuses node '.{0,500}?' \(\w+\)): ")
_CONVERT = "convert the model to find out"


def _stopped(problem: DeploykitError) -> Trial:
    """What an engine's failure means for the node: an answer, unless it gave none or was not asked."""
    if isinstance(problem, VendorError) and problem.code == "DK512":
        return Trial(None, problem.message)
    if isinstance(problem, (GateError, VendorError)):
        return Trial(Status.UNSUPPORTED, _plain(problem.message), "refused")
    if isinstance(problem, ModelError) and problem.code == "DK202":
        return Trial(Status.UNSUPPORTED, _plain(problem.message), "refused")
    if isinstance(problem, (ModelError, UsageError, DataError, UnavailableError)):
        return Trial(None, problem.message)
    raise problem


def _plain(text: str) -> str:
    """The reason in a converter's message, which begins with `node.onnx`, a file nobody knows, or a node's name."""
    return _ABOUT_A_FILE.sub("", text, count=1)


def sizes_of(model: ir.Model, dims: Bounds) -> dict[str, int]:
    """A size for every symbol of the inputs: the least that is allowed, or one that shows whether sizes matter."""
    inputs, _ = graph.interface(model)
    sizes = {}
    for spec in inputs:
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str) and dim not in sizes:
                low = dims.get(dim, [None])[0]
                sizes[dim] = int(low) if low else _BATCH if axis == 0 else _OTHER
    return sizes


def matched_sizes(alone: ir.Model, sized: ir.Model) -> dict[str, int]:
    """The size of each symbol of a node's inputs, from the same node in the model with sizes."""
    found: dict[str, int] = {}
    known = {spec.name: spec.shape or () for spec in graph.interface(sized)[0]}
    for spec in graph.interface(alone)[0]:
        shape = known.get(spec.name, ())
        pairs = zip(spec.shape or (), shape if len(shape) == len(spec.shape or ()) else spec.shape or (), strict=True)
        for axis, (dim, size) in enumerate(pairs):
            if isinstance(dim, str):
                found.setdefault(dim, size if isinstance(size, int) else _BATCH if axis == 0 else _OTHER)
    return found


def identity(alone: ir.Model) -> str:
    """A digest of a one-node model without names, and without the values of large float constants."""
    import onnx_ir as ir

    work = alone.clone()
    facts = hashlib.sha256()
    names: dict[str, str] = {}
    body = work.graph
    constants = list(body.initializers.values())
    for kind, values in (("i", list(body.inputs)), ("c", constants), ("o", list(body.outputs))):
        for at, value in enumerate(values):
            names.setdefault(value.name or "", f"~{kind}{at}")
    for value in constants:
        tensor = value.const_value
        by_value = tensor is not None and (tensor.size <= _COUNTS_BY_VALUE or not tensor.dtype.is_floating_point())
        facts.update(f"{value.dtype} {value.shape}".encode())
        if tensor is not None and by_value:
            facts.update(repr(tensor.numpy().tolist()).encode() if tensor.dtype.name == "STRING" else tensor.tobytes())
        value.const_value = ir.tensor([0], name=value.name)
    symbols: dict[str, str] = {}
    for value in [*body.inputs, *body.outputs]:
        if value.shape is not None:
            value.shape = ir.Shape(
                [d if isinstance(d, int) else symbols.setdefault(str(d.value), f"s{len(symbols)}") for d in value.shape]
            )
    for value in [*body.inputs, *constants, *body.outputs]:
        value.name = names[value.name or ""]
    for node in body.all_nodes():
        node.name, node.doc_string = "n", None
        node.metadata_props.clear()
    facts.update(ir.to_proto(work).SerializeToString(deterministic=True))
    return facts.hexdigest()
