"""Target: what a place where models run needs, as data; and the table of all of them.

Importing a Target needs the standard library only: converter, rules and runtime are `module:object` strings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import json
from typing import TYPE_CHECKING, Any

from deploykit import lazy
from deploykit.errors import UnavailableError, UsageError
from deploykit.scheme import QuantizationScheme as QuantizationScheme
from deploykit.toolchain import own_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from deploykit.route import Route

ENTRY_POINT_GROUP = "deploykit.targets"
BUNDLE_FILE = "bundle.json"
BUNDLE_FORMAT = "deploykit.bundle/1"


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """One target, described.

    suffix: of the artifact ("" when it is a folder). format: what `inspect` and the runtimes know it by.
    marker: a file in that folder by which an artifact without a suffix is recognised.
    served: how its artifacts are served where `deploykit serve` does not, as a sentence with {path}.
    places: where else than in its usual runtime an artifact is compared with its parent, as a `module:function` of the
    options that returns `place.Place`s and findings.
    formats: further formats that its option `format` writes, and their suffixes.
    versions: names accepted after `@`, the first one the default; empty when the target has none.
    precisions: what `convert` takes, in the vocabulary of `quantize`.
    options: names accepted by `--option`, each with one line of help; `name.*` stands for all that begin so.
    extra: the pip extra; packages: what it brings, by import name (distributions: by name on the index).
    converter, support, runtime, inspect: `module:function`; None when the target cannot.
    worker: name of the worker process its vendor code runs in; blocked: packages kept out of that process.
    alone: whether each artifact is built in a process of its own, because its bytes depend on what was built before.
    runs_on: why its engine does not run on this machine, as a `module:function` returning a reason or None.
    simulated: whether `runtime` computes artifacts also where the engine is not: values then, never times.
    tables: operator tables of the package by version ("" where there are none), for versions whose engine is not here.
    numbered: whether versions are numbers, so that one between two of them stands for the nearest lower one.
    check_only: versions that their operator table alone speaks for: no engine of theirs runs or converts here.
    elsewhere: how the artifact is made where deploykit does not convert to the target, as a command or a sentence.
    custom_ops: what --custom-ops takes for it, in words; "" where it has no extension libraries.
    renames: whether its artifacts may have other names and types than the model, whose names its runtime takes.
    beside: a job that writes files beside an artifact that go with it, as `module:function`; see `coreml.device_check`.
    files: options whose values are files, or what stands in one.
    takes: what `converter` takes besides: "calib" (a `DataRequest` to measure on) and "contract" (preprocessing, JSON);
    and "sizes": bounds with a set of sizes, which are ranges to all others.
    environment: the managed environment in which `converter` works (`deploykit doctor --install`); "" for none.
    makes: options with which `converter` makes a precision itself from the float ONNX, by precision.
    defaults: a job that measures what the engine's own defaults change in the numbers, as `module:function`.
    no_wheel: why what it needs cannot be installed on this system, as a `module:function` returning a reason or None.
    bundle: a job that writes a build bundle, a folder with all that the vendor's tool needs on another machine, where
    there is no converter or it does not work here. builds_on: why it does not, as a `module:function` returning a
    reason or None. prepares: what the model in a bundle has to be like, see `api.bundle`.
    magic: first bytes of its artifacts, where another target's have the same suffix.
    refuses: a `module:function` that raises for an artifact that this machine cannot load, before anything else looks.
    routes: direct routes that need no ONNX, by the exporter that loads the source ("torch", "tensorflow").
    measured: name of the engine whose measured operator table stands in for it where it is not installed.
    """

    name: str
    title: str
    suffix: str
    format: str
    extra: str | None
    packages: tuple[str, ...]
    distributions: tuple[str, ...]
    precisions: tuple[str, ...] = ("fp32",)
    versions: tuple[str, ...] = ()
    environment: str = ""
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    scheme: QuantizationScheme = QuantizationScheme()  # noqa: RUF009 - frozen
    converter: str | None = None
    support: str | None = None
    runtime: str | None = None
    inspect: str | None = None
    worker: str = ""
    blocked: tuple[str, ...] = ()
    alone: bool = False
    runs_on: str | None = None
    simulated: bool = False
    tables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    measured: str | None = None
    custom_ops: str = ""
    numbered: bool = False
    check_only: tuple[str, ...] = ()
    elsewhere: str = ""
    renames: bool = False
    beside: str | None = None
    defaults: str | None = None
    no_wheel: str | None = None
    bundle: str | None = None
    builds_on: str | None = None
    prepares: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    magic: tuple[bytes, ...] = ()
    refuses: str | None = None
    files: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    makes: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    routes: Mapping[str, Route] = dataclasses.field(default_factory=dict)
    marker: str = ""
    places: str | None = None
    served: str = ""
    formats: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of all its artifacts."""
        return tuple(suffix for suffix in (self.suffix, *self.formats.values()) if suffix)

    def suffix_for(self, options: Mapping[str, Any]) -> str:
        """The suffix of what `convert` writes with these options; "" for a folder."""
        return self.formats.get(str(options.get("format")), self.suffix)

    def bounded(self, dims: Mapping[str, Sequence[int | None]]) -> dict[str, list[int | None]]:
        """Bounds by symbol, [min, max, *sizes], as its jobs take them: [min, max] where it knows ranges only."""
        return {name: list(bounds if "sizes" in self.takes else bounds[:2]) for name, bounds in dims.items()}

    def converts(self, version: str | None) -> bool:
        """Whether deploykit makes artifacts of that version, where what it needs is installed."""
        return bool(self.converter or self.bundle or self.routes) and version not in self.check_only

    def asks_engine(self, version: str | None) -> bool:
        """Whether an engine that may be installed here speaks for that version."""
        return self.support is not None and version not in self.check_only

    @property
    def install(self) -> str:
        """The command that brings what it needs, if anything; a target of another package has no extra here."""
        if self.extra is None and not self.packages:
            return ""
        if self.extra is not None:
            return f"pip install 'deploykit[{self.extra}]'"
        return f"pip install {' '.join(self.distributions or self.packages)}"


