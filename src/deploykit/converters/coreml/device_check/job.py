"""Writes the folder beside a package: inputs, what the ONNX model makes of them, and the programs that compare."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.comparison import Side, carry_of, runtime_options, shared_samples
from deploykit.converters.coreml.door import Door
from deploykit.converters.coreml.inspect import open_package
from deploykit.converters.coreml.options import flag
from deploykit.graph.stochastic import stochastic_nodes
from deploykit.parity import TOLERANCES
from deploykit.report import Finding, note
from deploykit.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deploykit.route import Answered
    from deploykit.runtime import Outputs

    Array = np.ndarray[Any, Any]

FORMAT = "deploykit.check/1"
SAMPLES = 3
MOST_BYTES = 16 * 2**20
PROGRAMS = ("check.py", "CoreMLCheck.swift", "main.swift", "CoreMLCheckTests.swift", "README.md")


def check_job(
    model: str,
    package: str,
    data: dict[str, Any],
    row: str,
    settings: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes `<stem>.check` beside the package, in a worker.

    model: the ONNX parent. data: a `DataRequest`; up to three of its samples are kept, 16 MiB together. row: of
    `parity.TOLERANCES`. settings: the target's options. options: of the reference's runtime.
    Returns {"companions": names beside the package, "findings"}: a note DK554 and no folder where a sample is too large
    or the graph is random. Raises what opening both and reading the data raises.
    """
    if not flag(settings, "device_check", default=True):
        return {"companions": [], "findings": []}
    home = Path(package)
    random = stochastic_nodes(Path(model))
    if random:
        return _none(f"the graph is random ({', '.join(random[:3])}), so no outputs can be expected")
    reference = open_runtime(Path(model), dataclasses.replace(runtime_options(options), optimize=False))

    def answered(door: Any) -> Iterator[Answered]:  # a door has what `shared_samples` asks a runtime for
        side = Side(reference, carry_of(data), "reference")
        for sample in shared_samples({**data, "samples": SAMPLES}, reference, door, (Path(model), home)):
            feeds = side.feeds(sample)
            outputs = side.predict(feeds, sample.name)
            side.keep(outputs)
            yield sample.name, feeds, outputs

    try:
        return write_check(home, answered, row)
    finally:
        reference.close()


def write_direct(
    package: Path, samples: Callable[[Any], Iterable[Answered]], row: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """A `route.Beside`: the check beside a package that did not come from ONNX, by the source's own answers."""
    if not flag(settings, "device_check", default=True):
        return {"companions": [], "findings": []}
    return write_check(package, samples, row)


def write_check(home: Path, samples: Callable[[Any], Iterable[Answered]], row: str) -> dict[str, Any]:
    """Writes the folder and says so as `check_job` does. samples: names, feeds and expected outputs, given the door."""
    door = Door(open_package(home))
    kept, used = [], 0
    for name, feeds, outputs in itertools.islice(samples(door), SAMPLES):
        entry = _Entry(name, _inputs(door, feeds), _outputs(door, outputs))
        used += entry.size
        if used > MOST_BYTES:
            break
        kept.append(entry)
    if not kept:
        return _none(f"one sample with its outputs has {used / 2**20:.0f} MiB, and {MOST_BYTES >> 20} are kept at most")
    folder = home.with_suffix(".check")
    _write(folder, home.name, door, row, kept)
    return {"companions": [folder.name], "findings": []}


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in (*self.inputs.values(), *self.outputs.values()))


def _none(why: str) -> dict[str, Any]:
    said: Finding = note("DK554", f"no check for a Mac lies beside the package: {why}", target="coreml")
    return {"companions": [], "findings": [said.as_dict()]}


def _inputs(door: Door, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """By the package's names: arrays in its types, pictures as rows of pixels, red first."""
    given = door.given(feeds)
    return {name: np.asarray(door.images[name].picture(array)) if name in door.images else array
            for name, array in given.items()}  # fmt: skip


def _outputs(door: Door, outputs: Outputs) -> dict[str, Array]:
    """By the model's name of a classifier's output, otherwise by the package's; integers and booleans as int32."""
    made = {}
    for spec in door.outputs:
        array = np.asarray(outputs[spec.name])
        classes = door.classes is not None and spec.name == door.classes.output
        kind = np.int32 if array.dtype.kind in "iub" else np.float32
        made[spec.name if classes else door.name(spec.name)] = np.asarray(array, kind)
    return made


def _write(folder: Path, package: str, door: Door, row: str, kept: Sequence[_Entry]) -> None:
    folder.mkdir()
    here = Path(__file__).parent
    for name in PROGRAMS:
        shutil.copyfile(here / name, folder / name)
    limits = TOLERANCES[row]
    facts = {
        "format": FORMAT,
        "package": package,
        "limits": {
            "row": row,
            "text": limits.describe(),
            "rtol": limits.rtol,
            "atol_factor": limits.atol_factor,
            "min_sqnr_db": limits.min_sqnr_db,
        },
        "inputs": {name: {"kind": "image" if name in door.images else "array"} for name in kept[0].inputs},
        "outputs": {name: _described(door, name, array) for name, array in kept[0].outputs.items()},
        "samples": [
            {
                "name": entry.name,
                "inputs": _saved(folder, f"samples/{number}/input", entry.inputs),
                "outputs": _saved(folder, f"samples/{number}/output", entry.outputs),
            }
            for number, entry in enumerate(kept)
        ],
    }
    (folder / "check.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _described(door: Door, name: str, array: Array) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": "array", "exact": array.dtype.kind == "i"}
    classes = door.classes
    if classes is not None and name == classes.output:
        named = {"label": classes.label, "values": classes.values, "labels": list(classes.labels)}
        return {**found, "kind": "classes", **named}
    return found


def _saved(folder: Path, stem: str, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Raw files, numbered: names of tensors may differ by case only."""
    found = {}
    for number, (name, array) in enumerate(arrays.items()):
        file = f"{stem}{number}.bin"
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
        found[name] = {"file": file, "dtype": array.dtype.name, "shape": list(array.shape)}
    return found
