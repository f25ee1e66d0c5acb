"""Where a vendor's bytes depend on its memory: models and artifacts under paths of one length while it works."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import io
from deploykit.errors import DeploykitError
from deploykit.report import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploykit.artifact import Artifact
    from deploykit.target import Target


@contextlib.contextmanager
def at_a_fixed_place(model: Artifact) -> Iterator[Path]:
    """The model under a path of one length: a vendor that numbers by address is moved by the path's characters, too.

    What is raised meanwhile names the model's own path.
    """
    with io.scratch_folder() as folder:
        place = Path(folder) / "model.onnx"
        for name in model.files or (model.path.name,):
            copy = place if name == model.path.name else Path(folder) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(model.path.parent / name, copy)
            except OSError:  # another file system
                shutil.copyfile(model.path.parent / name, copy)
        try:
            yield place
        except DeploykitError as problem:
            problem.message = problem.message.replace(str(place), str(model.path))
            problem.file = str(model.path) if problem.file == str(place) else problem.file
            raise


def made_at_a_fixed_place(
    make: Callable[[Path], dict[str, Any]], output: Path, target: Target, *, twice: bool
) -> dict[str, Any]:
    """What `make` writes, a single file, moved to `output`; its facts.

    twice: has it made again, in another process, and a difference is an error finding (DK593).
    """
    made: dict[str, Any] = {}
    found: list[str] = []
    for _ in range(2 if twice else 1):
        with io.scratch_folder() as folder:
            place = Path(folder) / f"made{target.suffix}"
            made = make(place)
            if not place.is_file():
                return made
            found.append(io.file_sha256(place))
            shutil.move(place, output)
    if twice:
        made["metrics"]["build"]["reproducible"] = len(set(found)) == 1
    if len(set(found)) > 1:
        told = f"two builds in two processes gave other bytes: {' and '.join(digest[:12] for digest in found)}"
        hint = "leave --option prove_reproducible away to take the artifact anyway"
        made["findings"].append(failure("DK593", told, target=target.name, hint=hint).as_dict())
    return {**made, "files": [output.name]}