_BUNDLES = "deploykit.converters.bundles"
# The literal table: a name here costs nothing until it is asked for.
_TABLE: dict[str, str] = {
    "onnxruntime": "deploykit.converters.onnxruntime:TARGET",
    "openvino": "deploykit.converters.openvino:TARGET",
    "coreai": "deploykit.converters.coreai:TARGET",
    "tensorrt-rtx": "deploykit.converters.tensorrt_rtx:TARGET",
    "coreml": "deploykit.converters.coreml:TARGET",
    "tensorrt": "deploykit.converters.tensorrt:TARGET",
    "onnxruntime-web": "deploykit.converters.onnxruntime_web:TARGET",
    "litert": "deploykit.converters.litert:TARGET",
    "savedmodel": "deploykit.converters.savedmodel:TARGET",
    "ncnn": "deploykit.converters.ncnn:TARGET",
    "mnn": "deploykit.converters.mnn:TARGET",
    "tvm": "deploykit.converters.tvm:TARGET",
    "torchscript": "deploykit.converters.torchscript:TARGET",
    "pt2": "deploykit.converters.pt2:TARGET",
    "ascend": "deploykit.converters.bundles:ascend",
    "axelera": "deploykit.converters.bundles:axelera",
    "hailo": "deploykit.converters.bundles:hailo",
    "migraphx": "deploykit.converters.bundles:migraphx",
    "qnn": "deploykit.converters.bundles:qnn",
    "rknn": "deploykit.converters.bundles:rknn",
    "ryzen-ai": "deploykit.converters.bundles:ryzen-ai",
    "stm32": "deploykit.converters.bundles:stm32",
    "tf-trt": "deploykit.converters.bundles:tf-trt",
    "tidl": "deploykit.converters.bundles:tidl",
}


def resolve(reference: str) -> Any:
    """The object that a `module:object` string names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


@functools.cache
def _third_party() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}


def target_names() -> list[str]:
    """All target names, ours first, then those of other packages, then a user's own descriptions of toolchains."""
    others = [*sorted(_third_party()), *own_names()]
    return [*_TABLE, *dict.fromkeys(name for name in others if name not in _TABLE)]


def get_target(name: str) -> Target:
    """The target of that name without a version; UsageError (DK801) with the nearest name otherwise."""
    if name in _TABLE:
        found: Target = resolve(_TABLE[name])
        return found
    if name in _third_party():
        loaded: Target = _third_party()[name].load()
        return loaded
    if name in target_names():
        described: Target = resolve(f"{_BUNDLES}:{name}")
        return described
    near = difflib.get_close_matches(name.casefold(), target_names(), n=1)
    raise UsageError(
        f"there is no target {name!r}",
        code="DK801",
        context=[f"targets: {', '.join(target_names())}"],
        hint=f"did you mean {near[0]!r}?" if near else "deploykit targets",
    )


def parse_target(text: str) -> tuple[Target, str | None]:
    """`name` or `name@version`: the target and its version (the default where none is given).

    Raises UsageError (DK801, DK802) for an unknown name or version.
    """
    name, _, version = text.partition("@")
    target = get_target(name)
    if not version:
        return target, target.versions[0] if target.versions else None
    if version not in target.versions and nearest_lower(target, version) is None:
        raise UsageError(
            f"target {name!r} has no version {version!r}",
            code="DK802",
            context=[f"versions: {', '.join(target.versions) or 'none; leave @ away'}"],
            hint=_about_versions(target, version),
        )
    return target, version


def nearest_lower(target: Target, version: str) -> str | None:
    """The version of the target that speaks for a numbered one between its own; None when there is none as low.

    Leading numbers stand for the newest that begins with them: 11 for 11.1, 10 for 10.16.
    """
    asked = _numbers(version)
    if not target.numbered or asked is None:
        return None
    known = {numbers: text for text in target.versions if (numbers := _numbers(text)) is not None}
    return known[max(lower)] if (lower := [n for n in known if n[: len(asked)] <= asked]) else None


def _numbers(version: str) -> tuple[int, ...] | None:
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdecimal() for part in parts) else None


