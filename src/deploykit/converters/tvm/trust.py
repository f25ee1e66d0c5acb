"""Whether a shared library may be loaded: loading it runs what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit import io
from deploykit.artifact import read_manifest
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def refuse_unknown(path: Path) -> None:
    """Raises UsageError (DK580) for a library without the manifest that its conversion wrote, or with another one's.

    The manifest says that `deploykit convert` made these bytes and compared what they compute. It is no signature: who
    can write both files can write what they like.
    """
    claim = read_manifest(path)
    if claim is not None and claim.target == "tvm" and claim.sha256 == io.digest([path]):
        return
    why = "there is no manifest beside it" if claim is None else "the manifest beside it describes another file"
    raise UsageError(
        f"{path.name} is machine code, which runs when it is loaded, and {why}",
        code="DK580",
        file=path,
        target="tvm",
        hint=f"make it here: deploykit convert MODEL.onnx --to tvm -o {path.name}; inspect reads it without loading it",
    )
