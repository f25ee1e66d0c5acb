"""The preprocessing contract that an artifact's manifest states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.artifact import read_manifest
from deploykit.io import digest

if TYPE_CHECKING:
    from pathlib import Path


def stated_contract(artifact: Path) -> dict[str, Any] | None:
    """The contract that the artifact was calibrated or made with, in JSON form; None where none is stated.

    A manifest that is not of these very files states nothing.
    """
    claim = read_manifest(artifact)
    if claim is None:
        return None
    members = [artifact.parent / name for name in claim.files]
    if not members or not all(member.exists() for member in members) or digest(members) != claim.sha256:
        return None
    found = claim.options.get("contract") or (claim.options.get("calibration") or {}).get("contract")
    return found if isinstance(found, dict) else None
