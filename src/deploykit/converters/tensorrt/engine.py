"""TensorRT's builder behind one door: classic 8.6 and 10.x, strongly typed 11.x, and TensorRT for RTX.

The module itself (`tensorrt` or `tensorrt_rtx`) is a parameter, and what it can do is asked of it, never read from its
version: precision flags are there or not, networks are strongly typed by a flag or always. An option that it lacks, or
has without an effect, is an `OptionError`: it is not ignored.

Standard library only: this file is copied into build bundles, and is imported there as `trt_engine`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Profile = Mapping[str, Sequence[Sequence[int]]]  # by input: min, opt and max shape

_SOURCE_PLACE = re.compile(r"\.?\s+In \w+ at \S+:\d+")
_NODE_IN_TEXT = re.compile(r"operation '([^']+)'|\bI\w+Layer ([^\s:]+):")
# A setting that is dropped is logged and the engine is built without it: nothing that was asked for may get lost so.
_DROPPED = re.compile(
    r"\bignor(ed|ing|es)\b|\breject(ed|ing|s)?\b|\bunsupported\b|\bnot supported\b|\bdoes not support\b|\bno effect\b"
    r"|\bno-ops?\b|\boverrid(den|ing)\b|\bcan(not|'t) be (used|applied|honou?red)\b|\bfalling back\b"
    r"|\binvalid (usage|argument|value)\b",
    re.IGNORECASE,
)
# Flags by which a weakly typed network is let use a precision, by the precision that is in the ONNX.
_PRECISION_FLAGS = {
    "fp16": ("FP16",),
    "bf16": ("BF16",),
    "int8": ("INT8", "FP16"),
    "int4-weights": ("INT4", "FP16"),
    "mixed": ("FP16", "BF16", "INT8", "FP8"),
}
COMPATIBILITY = {"ampere_plus": "AMPERE_PLUS", "same_compute_capability": "SAME_COMPUTE_CAPABILITY"}


class OptionError(ValueError):
    """An option that this TensorRT does not have. option: its name."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


class BuildError(RuntimeError):
    """The builder gave no engine. errors: what it said; node: the layer that it names; log: all lines."""

    def __init__(self, message: str, errors: Sequence[str], node: str | None, log: Sequence[str]) -> None:
        super().__init__(message)
        self.errors = tuple(errors)
        self.node = node
        self.log = tuple(log)


@dataclasses.dataclass(frozen=True)
class ParseProblem:
    """One node that the parser refuses. index: its place among the graph's nodes, -1 inside a function body."""

    index: int
    node: str
    op: str
    reason: str


class RefusedError(RuntimeError):
    """The ONNX parser refuses nodes; without any named problem it does not read the file."""

    def __init__(self, problems: Sequence[ParseProblem], log: Sequence[str]) -> None:
        named = "; ".join(f"node {p.node!r} ({p.op}): {p.reason}" for p in problems)
        super().__init__(named or "the parser does not read the file")
        self.problems = tuple(problems)
        self.log = tuple(log)


@dataclasses.dataclass
class Built:
    """An engine. seconds: of parser and builder. cache: the timing cache to keep, where one was asked for."""

    plan: Any
    seconds: dict[str, float]
    cache: Any = None
    typed: str = "strongly"


def title(trt: Any) -> str:
    """What the module is called: "TensorRT" or "TensorRT-RTX"."""
    return "TensorRT-RTX" if trt.__name__.startswith("tensorrt_rtx") else "TensorRT"