def _about_versions(target: Target, version: str) -> str:
    if target.numbered and _numbers(version) is not None:
        lowest = min(target.versions, key=lambda text: _numbers(text) or ())
        return f"nothing is known of versions below {lowest}"
    near = difflib.get_close_matches(version.casefold(), target.versions, n=1)
    return f"did you mean {target.name}@{near[0]}?" if near else ""


def require_converter(target: Target, version: str | None, *, from_onnx: bool = False) -> None:
    """Raises UnavailableError (DK214) where deploykit checks models for a target and makes no artifacts of it.

    from_onnx: nor where it makes them from other sources only.
    """
    if target.converts(version):
        if from_onnx and target.converter is None and target.bundle is None:
            raise UnavailableError(
                f"deploykit run goes through ONNX, and nothing makes {target.title} from it",
                code="DK214",
                target=target.name,
                hint=f"deploykit convert SOURCE --to {target.name} -o OUT{target.suffix}",
            )
        return
    others = [v for v in target.versions if target.converts(v)]
    named = f"{target.title} ({target.name}@{version})" if others else target.title
    raise UnavailableError(
        f"deploykit does not convert to {named}: it checks models for it",
        code="DK214",
        target=target.name,
        hint=target.elsewhere,
    )


def check_options(target: Target, options: Mapping[str, Any]) -> None:
    """Refuses an `--option` that the target does not know (UsageError DK803): never ignored."""
    for name in options:
        # `describe.*` takes any name behind its point.
        family, _, member = name.partition(".")
        if name not in target.options and not (member and f"{family}.*" in target.options):
            near = difflib.get_close_matches(name, target.options, n=1)
            raise UsageError(
                f"target {target.name!r} has no option {name!r}",
                code="DK803",
                context=[f"{option}: {text}" for option, text in target.options.items()] or ["it has no options"],
                hint=f"did you mean {near[0]!r}?" if near else "",
            )


def format_of(path: Path) -> str | None:
    """Artifact format by suffix ("onnx", "openvino", ...) or by what marks a folder; None when no target has it.

    Loading checks the content. Where two targets have one suffix the file's first bytes tell, else its manifest.
    """
    if path.suffix == ".onnx":
        return "onnx"
    known = list(map(get_target, target_names()))
    found = [
        (target, format)
        for target in known
        for format, suffix in ((target.format, target.suffix), *target.formats.items())
        if suffix and suffix == path.suffix
    ]
    if len(found) > 1:
        return _told_apart(path, found)
    if found:
        return found[0][1]
    return next((t.format for t in known if t.marker and (path / t.marker).is_file()), _bundle_format(path))


def _told_apart(path: Path, found: Sequence[tuple[Target, str]]) -> str:
    from deploykit.artifact import read_manifest

    with contextlib.suppress(OSError), path.open("rb") as stream:
        start = stream.read(16)
        for target, format in found:
            if any(start.startswith(magic) for magic in target.magic):
                return format
    claim = read_manifest(path)
    return next((format for target, format in found if claim and target.name == claim.target), found[0][1])


def _bundle_format(path: Path) -> str | None:
    try:
        facts = json.loads((path / BUNDLE_FILE).read_text(encoding="utf-8"))
        name = facts["target"] if facts.get("format") == BUNDLE_FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return f"{name}-bundle" if name in target_names() else None


def target_of_format(format: str) -> Target | None:
    """The target that runs and inspects artifacts of that format."""
    names = target_names()
    found = next((t for t in map(get_target, names) if format == t.format or format in t.formats), None)
    name = format.removesuffix("-bundle")
    return get_target(name) if found is None and name != format and name in names else found


def refuse_foreign(target: Target, path: Path) -> None:
    """Raises UnavailableError (DK591) for an artifact that was built for another version or device than is here."""
    if target.refuses is not None and path.is_file():
        resolve(target.refuses)(path)


def comparison_worker(target: Target) -> str:
    """Name of the worker in which the target's artifacts run beside a reference, apart from its converter."""
    return f"compare-{target.worker}"


def require_packages(target: Target, purpose: str) -> None:
    """Raises MissingDependencyError for the first of the target's packages that is not installed; imports none."""
    for package in target.packages:
        if not lazy.installed(package):
            problem = lazy.missing(package, target.extra or target.name, purpose)
            problem.hint = uninstallable(target) or target.install
            raise problem


def uninstallable(target: Target) -> str | None:
    """Why what the target needs cannot be installed on this system; None where it can, as far as is known."""
    if target.no_wheel is None:
        return None
    reason: Callable[[], str | None] = resolve(target.no_wheel)
    return reason()


def unavailable(target: Target, *, simulated: bool = False) -> str | None:
    """Why artifacts of the target cannot run on its engine here; None when they can. Imports nothing heavy.

    simulated: values are enough, and need not come from the engine; what is timed or served asks without it.
    """
    if target.runs_on is None:
        return None
    reason: Callable[[], str | None] = resolve(target.runs_on)
    found = reason()
    return None if found and simulated and target.simulated and all(map(lazy.installed, target.packages)) else found
