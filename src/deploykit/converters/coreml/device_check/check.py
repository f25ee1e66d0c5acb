"""Runs the package beside this folder on Core ML, and compares it with the outputs of the ONNX model it was made from.

On a Mac, after `pip install coremltools numpy` (and pillow, where the package takes images):

    python check.py                        # every compute unit
    python check.py --unit cpu --unit npu  # cpu, gpu, npu or all
    python check.py --package other.mlpackage

Prints a row for each compute unit and output; exit code 0 when all are within the limits of check.json, 1 when one is
not, 3 where Core ML is not. Written by deploykit; it needs nothing of it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Loader = Callable[[Path, str], Any]

UNITS = {"cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "npu": "CPU_AND_NE", "all": "ALL"}
FORMAT = "deploykit.check/1"


class NotHereError(Exception):
    """Core ML is not on this machine."""


def load(package: Path, unit: str) -> Any:
    """The package as a `coremltools.models.MLModel` on that compute unit. Raises NotHereError."""
    if sys.platform != "darwin":
        message = "Core ML runs on Apple systems only: copy this folder and the package to a Mac"
        raise NotHereError(message)
    try:
        import coremltools as ct
    except ImportError as problem:
        message = "coremltools is not installed: pip install coremltools"
        raise NotHereError(message) from problem
    return ct.models.MLModel(str(package), compute_units=ct.ComputeUnit[unit])


def read(folder: Path, tensor: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """A saved array: little-endian values in C order."""
    values = np.fromfile(folder / tensor["file"], np.dtype(tensor["dtype"]).newbyteorder("<"))
    return values.reshape(tensor["shape"])


def feeds(folder: Path, check: Mapping[str, Any], sample: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a sample as `predict` takes them: arrays, and pictures for images."""
    given: dict[str, Any] = {}
    for name, tensor in sample["inputs"].items():
        array = read(folder, tensor)
        if check["inputs"][name]["kind"] == "image":
            from PIL import Image

            given[name] = Image.fromarray(array)
        else:
            given[name] = array
    return given


def values_of(output: Mapping[str, Any], name: str, made: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """An output as numbers; of a classifier the values by label, once its label is one with the largest value."""
    if output["kind"] != "classes":
        return np.asarray(made[name], np.float64)
    table = made[output["values"]]
    if set(table) != set(output["labels"]):
        message = f"{output['values']} has other labels"
        raise ValueError(message)
    found = np.asarray([table[label] for label in output["labels"]], np.float64)
    told = made[output["label"]]
    label = told.item() if isinstance(told, (np.ndarray, np.generic)) else told
    if table[label] != found.max():
        message = f"{output['label']} is {label!r}, which has not the largest value"
        raise ValueError(message)
    return found


class Comparison:
    """One output over all samples, by the limits of check.json."""

    def __init__(self, limits: Mapping[str, Any], *, exact: bool) -> None:
        """exact: integers and booleans have to be equal."""
        self.limits = limits
        self.exact = exact
        self.pairs: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self.fault = ""

    def add(self, expected: np.ndarray[Any, Any], made: np.ndarray[Any, Any]) -> None:
        """One sample."""
        if made.size != expected.size:
            self.fault = f"it has {made.size} values, {expected.size} are expected"
        else:
            self.pairs.append((expected.astype(np.float64).ravel(), made.astype(np.float64).ravel()))

    def result(self) -> tuple[bool, float, float]:
        """Whether it is within the limits, the largest difference, and the ratio of signal to noise in dB."""
        if self.fault or not self.pairs:
            return False, math.nan, math.nan
        expected = np.concatenate([pair[0] for pair in self.pairs])
        made = np.concatenate([pair[1] for pair in self.pairs])
        if not (np.isfinite(expected).all() and np.isfinite(made).all()):
            self.fault = "NaN or infinite values"
            return False, math.nan, math.nan
        away = np.abs(made - expected)
        largest = float(away.max(initial=0.0))
        noise, signal = float((away**2).sum()), float((expected**2).sum())
        decibels = math.inf if noise == 0 else -math.inf if signal == 0 else 10 * math.log10(signal / noise)
        if self.exact:
            return largest == 0, largest, decibels
        passed = True
        if self.limits["rtol"] is not None:
            floor = (self.limits["atol_factor"] or 0.0) * float(np.abs(expected).max(initial=0.0))
            passed = bool((away <= self.limits["rtol"] * np.abs(expected) + floor).all())
        if self.limits["min_sqnr_db"] is not None:
            passed = passed and decibels >= self.limits["min_sqnr_db"]
        return passed, largest, decibels


def on_unit(folder: Path, check: Mapping[str, Any], model: Any) -> dict[str, Comparison]:
    """Every output of every sample on a loaded package."""
    found = {name: Comparison(check["limits"], exact=output["exact"]) for name, output in check["outputs"].items()}
    for sample in check["samples"]:
        made = model.predict(feeds(folder, check, sample))
        for name, output in check["outputs"].items():
            expected = read(folder, sample["outputs"][name])
            try:
                found[name].add(expected, values_of(output, name, made))
            except (KeyError, ValueError) as problem:
                found[name].fault = f"{type(problem).__name__}: {problem}"
    return found


def main(arguments: Sequence[str] | None = None, loader: Loader = load) -> int:
    """The exit code; loader: what opens the package."""
    folder = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Compares the package with the saved outputs of its ONNX model.")
    parser.add_argument("--folder", type=Path, default=folder, help="where check.json is; beside this script")
    parser.add_argument("--package", type=Path, help="another package than the one beside the folder")
    parser.add_argument("--unit", action="append", choices=list(UNITS), help="compute unit; every one when left out")
    given = parser.parse_args(arguments)
    check = json.loads((given.folder / "check.json").read_text(encoding="utf-8"))
    if check["format"] != FORMAT:
        print(f"check.json is {check['format']}, and this script reads {FORMAT}", file=sys.stderr)
        return 2
    package = given.package or given.folder.parent / check["package"]
    limits = check["limits"]
    print(f"{package.name}: {len(check['samples'])} samples, limits of {limits['row']}: {limits['text']}")
    print(f"{'unit':<12} {'output':<24} {'max abs':>10} {'SQNR dB':>9}")
    passed = True
    for unit in given.unit or UNITS:
        try:
            rows = on_unit(given.folder, check, loader(package, UNITS[unit]))
        except NotHereError as problem:
            print(problem, file=sys.stderr)
            return 3
        except Exception as problem:  # what Core ML raises has no class of its own; the other units still count
            print(f"{UNITS[unit]:<12} failed: {problem}")
            passed = False
            continue
        for name, comparison in rows.items():
            good, largest, decibels = comparison.result()
            passed = passed and good
            told = "" if good else f"  FAILED {comparison.fault}"
            print(f"{UNITS[unit]:<12} {name:<24} {largest:>10.3g} {decibels:>9.1f}{told}")
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