def features(trt: Any) -> dict[str, bool]:
    """What the module has of what differs between generations, by its own names.

    weak_typing: precisions are let by builder flags (below 11). typed_flag: strong typing has to be asked for.
    batch_flag: networks need EXPLICIT_BATCH (below 10). int64: tensors may have 64 bits (from 10).
    """
    flags = getattr(trt, "NetworkDefinitionCreationFlag", None)
    weak = hasattr(trt.BuilderFlag, "FP16")
    return {
        "weak_typing": weak,
        "typed_flag": weak and hasattr(flags, "STRONGLY_TYPED"),
        "batch_flag": hasattr(flags, "EXPLICIT_BATCH"),
        "int64": hasattr(trt.DataType, "INT64"),
        "optimization_level": hasattr(trt.IBuilderConfig, "builder_optimization_level"),
        "timing_cache": hasattr(trt.IBuilderConfig, "set_timing_cache"),
        "version_compatible": hasattr(trt.BuilderFlag, "VERSION_COMPATIBLE"),
        "hardware_compatibility": hasattr(trt, "HardwareCompatibilityLevel"),
        "sparsity": hasattr(trt.BuilderFlag, "SPARSE_WEIGHTS"),
        "compute_capabilities": hasattr(trt.IBuilderConfig, "set_compute_capability"),
    }


class Messages:
    """Everything that was logged, verbose chatter left out: (severity, text)."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []

    def keep(self, severity: Any, message: str) -> None:
        """Adds one message. severity: of `ILogger.Severity`."""
        if severity.name != "VERBOSE":
            self.messages.append((severity.name, message.strip()))

    def lines(self, start: int = 0) -> list[str]:
        """Messages after `start` as lines, for an error's log."""
        return [f"[{severity}] {message}" for severity, message in self.messages[start:] if message.strip("-")]

    def errors(self, start: int = 0) -> list[str]:
        """Texts of the errors after `start`."""
        return [text for severity, text in self.messages[start:] if severity in {"ERROR", "INTERNAL_ERROR"}]

    def dropped(self, start: int = 0) -> list[str]:
        """What was refused, dropped or went wrong after `start`, each once."""
        return list(dict.fromkeys(text for severity, text in self.messages[start:] if is_dropped(severity, text)))

    def warned(self, start: int = 0) -> list[str]:
        """Other warnings after `start`, each once."""
        found = [t for severity, t in self.messages[start:] if severity == "WARNING" and not is_dropped(severity, t)]
        return list(dict.fromkeys(found))


def is_dropped(severity: str, message: str) -> bool:
    """Whether a message means that something that was asked for is not in the engine."""
    return severity in {"ERROR", "INTERNAL_ERROR"} or _DROPPED.search(message) is not None


def logger(trt: Any) -> Any:
    """A logger of the module with a `Messages` as its `kept`."""

    class Kept(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kept = Messages()

        def log(self, severity: Any, message: str) -> None:  # called from C++, also from other threads
            self.kept.keep(severity, message)

    return Kept()


def network_flags(trt: Any) -> tuple[int, str]:
    """The flags of `create_network`, and how its types are meant: "strongly", or "weakly" where there is no other."""
    has = features(trt)
    flags = trt.NetworkDefinitionCreationFlag
    value = 1 << int(flags.EXPLICIT_BATCH) if has["batch_flag"] else 0
    if has["typed_flag"]:
        return value | 1 << int(flags.STRONGLY_TYPED), "strongly"
    return value, "weakly" if has["weak_typing"] else "strongly"


def configure(trt: Any, builder: Any, config: Any, options: Mapping[str, Any], precision: str = "fp32") -> Any:
    """Applies the options to a builder configuration; returns the timing cache that was attached, if any.

    options: `workspace` in bytes, `opt_level`, `timing_cache` (a path), `dla_core`, `sparsity`, `tf32`,
    `version_compatible`, `hardware_compatibility`. precision: what is in the ONNX, for networks that are weakly typed.
    Raises OptionError for what this TensorRT does not have.
    """
    has = features(trt)
    _set_flag(trt, config, "TF32", on=bool(options.get("tf32")))
    if network_flags(trt)[1] == "weakly":
        for name in _PRECISION_FLAGS.get(precision, ()):
            if hasattr(trt.BuilderFlag, name):
                config.set_flag(getattr(trt.BuilderFlag, name))
        if precision != "fp32" and hasattr(trt.BuilderFlag, "OBEY_PRECISION_CONSTRAINTS"):
            config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    if options.get("workspace") is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(options["workspace"]))
    if options.get("opt_level") is not None:
        _expect(trt, has["optimization_level"], "opt_level", "has no builder optimisation level")
        config.builder_optimization_level = int(options["opt_level"])
    if options.get("sparsity"):
        _expect(trt, has["sparsity"], "sparsity", "has no kernels for sparse weights")
        config.set_flag(trt.BuilderFlag.SPARSE_WEIGHTS)
    if options.get("version_compatible"):
        _expect(trt, has["version_compatible"], "version_compatible", "builds no version-compatible engines")
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if options.get("hardware_compatibility"):
        level = COMPATIBILITY[options["hardware_compatibility"]]
        known = has["hardware_compatibility"] and hasattr(trt.HardwareCompatibilityLevel, level)
        _expect(trt, known, "hardware_compatibility", f"has no hardware compatibility level {level}")
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)
    if options.get("dla_core") is not None:
        _use_dla(trt, builder, config, int(options["dla_core"]))
    return _attach_cache(trt, config, options) if options.get("timing_cache") else None


