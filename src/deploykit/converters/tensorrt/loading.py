"""Whether an engine may be loaded here: by its header, its manifest, the installed version and the GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from deploykit import lazy
from deploykit.artifact import read_manifest
from deploykit.converters.tensorrt.device import CudaError, Driver
from deploykit.converters.tensorrt.header import read_header
from deploykit.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_COMPARED = 3  # major, minor and patch: engines are not loaded across any of them


def refuse_foreign(path: Path) -> None:
    """Raises UnavailableError (DK591) for a TensorRT engine of another version or GPU; nothing is deserialised."""
    expect_same(path, "tensorrt", "TensorRT", lazy.version_of("tensorrt"), gpus())


def gpus() -> list[tuple[str, str]]:
    """(name, compute capability) of every GPU; none without a driver."""
    try:
        return [(device.name, device.capability) for device in Driver().devices()]
    except (OSError, CudaError):
        return []


def expect_same(path: Path, package: str, title: str, installed: str | None, here: Sequence[tuple[str, str]]) -> None:
    """Refuses an engine that this version and these GPUs cannot load (UnavailableError DK591), naming both.

    installed: version of the package, None where it is not. here: see `gpus`; where there is none only versions are
    compared. The header says the version, and otherwise the manifest does, which alone says the GPUs.
    """
    facts = _claimed(path)
    header = read_header(path)
    wrote = header.dotted if header is not None and header.product == package.replace("_", "-") else facts.get(package)
    if wrote and installed and _numbers(wrote) != _numbers(installed):
        raise UnavailableError(
            f"{path.name} was built by {title} {wrote}, and {title} {installed} is installed here",
            code="DK591",
            file=path,
            target=package.replace("_", "-"),
            hint=f"build it again here, or load it where {title} {wrote} is",
        )
    wanted = [str(each) for each in facts.get("compute_capabilities", ())]
    if wanted and here and not facts.get("hardware_compatibility") and here[0][1] not in wanted:
        name, capability = here[0]
        raise UnavailableError(
            f"{path.name} was built for compute capability {', '.join(wanted)}, and the GPU here, {name}, has "
            f"{capability}",
            code="DK591",
            file=path,
            target=package.replace("_", "-"),
            hint="build it again on this machine, or for its GPU",
        )


def _claimed(path: Path) -> dict[str, Any]:
    """What the manifest says that the engine was built for; versions of tools where it is an older one."""
    made = read_manifest(path)
    return {} if made is None else {**made.tool_versions, **made.built_for}


def _numbers(version: str) -> list[str]:
    return re.findall(r"\d+", version)[:_COMPARED]
