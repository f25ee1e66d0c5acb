"""Writes the build bundle of a described toolchain: checked and prepared model, samples, commands (in the worker)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.converters.bundles import folder
from deploykit.converters.bundles.commands import chosen, commands, script
from deploykit.converters.bundles.samples import samples_job, write_calibration
from deploykit.errors import UsageError
from deploykit.lazy import versions_of
from deploykit.toolchain import SCRIPTS, Description, load, own_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploykit.artifact import TensorSpec


def bundle_job(
    model: str,
    output: str,
    target: str,
    options: Mapping[str, Any],
    precision: str,
    data: dict[str, Any],
    check: Mapping[str, Any],
    tolerance: Mapping[str, Any],
    calib: Mapping[str, Any] | None = None,
    source: str | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Writes the folder `output`.

    model: the prepared ONNX. data: a `DataRequest` for samples with expected outputs. check: what was said of nodes.
    tolerance: within which the outputs are equal. calib: a `DataRequest` for the toolchain to quantize by. source: the
    model in its own form, where the toolchain reads that.
    Returns the facts of a `Product`. Raises UsageError (DK527) for an option, (DK596) for missing samples.
    """
    found = load(target)
    values = chosen(found, options)
    if found.calibration is not None and found.calibration.needed and calib is None:
        raise UsageError(
            f"{found.title} quantizes the model, and there are no samples to quantize by",
            code="DK596",
            target=target,
            hint="--calib DATA: a few dozen real inputs (random values give a model that is wrong)",
        )
    home = Path(output)
    home.mkdir()
    loaded = graph.load(Path(model))
    inputs, outputs = graph.interface(loaded)
    opset = graph.opset(loaded)
    samples: dict[str, Any] = {"samples": [], "why": "the toolchain reads the source itself"}
    if source is None:
        folder.save_model(loaded, home)
        samples = samples_job(str(home / folder.MODEL), str(home), data)
    else:
        shutil.copytree(source, home / "saved_model")
    read = folder.MODEL if source is None else "saved_model"
    calibration = None
    if calib is not None and found.calibration is not None:
        calibration = write_calibration(found.calibration, calib, inputs, Path(model), home)
    names = {"model": read, "stem": folder.STEM, **values}
    steps = commands(found, inputs, {**names, **({"calibration": calibration["list"]} if calibration else {})})
    folder.write_script(home, "run.sh", script(steps, found.title))
    if found.script:
        shutil.copyfile(_script(found), home / "build.py")
    _write_readme(found, home, steps, samples, calibration)
    facts = {
        "target": target,
        "title": found.title,
        "tool": found.tool,
        "sources": list(found.sources),
        "precision": precision,
        "opset": opset,
        "stem": folder.STEM,
        "model": read,
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "options": values,
        "calibration": calibration,
        "samples": samples["samples"],
        "tolerance": dict(tolerance),
        "makes": found.makes.format_map(names),
        "commands": steps,
        "check": dict(check),
        "instead": found.instead,
    }
    folder.write_facts(home, {**facts, "files": folder.listing(home)})
    return {
        "inputs": facts["inputs"],
        "outputs": facts["outputs"],
        "versions": versions_of("onnx", "onnxruntime"),
        "opset": opset,
        "findings": [],
        "summary": _summary(found, facts, inputs),
        "metrics": {
            "bundle": {key: facts[key] for key in ("makes", "tool", "commands", "calibration", "files") if key in facts}
        },
    }


def _script(found: Description) -> Path:
    ours = SCRIPTS / found.script
    return ours if ours.is_file() else own_folder() / found.script


def _summary(found: Description, facts: Mapping[str, Any], inputs: tuple[TensorSpec, ...]) -> str:
    """What is in the bundle, in one sentence for the report."""
    held = [f"{facts['model']} (opset {facts['opset']})" if facts["model"] == folder.MODEL else facts["model"]]
    if facts["samples"]:
        held.append(f"{len(facts['samples'])} inputs with expected outputs")
    if facts["calibration"]:
        held.append(f"{facts['calibration']['samples']} samples to quantize by")
    held.append("build.py and run.sh" if found.script else "run.sh")
    way = f"; {found.instead}" if found.instead else ""
    return f"it holds {', '.join(held)}; sh run.sh makes {facts['makes']} where {found.tool} is installed{way}"


def _write_readme(
    found: Description,
    home: Path,
    steps: list[dict[str, Any]],
    samples: Mapping[str, Any],
    calibration: Mapping[str, Any] | None,
) -> None:
    contents = {"run.sh": "the commands below, in order"}
    if found.script:
        contents["build.py"] = "what they call"
    if (home / folder.MODEL).is_file():
        contents[folder.MODEL] = "the model, checked and brought into the form that the toolchain takes"
    else:
        contents["saved_model"] = "the model as it was given"
    if samples["samples"]:
        contents["samples/"] = "inputs, and the outputs that the ONNX model gives for them (NumPy archives)"
    if calibration:
        contents["calibration/"] = f"{calibration['samples']} samples that the toolchain quantizes by"
    contents["bundle.json"] = "all of this for programs: interface, options, commands, the check's verdicts"
    intro = [
        f"A build bundle for {found.title}: it is built where {found.tool} is installed.",
        *([found.instead] if found.instead else []),
    ]
    text = folder.readme(found.title, intro, steps, contents, found.notes, found.sources)
    (home / "README.md").write_text(text, encoding="utf-8", newline="\n")