def _set_flag(trt: Any, config: Any, name: str, *, on: bool) -> None:
    if hasattr(trt.BuilderFlag, name):
        (config.set_flag if on else config.clear_flag)(getattr(trt.BuilderFlag, name))
    elif on:
        raise OptionError(name.lower(), f"{title(trt)} {trt.__version__} has no {name}")


def _expect(trt: Any, known: bool, option: str, lack: str) -> None:
    if not known:
        raise OptionError(option, f"{title(trt)} {trt.__version__} {lack}")


def _use_dla(trt: Any, builder: Any, config: Any, core: int) -> None:
    cores = getattr(builder, "num_DLA_cores", 0)
    if core >= cores:
        have = f"there are {cores}" if cores else "there is none on this machine, or this TensorRT does not use it"
        raise OptionError("dla_core", f"DLA core {core} is not there: {have}")
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = core
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)  # what the DLA does not take is left to the GPU, as trtexec does


def _attach_cache(trt: Any, config: Any, options: Mapping[str, Any]) -> Any:
    file = pathlib.Path(options["timing_cache"])
    _expect(trt, features(trt)["timing_cache"], "timing_cache", "has no timing cache")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cache = config.create_timing_cache(file.read_bytes() if file.is_file() else b"")
        taken = config.set_timing_cache(cache, False)
    # TensorRT for RTX keeps the methods and warns that they do nothing: it times nothing at all.
    idle = next((str(w.message) for w in said if "no-op" in str(w.message)), None)
    if idle is not None:
        raise OptionError("timing_cache", f"{title(trt)} {trt.__version__} has no timing cache: {idle}")
    if taken is False:
        raise OptionError("timing_cache", f"{file} is the timing cache of another GPU or version")
    return cache


def add_profiles(builder: Any, config: Any, profiles: Sequence[Profile]) -> None:
    """Adds the optimization profiles in their order, which is their number at run time."""
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, (smallest, usual, largest) in shapes.items():
            profile.set_shape(name, tuple(smallest), tuple(usual), tuple(largest))
        config.add_optimization_profile(profile)


def parse(trt: Any, builder: Any, log: Any, model: str) -> tuple[Any, Any]:
    """The network of an ONNX file and the parser, which owns its weights. Raises RefusedError."""
    network = builder.create_network(network_flags(trt)[0])
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(model):
        raise RefusedError(parse_problems(parser), log.kept.lines())
    return network, parser


def parse_problems(parser: Any) -> list[ParseProblem]:
    """Every error of the parser's last look at a model."""
    problems = []
    for number in range(parser.num_errors):
        error = parser.get_error(number)
        # Names of nodes came with 8.6's parser, functions with 10's.
        inside = hasattr(error, "local_function_stack_size") and error.local_function_stack_size() > 0
        operator = error.node_operator() if hasattr(error, "node_operator") else ""
        problems.append(
            ParseProblem(
                index=-1 if inside else error.node(),
                node=error.node_name() if hasattr(error, "node_name") else "",
                op=operator,
                reason=reason_of(operator, str(error.desc()), str(error.func())),
            )
        )
    return problems


