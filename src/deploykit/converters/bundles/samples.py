"""Samples in a bundle: inputs with expected outputs, and what a toolchain quantizes by (in the worker)."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.comparison import Side, carry_of, runtime_options
from deploykit.data import open_request
from deploykit.graph.stochastic import stochastic_nodes
from deploykit.runtime import open_runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.toolchain import Calibration

    Feeds = Mapping[str, np.ndarray[Any, Any]]

SAMPLES = 3
MOST_BYTES = 64 * 2**20


def samples_job(
    model: str, folder: str, data: dict[str, Any], options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Writes up to three inputs and what the reference makes of them below `folder/samples`.

    data: a `DataRequest`. Returns {"samples": [{"name", "inputs", "outputs"}], "why": ""}, or no samples and the
    reason: a random graph, or samples of more than 64 MiB.
    """
    home = Path(folder)
    request: Any = {**data, "samples": SAMPLES}
    random = stochastic_nodes(Path(model))
    if random:
        return {"samples": [], "why": f"the graph is random ({', '.join(random[:3])}), so no outputs can be expected"}
    reference = open_runtime(Path(model), dataclasses.replace(runtime_options(options), optimize=False))
    written: list[dict[str, str]] = []
    try:
        side = Side(reference, carry_of(data), "reference")
        used = 0
        for sample in itertools.islice(open_request(request, reference.inputs, model=Path(model)), SAMPLES):
            feeds = side.feeds(sample)
            outputs = side.predict(feeds, sample.name)
            side.keep(outputs)
            used += sum(array.nbytes for array in (*feeds.values(), *outputs.values()))
            if used > MOST_BYTES:
                break
            written.append(_save(home, len(written), sample.name, feeds, outputs))
    finally:
        reference.close()
    return {"samples": written, "why": "" if written else f"one sample has more than {MOST_BYTES >> 20} MiB"}


def _save(home: Path, number: int, name: str, feeds: Feeds, outputs: Feeds) -> dict[str, str]:
    (home / "samples").mkdir(exist_ok=True)
    entry = {"name": name, "inputs": f"samples/{number}.inputs.npz", "outputs": f"samples/{number}.outputs.npz"}
    np.savez(home / entry["inputs"], allow_pickle=False, **feeds)
    np.savez(home / entry["outputs"], allow_pickle=False, **outputs)
    return entry


def write_calibration(
    found: Calibration, request: Mapping[str, Any], inputs: Any, model: Path, home: Path
) -> dict[str, Any]:
    """The user's samples as the toolchain reads them, below `home/calibration`; their list, form and number."""
    folder = home / "calibration"
    folder.mkdir()
    limited: Any = {**request, "samples": request.get("samples") or found.samples}
    kept = [
        [_laid_out(sample.feeds[spec.name], found.layout) for spec in inputs]
        for sample in itertools.islice(open_request(limited, inputs, model=model), found.samples)
    ]
    if found.form == "stack":
        np.save(folder / "samples.npy", np.concatenate([arrays[0] for arrays in kept]), allow_pickle=False)
        return {"list": "calibration/samples.npy", "form": found.form, "samples": len(kept)}
    lines = []
    for number, arrays in enumerate(kept):
        entries = []
        for position, (spec, array) in enumerate(zip(inputs, arrays, strict=True)):
            path = f"calibration/{number}.{position}.{'raw' if found.form == 'raw' else 'npy'}"
            if found.form == "raw":
                (home / path).write_bytes(np.ascontiguousarray(array, "<f4").tobytes())
            else:
                np.save(home / path, array, allow_pickle=False)
            entries.append(found.line.format(name=spec.name, path=path))
        lines.append(found.joined.join(entries))
    (folder / "list.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"list": "calibration/list.txt", "form": found.form, "samples": len(kept)}


def _laid_out(array: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    """Channels last, where that is asked for and there are images [N, C, H, W]."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if layout == "nhwc" and array.ndim == 4 else array
