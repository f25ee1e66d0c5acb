"""Writes the build bundle of TensorRT: all that a machine with a GPU needs, and nothing to decide (in the worker)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.converters.bundles import folder
from deploykit.converters.bundles.commands import script
from deploykit.converters.bundles.samples import samples_job
from deploykit.converters.profiles import resolve_sets
from deploykit.converters.tensorrt.engine import OptionError
from deploykit.converters.tensorrt.options import lacking, settings
from deploykit.converters.tensorrt.symbols import contradicted, told, without
from deploykit.converters.tensorrt.trtexec import command
from deploykit.lazy import versions_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.converters.profiles import ProfileSets

NAME = "tensorrt"
_HERE = Path(__file__).parent
_PROGRAMS = {"build.py": "build.py"} | {f"{name}.py": f"trt_{name}.py" for name in ("engine", "execution", "device")}
_SOURCES = (
    "https://docs.nvidia.com/deeplearning/tensorrt/11.0.0/api/migration/tensorrt-10x-to-11x-trtexec.html",
    "https://docs.nvidia.com/deeplearning/tensorrt/11.0.0/api/migration/tensorrt-8x-to-10x-trtexec.html",
)


def bundle_job(
    model: str,
    output: str,
    version: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: ProfileSets,
    precision: str,
    data: dict[str, Any],
    check: Mapping[str, Any],
    tolerance: Mapping[str, Any],
    **_: Any,
) -> dict[str, Any]:
    """Writes the folder `output`; see `bundles.convert.bundle_job` for the arguments. version: of TensorRT, `10.16`.

    Returns the facts of a `Product`. Raises UsageError (DK527, DK592) for options, for trtexec's of that version too.
    """
    loaded = graph.load(Path(model))
    inputs, outputs = graph.interface(loaded)
    chosen = settings(options, NAME)
    if "timing_cache" in chosen:  # a file of that machine
        chosen["timing_cache"] = Path(chosen["timing_cache"]).name
    sets, findings = resolve_sets(inputs, dims, profiles, target=NAME)
    home = Path(output)
    home.mkdir()
    plugins = []
    if options.get("custom_ops"):
        library = Path(options["custom_ops"])
        shutil.copyfile(library, home / library.name)
        plugins.append(f"./{library.name}")
    try:
        line = command(tuple(map(int, version.split("."))), sets, chosen, precision, plugins=plugins)
    except OptionError as problem:
        raise lacking(problem, NAME) from problem
    apart = contradicted(inputs, sets)
    findings += told(apart, NAME)
    with without(model, apart) as named:
        folder.save_model(graph.load(Path(named)), home)
    samples = samples_job(str(home / folder.MODEL), str(home), data)
    steps = [{"about": f"builds the engine with trtexec of TensorRT {version}", "run": line}]
    folder.write_script(home, "trtexec.sh", script(steps, f"TensorRT {version}"))
    for ours, name in _PROGRAMS.items():
        shutil.copyfile(_HERE / ours, home / name)
    (home / "profiles.json").write_text(json.dumps(sets, indent=1) + "\n", encoding="utf-8")
    (home / "check.json").write_text(json.dumps(check, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _write_readme(home, version, steps, bool(samples["samples"]), check)
    facts = {
        "target": NAME,
        "title": f"TensorRT {version}",
        "version": version,
        "tool": f"TensorRT {version} with a GPU",
        "sources": list(_SOURCES),
        "precision": precision,
        "opset": graph.opset(loaded),
        "stem": folder.STEM,
        "model": folder.MODEL,
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "options": {name: value for name, value in options.items() if name not in ("custom_ops", "version")},
        "settings": chosen,
        "profiles": sets,
        "plugins": plugins,
        "calibration": None,
        "samples": samples["samples"],
        "tolerance": dict(tolerance),
        "makes": "model.engine",
        "commands": steps,
        "check": dict(check),
    }
    folder.write_facts(home, {**facts, "files": folder.listing(home)})
    held = f"{len(samples['samples'])} inputs with expected outputs" if samples["samples"] else samples["why"]
    return {
        "inputs": facts["inputs"],
        "outputs": facts["outputs"],
        "versions": versions_of("onnx", "onnxruntime"),
        "opset": facts["opset"],
        "findings": [finding.as_dict() for finding in findings],
        "summary": (
            f"it holds {folder.MODEL} ({precision}, opset {facts['opset']}), profiles.json ({len(sets)} profile(s)), "
            f"{held}, trtexec.sh for TensorRT {version}, and build.py, which builds the engine where the GPU is and "
            "compares it there"
        ),
        "metrics": {"bundle": {"version": version, "commands": steps, "profiles": sets, "check": dict(check)}},
    }


def _write_readme(
    home: Path, version: str, steps: Sequence[Mapping[str, Any]], verified: bool, check: Mapping[str, Any]
) -> None:
    contents = {
        "build.py": "builds the engine with the Python package tensorrt, and compares it with the expected outputs",
        "trt_engine.py, trt_execution.py, trt_device.py": "what build.py uses: builder, execution, driver",
        "trtexec.sh": f"the same build by trtexec of TensorRT {version}, without the comparison",
        folder.MODEL: "the model; its precision is in its types, casts and Q/DQ",
        "profiles.json": "smallest, usual and largest shapes of each profile",
        "check.json": f"what {check.get('source', 'the operator table')} says of the nodes",
        "bundle.json": "all of this for programs",
    }
    if verified:
        contents["samples/"] = "inputs, and the outputs that the ONNX model gives for them (NumPy archives)"
    first = {"about": "builds and compares (exit code 0: equal)", "run": ["python3", "build.py"]}
    intro = [
        "A build bundle: the engine was NOT built where this was written, because there was no GPU or no TensorRT.",
        f"On the machine that is to run it, with TensorRT {version} and NumPy:",
    ]
    notes = [
        "An engine runs with the version that built it, on GPUs like the one that it was built on.",
        "build.py works with TensorRT 8.6 to 11: it asks the package what it has, and refuses an option that it lacks.",
        "The second step is another way to the same engine; one of the two is enough.",
    ]
    text = folder.readme(f"TensorRT {version}", intro, [first, *steps], contents, notes, _SOURCES)
    (home / "README.md").write_text(text, encoding="utf-8", newline="\n")
