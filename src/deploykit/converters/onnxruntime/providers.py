"""Execution providers: which one is asked for, with which options, and what its failures mean."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.runtime import RuntimeOptions

CPU = "CPUExecutionProvider"
_SUFFIX = "executionprovider"
_GPU = ("CUDAExecutionProvider", "ROCMExecutionProvider", "DmlExecutionProvider", "WebGpuExecutionProvider")
_NPU = ("QNNExecutionProvider", "VitisAIExecutionProvider")
_BROUGHT_BY = {
    "cuda": "pip install onnxruntime-gpu in place of onnxruntime",
    "tensorrt": "pip install onnxruntime-gpu in place of onnxruntime, and TensorRT",
    "nvtensorrtrtx": "pip install onnxruntime-gpu in place of onnxruntime, and TensorRT-RTX",
    "openvino": "pip install onnxruntime-openvino in place of onnxruntime",
    "qnn": "pip install onnxruntime-qnn in place of onnxruntime",
    "dml": "pip install onnxruntime-directml in place of onnxruntime (Windows)",
    "coreml": "a Mac: its onnxruntime has the provider",
    "xnnpack": "a build of ONNX Runtime with --use_xnnpack",
}
FALLBACK = "fallback"


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider with its options.

    fallback: whether a model of which it takes no node may run on the CPU all the same.
    """

    name: str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fallback: bool = False

    @property
    def entry(self) -> str | tuple[str, dict[str, str]]:
        """As `InferenceSession` takes it."""
        return (self.name, dict(self.options)) if self.options else self.name


def parse_provider(text: str) -> tuple[str, dict[str, str], bool]:
    """Name, options and fallback of `NAME[:KEY=VALUE,...]`.

    A comma belongs to a value unless a KEY= follows. `fallback=allow` is deploykit's own option.
    Raises UsageError (DK527).
    """
    name, colon, rest = text.partition(":")
    options: dict[str, str] = {}
    last = None
    for piece in rest.split(",") if colon else ():
        key, equals, value = piece.partition("=")
        if equals and key.strip():
            last = key.strip()
            options[last] = value
        elif last is not None:
            options[last] += f",{piece}"
        else:
            raise UsageError(
                f"--provider {text}: {piece!r} is no KEY=VALUE",
                code="DK527",
                hint="--provider openvino:device_type=CPU,num_of_threads=2",
            )
    asked = options.pop(FALLBACK, "refuse")
    if not name or asked not in ("allow", "refuse"):
        raise UsageError(
            f"--provider {text}: " + (f"{FALLBACK} is allow or refuse, not {asked!r}" if name else "it names none"),
            code="DK527",
            hint=f"--provider openvino:{FALLBACK}=allow",
        )
    return name, options, asked == "allow"


def provider_for(options: RuntimeOptions) -> Provider:
    """The execution provider that the options ask for; the CPU's where they ask for none.

    `provider` may be the full name or its first part in any case ("cuda"), with options behind a colon.
    Raises UnavailableError (DK220) for one that this ONNX Runtime lacks, UsageError (DK527).
    """
    import onnxruntime as ort

    available = ort.get_available_providers()
    hint = "leave --provider and --device away to run on the CPU"
    given: dict[str, str] = {}
    fallback = False
    if options.provider is not None:
        name, given, fallback = parse_provider(options.provider)
        wanted = name.lower().removesuffix(_SUFFIX)
        found = [known for known in available if known.lower().removesuffix(_SUFFIX) == wanted]
        asked = f"the execution provider {name!r}"
        if wanted in _BROUGHT_BY:
            hint = f"{_BROUGHT_BY[wanted]}, or {hint}"
    elif options.device == "cpu":
        return Provider(CPU)
    else:
        kinds = {"gpu": _GPU, "npu": _NPU}.get(options.device, ())
        found = [name for name in kinds if name in available][:1]
        asked = f"a provider for --device {options.device}"
        hint = f"{_BROUGHT_BY['cuda']} (CUDA), or {hint}"
    if not found:
        raise UnavailableError(
            f"the installed ONNX Runtime {ort.__version__} does not have {asked}",
            code="DK220",
            context=[f"it has {', '.join(available)}"],
            hint=hint,
        )
    if found[0] == CPU and given:
        raise UsageError(f"{CPU} has no options, and --provider gives it {', '.join(given)}", code="DK527")
    return Provider(found[0], given, fallback)


def refused_options(provider: Provider, told: str) -> UsageError | None:
    """The error for a provider's own message that it does not take an option; None when it says something else."""
    signs = ("Invalid", "nknown", "not supported", "option")
    if provider.options and "ption" in told and any(sign in told for sign in signs):
        return UsageError(
            f"{provider.name} does not take its options "
            f"({', '.join(f'{key}={value}' for key, value in provider.options.items())}): {told}",
            code="DK527",
            target="onnxruntime",
            hint="ONNX Runtime's documentation lists each provider's options",
        )
    return None


def session_entries(provider: Provider) -> list[Any]:
    """The provider and the CPU behind it, as `InferenceSession` takes them."""
    return [provider.entry] if provider.name == CPU else [provider.entry, CPU]
