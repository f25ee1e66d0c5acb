"""The trtexec command line of one TensorRT version: its flags changed with 8.6, 10 and 11."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.converters.tensorrt.engine import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.converters.profiles import Profile

# Below version 10 there is no strong typing; precisions of the ONNX are let by these.
_WEAK = {
    "fp16": ("--fp16",),
    "int8": ("--int8", "--fp16"),
    "mixed": ("--int8", "--fp16"),
}


def command(
    version: tuple[int, ...],
    profiles: Sequence[Mapping[str, Profile]],
    settings: Mapping[str, Any],
    precision: str,
    *,
    plugins: Sequence[str] = (),
    model: str = "model.onnx",
    engine: str = "model.engine",
) -> list[str]:
    """The arguments, `trtexec` first. settings: of `options.settings`.

    Raises OptionError for what that version has no flag for. From 10 on networks are built strongly typed, which
    `--stronglyTyped` asks for in 10 and 11 always does; 8 gets the precision flags, of which 11 has none.
    https://docs.nvidia.com/deeplearning/tensorrt/11.0.0/api/migration/tensorrt-10x-to-11x-trtexec.html
    """
    arguments = ["trtexec", f"--onnx={model}", f"--saveEngine={engine}"]
    arguments.append("--skipInference" if version >= (8, 6) else "--buildOnly")
    if (10,) <= version < (11,):
        arguments.append("--stronglyTyped")
    elif version < (10,):
        arguments += _weak(version, precision)
    if not settings.get("tf32"):
        arguments.append("--noTF32")
    if settings.get("workspace") is not None:
        arguments.append(f"--memPoolSize=workspace:{settings['workspace'] / 2**20:g}")
    if settings.get("opt_level") is not None:
        _since(version, (8, 6), "opt_level", "--builderOptimizationLevel")
        arguments.append(f"--builderOptimizationLevel={settings['opt_level']}")
    if settings.get("timing_cache"):
        arguments.append(f"--timingCacheFile={settings['timing_cache']}")
    if settings.get("sparsity"):
        arguments.append("--sparsity=enable")
    if settings.get("version_compatible"):
        _since(version, (8, 6), "version_compatible", "--versionCompatible")
        arguments.append("--versionCompatible")
    if settings.get("hardware_compatibility"):
        _since(version, (8, 6), "hardware_compatibility", "--hardwareCompatibilityLevel")
        levels = {"ampere_plus": "ampere+", "same_compute_capability": "sameComputeCapability"}
        arguments.append(f"--hardwareCompatibilityLevel={levels[settings['hardware_compatibility']]}")
    if settings.get("dla_core") is not None:
        arguments += [f"--useDLACore={settings['dla_core']}", "--allowGPUFallback"]
    arguments += [f"{'--staticPlugins' if version >= (8, 6) else '--plugins'}={plugin}" for plugin in plugins]
    return [*arguments, *_shapes(version, profiles)]


def _weak(version: tuple[int, ...], precision: str) -> list[str]:
    if precision in ("bf16", "int4-weights"):
        told = f"trtexec of TensorRT {'.'.join(map(str, version))} has no way to build a {precision} model"
        raise OptionError("precision", told)
    return list(_WEAK.get(precision, ()))


def _since(version: tuple[int, ...], first: tuple[int, ...], option: str, flag: str) -> None:
    if version < first:
        shown, since = ".".join(map(str, version)), ".".join(map(str, first))
        raise OptionError(option, f"trtexec of TensorRT {shown} has no {flag}, which came with {since}")


def _shapes(version: tuple[int, ...], profiles: Sequence[Mapping[str, Profile]]) -> list[str]:
    """`--minShapes` and so on for each profile, which `--profile=N` begins where there are several."""
    if len(profiles) > 1:
        _since(version, (10,), "profile", "--profile for a second profile")
    arguments = []
    for number, shapes in enumerate(profiles):
        if len(profiles) > 1:
            arguments.append(f"--profile={number}")
        for place, flag in enumerate(("--minShapes", "--optShapes", "--maxShapes")):
            text = ",".join(f"{name}:{'x'.join(map(str, shape[place]))}" for name, shape in shapes.items())
            arguments.append(f"{flag}={text}")
    return arguments
