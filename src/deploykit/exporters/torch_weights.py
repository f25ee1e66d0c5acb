"""Weights for a PyTorch module: safetensors, or torch.save files read as tensors only."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from deploykit.errors import DeploykitError, InvalidFileError, ModelError
from deploykit.exporters.diagnosis import reason
from deploykit.io import existing_file
from deploykit.lazy import require
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SHOWN = 6
# Training scripts put the weights beside the optimizer's state under one of these.
_NESTED = ("state_dict", "model_state_dict", "model")


def load_weights(module: torch.nn.Module, path: Path) -> list[Finding]:
    """Fills the module from the file, strictly; returns what was done on the way (a nested or prefixed state dict).

    Raises ModelError: DK607 when the file has other objects than tensors (they are never made), DK608 when names or
    shapes do not match the module's, with the missing and unexpected keys.
    """
    state, findings = _unwrapped(_read(existing_file(path, "weights file")), path)
    state, taken_off = _without_prefix(state, module.state_dict(), path)
    findings += taken_off
    _check_names(module, state, path)
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as problem:
        lines = [line.strip() for line in str(problem).splitlines()[1:] if line.strip()]
        raise ModelError(
            f"the weights in {path.name} do not fit {type(module).__name__}",
            code="DK608",
            file=path,
            context=lines[:_SHOWN],
            hint="give the constructor arguments that the weights were trained with: --arg NAME=VALUE",
        ) from problem
    return findings


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        safetensors = require("safetensors.torch", "torch", purpose="reading safetensors")
        try:
            return safetensors.load_file(path, device="cpu")
        except Exception as problem:  # the package's own error class derives from Exception only
            raise InvalidFileError(
                f"{path} is not a readable safetensors file: {reason(problem)}", code="DK609", file=path
            ) from problem
    if path.suffix not in (".pt", ".pth", ".bin", ".ckpt", ".th"):
        raise InvalidFileError(
            f"{path} is not a weights file that deploykit reads",
            code="DK609",
            file=path,
            hint="--weights takes .safetensors, or .pt/.pth/.bin/.ckpt with a state dict",
        )
    return _read_tensors_only(path)


def _read_tensors_only(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # torch raises UnpicklingError, RuntimeError, EOFError, KeyError for damaged files
        text = str(problem)
        if "weights_only" in text or "Unsupported" in text or "WeightsUnpickler" in text:
            raise ModelError(
                f"{path} has other objects than tensors, and loading them would run code: they were not loaded",
                code="DK607",
                file=path,
                hint="where it was made: torch.save(model.state_dict(), 'weights.pt'), and give that as --weights",
            ) from problem
        raise InvalidFileError(
            f"{path} is not a readable weights file: {reason(problem)}", code="DK609", file=path
        ) from problem


def _unwrapped(state: Any, path: Path) -> tuple[dict[str, Any], list[Finding]]:
    """The state dict itself: out of a checkpoint's entry, without the prefix that data-parallel training adds."""
    findings = []
    if isinstance(state, Mapping):
        nested = next((key for key in _NESTED if isinstance(state.get(key), Mapping)), None)
        if nested is not None:
            state = state[nested]
            findings.append(note("DK615", f"the weights are the entry {nested!r} of {path.name}"))
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ModelError(
            f"{path} does not hold a state dict (a mapping of names to tensors)",
            code="DK608",
            file=path,
            hint="torch.save(model.state_dict(), 'weights.pt')",
        )
    if state and all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): value for name, value in state.items()}
        findings.append(note("DK615", f"the prefix 'module.' of data-parallel training was taken off in {path.name}"))
    return dict(state), findings


def _without_prefix(
    state: dict[str, Any], wanted: Mapping[str, Any], path: Path
) -> tuple[dict[str, Any], list[Finding]]:
    """The state dict without what a training class put before the module's names (`model.`), where the rest fits."""
    first = next(iter(state), "")
    for dots in range(1, first.count(".") + 1):
        prefix = ".".join(first.split(".")[:dots]) + "."
        inner = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        if inner.keys() == wanted.keys() != state.keys():
            others = len(state) - len(inner)
            text = f"the prefix {prefix!r} was taken off in {path.name}"
            text += f", and {others} entries without it were left out" if others else ""
            return inner, [note("DK615", text)]
    return state, []


def _check_names(module: torch.nn.Module, state: Mapping[str, Any], path: Path) -> None:
    wanted = module.state_dict()
    missing = [name for name in wanted if name not in state]
    unexpected = [name for name in state if name not in wanted]
    if not missing and not unexpected:
        return
    raise _mismatch(type(module).__name__, path, missing, unexpected)


def _mismatch(name: str, path: Path, missing: Sequence[str], unexpected: Sequence[str]) -> DeploykitError:
    context = []
    if missing:
        context.append(f"missing in the file ({len(missing)}): {_some(missing)}")
    if unexpected:
        context.append(f"not in the module ({len(unexpected)}): {_some(unexpected)}")
    near = difflib.get_close_matches(missing[0], unexpected, 1) if missing else []
    return ModelError(
        f"the weights in {path.name} are not those of {name}",
        code="DK608",
        file=path,
        context=context,
        hint=f"{near[0]!r} looks like {missing[0]!r}: rename the keys"
        if near
        else "check the class and its --arg values",
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
