"""The bytes of an `.mlpackage`, the same for the same program: coremltools writes random ids and the date."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "com.apple.CoreML/model.mlmodel"
_NAMESPACE = uuid.UUID("6f1f2f0e-3b5c-5d5e-9a53-2c1f0b6f7a10")  # any fixed one; ids only have to differ inside
_DATE = "com.github.apple.coremltools.conversion_date"


def normalize(package: Path, spec: Any) -> None:
    """Writes the specification deterministically, without the conversion date, and ids that follow from the paths."""
    spec.description.metadata.userDefined.pop(_DATE, None)
    model = package / "Data" / MODEL
    model.write_bytes(spec.SerializeToString(deterministic=True))
    model.chmod(0o644)
    manifest = package / "Manifest.json"
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    ids = {old: str(uuid.uuid5(_NAMESPACE, item["path"])) for old, item in facts["itemInfoEntries"].items()}
    facts["itemInfoEntries"] = {ids[old]: item for old, item in facts["itemInfoEntries"].items()}
    facts["rootModelIdentifier"] = ids[facts["rootModelIdentifier"]]
    manifest.write_text(json.dumps(facts, indent=4, sort_keys=True) + "\n", encoding="utf-8")
