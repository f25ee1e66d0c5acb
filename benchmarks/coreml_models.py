"""Converts published models and the model zoo to Core ML, in fp32 and fp16, and compares the packages' values.

python benchmarks/coreml_models.py [--keep FOLDER] [--fp32] [WORD...]   # writes coreml_models.json, a table in docs/

WORD: only models whose name contains it; the other rows stay as they are. --keep: where the zoo's ONNX files stay, and
are taken from when they are there. Rows are written as they come. Published models lie beside the checkout; the
zoo (zoo.py) is made here, exported by both of PyTorch's exporters. The values are simulated: deploykit's interpreter of
ML Programs, no Mac. References: onnxruntime without graph optimisation, and for the zoo PyTorch itself.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.modules.update(dict.fromkeys(("torch", "transformers", "tensorflow", "sklearn", "xgboost")))  # other front-ends

import zoo  # noqa: E402

from deploykit import graph  # noqa: E402
from deploykit.converters.coreml.convert import convert_job  # noqa: E402
from deploykit.converters.coreml.runtime import SimulatedRuntime  # noqa: E402
from deploykit.data import open_request  # noqa: E402
from deploykit.data.request import data_request  # noqa: E402
from deploykit.parity import TOLERANCES  # noqa: E402
from deploykit.reference import Reference  # noqa: E402

# fp16 is measured by running a network many times: of the largest one it is left out by --fp32.
PRECISIONS = ("fp32",) if "--fp32" in sys.argv else ("fp32", "fp16")
ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "coreml_models.json"
MODELS = ROOT.parent / "shared" / "models"


def published():
    """{file: dims} of the published models, as the tests have them; and the names of those that give probabilities."""
    file = ROOT / "tests" / "converters" / "coreml" / "test_models.py"
    spec = importlib.util.spec_from_file_location("test_models", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MODELS | {name: dims for name, (_, dims) in module.REFUSED.items()}, module.PROBABILITIES


def difference(made, expected, least=0.0):
    """Largest difference as a share of the largest reference value (at `least`); None where the shapes differ."""
    worst = 0.0
    for have, want in zip(made, expected, strict=True):
        if have.shape != want.shape:
            return None
        if np.isnan(have.astype(np.float64)).any():
            return float("inf")
        if want.size:
            peak = max(float(np.abs(want.astype(np.float64)).max()), least) or 1.0
            worst = max(worst, float(np.abs(have.astype(np.float64) - want).max()) / peak)
    return worst


def within(made, expected, precision, least=0.0):
    """Whether every element keeps to the tolerance of the precision."""
    row = TOLERANCES[precision]
    for have, want in zip(made, expected, strict=True):
        limit = row.rtol * np.abs(want) + row.atol_factor * np.abs(want).max(initial=least)
        if have.shape != want.shape or not (np.abs(have.astype(np.float64) - want) <= limit).all():
            return False
    return True


def judged(path, dims, samples, calib, folder, least=0.0):
    """A row. samples: [(feeds, [outputs of a reference beside onnxruntime])]. calib: what fp16 is measured on."""
    row = {}
    reference = Reference(path)
    expected = [list(reference.predict(feeds).values()) for feeds, _ in samples]
    for precision in PRECISIONS:
        package = Path(folder) / f"{path.stem}-{precision}.mlpackage"
        options = {"compute_precision": "fp16"} if precision == "fp16" else {}
        result = convert_job(str(path), str(package), options, dims, {}, "fp32", calib if options else None)
        refused = [
            {"node": f.get("node"), "op": f.get("op"), "message": f["message"]}
            for f in result["findings"]
            if f["severity"] == "error" and "depends on a node that is refused" not in f["message"]
        ]
        if refused:
            return {"refused": refused}
        runtime = SimulatedRuntime(package)
        names = list(reference.predict(samples[0][0]))
        found, passed = [], True
        for (feeds, other), wanted in zip(samples, expected, strict=True):
            values = runtime.predict(feeds)
            made = [values[name] for name in names]
            for against in (wanted, *([other] if other else [])):
                found.append(difference(made, against, least))
                passed = passed and within(made, against, precision, least)
        worst = None if None in found else float(f"{max(found):.1e}")
        row[precision] = {"difference": worst, "passed": passed}
        if precision == "fp32":
            row["operators"] = sum(result["metrics"]["operators"].values())
        else:
            row["kept_fp32"] = len(result["metrics"]["compute_precision"]["kept_fp32"])
    return row


def published_row(name, dims, folder, least):
    """A published model on random inputs."""
    path = MODELS / name
    inputs, _ = graph.interface(graph.load(path))
    request = data_request(None, "parity", samples=2, dims=dims)
    samples = [(sample.feeds, None) for sample in open_request(request, inputs, model=path)]
    return judged(path, dims, samples, request, folder, least)


def zoo_row(variant, folder, scratch):
    """A variant of the zoo on its own feeds. folder: of its ONNX. scratch: for packages."""
    path = folder / f"{zoo.stem(*variant)}.onnx"
    name, exporter, dynamic = variant
    row = {"title": zoo.ZOO[name].title, "asked": zoo.ZOO[name].asked, "exporter": exporter, "dynamic": dynamic}
    dims = zoo.ZOO[name].bounds(exporter, dynamic)
    row["varying"] = list(dims)
    if not path.exists():
        return row | {"not_exported": path.with_suffix(".txt").read_text(encoding="utf-8")}
    held = folder / f"{path.stem}.feeds"
    samples = []
    for file in sorted(held.iterdir()):
        outputs = np.load(folder / f"{path.stem}.torch" / file.name)
        samples.append((dict(np.load(file)), [outputs[key] for key in outputs.files]))
    return row | judged(path, dims, samples, data_request(str(held), "parity", dims=dims), scratch)


def main(words, kept_in=None):
    """Writes the rows, and prints them as they come."""

    def asked(name):
        return not words or any(word in name for word in words)

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(kept_in or scratch)
        variants = [variant for variant in zoo.variants() if asked(zoo.stem(*variant))]
        names = dict.fromkeys(name for name, *_ in variants)
        if names:
            # In a process of its own: PyTorch is kept out of this one, where coremltools would load it.
            subprocess.run([sys.executable, Path(__file__).with_name("zoo.py"), folder, *names], check=True)
        for variant in variants:
            write("zoo", zoo.stem(*variant), zoo_row(variant, folder, scratch))
        models, probabilities = published()
        for name, dims in models.items():
            if asked(name) and MODELS.exists():
                write("published", name, published_row(name, dims, scratch, float(name in probabilities)))


def write(kind, name, row):
    """One row more in the file, which stays in the order of the tables."""
    print(name, row, flush=True)
    kept = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {"published": {}, "zoo": {}}
    kept[kind][name] = row
    order = {zoo.stem(*variant): at for at, variant in enumerate(zoo.variants())}
    rows = {key: kept["zoo"][key] for key in sorted(kept["zoo"], key=order.__getitem__)}
    text = json.dumps({"published": dict(sorted(kept["published"].items())), "zoo": rows}, indent=1)
    OUT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    given = sys.argv[1:]
    keep = given[given.index("--keep") + 1] if "--keep" in given else None
    main([word for word in given if word not in ("--keep", keep, "--fp32")], keep)