def reason_of(op: str, text: str, function: str) -> str:
    """The parser's text as a sentence: what it gives is often a bare C++ condition, at worst `false`."""
    text = _sentence(text)
    quoted = re.search(r'&&\s*\\?"(.+?)\\?"\s*$', text)
    if "Plugin not found" in text:
        return f"its ONNX parser has no {op} and no plugin of that name is registered"
    if quoted:
        return quoted[1]
    if text.strip() in {"false", ""}:
        return f"its ONNX parser does not import {op} ({function})"
    return f"its ONNX parser requires: {text}"


def _sentence(text: str) -> str:
    """What the text says of the model: without places in TensorRT's sources, and without the missing driver.

    Whatever the parser asks of CUDA fails on a machine without a GPU, and is no fault of the node.
    """
    lines = [line.strip() for line in text.splitlines()]
    told = " ".join(line for line in lines if line and "cudaError" not in line and not line.startswith("[checkMacros"))
    return _SOURCE_PLACE.sub("", told).strip()


def node_in(text: str) -> str | None:
    """The layer or node that a builder error names, when it names one."""
    found = _NODE_IN_TEXT.search(text)
    return next((group for group in found.groups() if group), None) if found else None


def allow_decomposition(trt: Any, network: Any) -> None:
    """Attention without a fused kernel becomes its operators; without this the builder refuses its shape or type."""
    kind = getattr(trt.LayerType, "ATTENTION_INPUT", None)
    for index in range(network.num_layers if kind is not None else 0):
        layer = network.get_layer(index)
        if layer.type == kind:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings' way to the layer's own methods
            layer.attention.decomposable = True


def build(
    trt: Any,
    log: Any,
    model: str,
    options: Mapping[str, Any],
    profiles: Sequence[Profile],
    precision: str = "fp32",
    *,
    capabilities: Sequence[str] = (),
    on_network: Callable[[Any], bool] = lambda network: True,
) -> Built | None:
    """The engine of an ONNX file.

    log: of `logger`. options: see `configure`. capabilities: members of `ComputeCapability`, for a module that builds
    ahead of time. on_network: looks at the parsed network, and says whether to go on; None is returned otherwise.
    Raises OptionError, RefusedError or BuildError.
    """
    started = time.perf_counter()
    builder = trt.Builder(log)
    network, parser = parse(trt, builder, log, model)
    parsed = time.perf_counter()
    if not on_network(network):
        return None
    allow_decomposition(trt, network)
    config = builder.create_builder_config()
    if capabilities:
        config.num_compute_capabilities = len(capabilities)
        for index, name in enumerate(capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    cache = configure(trt, builder, config, options, precision)
    add_profiles(builder, config, profiles)
    start = len(log.kept.messages)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        errors = log.kept.errors(start) or ["it gave no reason"]
        node = next((found for found in map(node_in, errors) if found), None)
        raise BuildError(errors[-1], errors, node, log.kept.lines(start))
    seconds = {"parse": parsed - started, "build": time.perf_counter() - parsed}
    kept = None if cache is None else config.get_timing_cache().serialize()
    del parser  # only now: the network's weights are its
    return Built(plan, seconds, kept, network_flags(trt)[1])


def load_libraries(trt: Any, log: Any, libraries: Iterable[str]) -> list[Any]:
    """The plugins of these libraries, registered for the process; handles, which unload them when they go.

    Raises OptionError for a library that registers nothing.
    """
    libraries = list(libraries)
    if not libraries:
        return []
    registry = trt.get_plugin_registry()
    builder = trt.Builder(log)  # its log is the one that the registry writes to
    handles = []
    for library in libraries:
        start, known = len(log.kept.messages), _creators(registry)
        handle = registry.load_library(library) if hasattr(registry, "load_library") else None
        if handle is None or not _creators(registry) - known:
            told = next(iter(log.kept.errors(start)), "it registers no plugin")
            raise OptionError("custom_ops", f"{title(trt)} does not load {library}: {told}")
        handles.append(handle)
    del builder
    return handles


def _creators(registry: Any) -> set[str]:
    listed = registry.all_creators if hasattr(registry, "all_creators") else registry.plugin_creator_list
    return {creator.name for creator in listed}
