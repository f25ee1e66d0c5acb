"""Core AI (beta): Apple's `.aimodel` of macOS and iOS 27, converted and run here by Apple's own packages for Linux."""

from __future__ import annotations

import importlib.util
import platform
import sys

from deploykit.route import Route
from deploykit.target import QuantizationScheme, Target

_PACKAGES = ("coreai", "coreai_onnx")
# What wheels of coreai-core 1.0.0b3 there are.
_PYTHONS = ((3, 11), (3, 13))
_PLATFORMS = {"linux": ("x86_64",), "darwin": ("arm64", "x86_64")}


def no_wheel_here() -> str | None:
    """Why nothing can be installed on this system; None where Apple publishes wheels for it."""
    if sys.version_info[:2] not in _PYTHONS:
        known = " and ".join(f"{major}.{minor}" for major, minor in _PYTHONS)
        return f"Apple publishes coreai-core for Python {known} only, and this is {platform.python_version()}"
    if platform.machine() not in _PLATFORMS.get(sys.platform, ()):
        here = platform.platform(terse=True)
        return f"Apple publishes coreai-core for Linux (x86-64) and macOS only, and this is {here}"
    return None


def why_not_here() -> str | None:
    """Why an asset is not executed on this machine; None where Apple's runtime is installed."""
    if all(importlib.util.find_spec(package) is not None for package in _PACKAGES):
        return None
    return no_wheel_here() or "Apple's runtime is not installed: pip install 'deploykit[coreai]'"


TARGET = Target(
    name="coreai",
    title="Core AI (beta)",
    suffix=".aimodel",
    format="coreai",
    extra="coreai",
    packages=_PACKAGES,
    distributions=("coreai-core", "coreai-onnx"),
    precisions=("fp32", "fp16", "int8", "int8-weights", "mixed"),
    options={
        "route": "auto (the default: through ONNX), onnx or torch: the way from a PyTorch source",
    },
    # Q/DQ is computed as it is written; an int32 bias is not taken, so it stays float.
    scheme=QuantizationScheme(
        activation="int8",
        symmetric_activations=True,
        per_channel=True,
        quantize_bias=False,
    ),
    converter="deploykit.converters.coreai.convert:convert_job",
    support="deploykit.converters.coreai.support:support_job",
    runtime="deploykit.converters.coreai.runtime:load",
    inspect="deploykit.converters.coreai.inspect:describe",
    worker="coreai",
    # The order of a program's attributes follows their addresses.
    alone=True,
    runs_on="deploykit.converters.coreai:why_not_here",
    no_wheel="deploykit.converters.coreai:no_wheel_here",
    routes={
        "torch": Route(
            title="coreai-torch, from PyTorch's own program",
            writer="deploykit.converters.coreai.torch_route:write",
            kinds=("python", "pt2"),
            preferred=False,
        ),
    },
)
