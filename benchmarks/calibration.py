"""Calibration beside onnxruntime.quantization: time a sample over raw inference, memory by samples, the whole command.

Use: python benchmarks/calibration.py [--only MODEL]... [--method METHOD]... [--part PART]... [--rounds N] [--busy]

PART: time, memory or command. --busy: no wall-clock times, which say nothing on a machine that others use.

time: what a further sample costs, over a run of the float model in its default session in the same process, each sample
in turn. Twice: by the wall clock with the default threads, and in processor time with one thread, which other load on
the machine hardly touches. memory: high-water mark of a process that calibrates with few and with many samples.
command: `deploykit quantize`, which also compares the outputs, beside a script that calls quantize_static, 8 samples.
What onnxruntime keeps of 64 samples of BERT would be 17 GB, so its histogram methods get 8 and 16.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import simplify_models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Feeds = dict[str, np.ndarray]

ROOT = Path(__file__).resolve().parents[1]
REC = ROOT.parent / "shared" / "models" / "ppocr_v4" / "rec.onnx"
RESULT = Path(__file__).with_suffix(".json")
FEW, MANY, MANY_OF_HISTOGRAMS = 8, 64, 16
PEERS = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}
METHODS = ("auto", "minmax", "percentile", "entropy", "mse", "moving-average")


def _image(height: int, width: int) -> Callable[[np.random.Generator], Feeds]:
    return lambda rng: {"x": rng.standard_normal((1, 3, height, width), dtype=np.float32)}


def _tokens(rng: np.random.Generator) -> Feeds:
    ids = rng.integers(0, 30000, (1, 128))
    return {"ids": ids, "types": np.zeros_like(ids), "mask": np.ones_like(ids)}


FEEDS = {"resnet50": _image(224, 224), "bert_base": _tokens, "rec": _image(48, 320)}


def lay(name: str, folder: Path) -> Path | None:
    """The model and 64 samples beside it; None where it is not published here."""
    model = folder / f"{name}.onnx"
    if name == "rec":
        if not REC.exists():
            return None
        model.write_bytes(REC.read_bytes())
    else:
        getattr(simplify_models, name)(model)
    data = folder / name
    data.mkdir()
    rng = np.random.default_rng(0)
    for index in range(MANY):
        np.savez(data / f"{index:03}.npz", **FEEDS[name](rng))
    return model


def feeds_of(model: str, count: int) -> Iterator[Feeds]:
    """The first samples of the folder beside a model."""
    for path in sorted(Path(model).with_suffix("").glob("*.npz"))[:count]:
        with np.load(path) as file:
            yield dict(file)


class Interleaved:
    """Samples with a raw run before each; what passes between two samples is the calibration's."""

    def __init__(self, model: str, count: int, threads: int) -> None:
        self._clock = time.process_time if threads == 1 else time.perf_counter
        self._session = session_of(model, threads)
        self._model, self._count = model, count
        self.raw: list[float] = []
        self.calibration: list[float] = []

    def __iter__(self) -> Iterator[Feeds]:
        for feeds in feeds_of(self._model, self._count):
            self._session.run(None, feeds)  # brings the weights back into the caches
            started = self._clock()
            self._session.run(None, feeds)
            self.raw.append(self._clock() - started)
            started = self._clock()
            yield feeds
            self.calibration.append(self._clock() - started)

    def added(self, seconds: float) -> None:
        """More time of the calibration, after the last sample."""
        self.calibration[-1] += seconds

    def measure(self, work: Callable[[], object]) -> None:
        """Runs something after the last sample, on the clock."""
        started = self._clock()
        work()
        self.added(self._clock() - started)


def session_of(model: str, threads: int) -> Any:
    """A default session; 0 threads: as many as onnxruntime takes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def ours(model: str, samples: Any, method: str, threads: int) -> None:
    """Our calibration, with its thresholds on the clock, too."""
    from deploykit.data.samples import Sample
    from deploykit.quantize import taps
    from deploykit.quantize.plan import observable
    from deploykit.quantize.prepare import load_float

    module = sys.modules.get("deploykit.quantize.calibration") or __import__(
        "deploykit.quantize.calibration", fromlist=["Calibration"]
    )
    plain = taps._options  # the same number of threads on both sides
    if threads:

        def limited() -> Any:
            options = plain()
            options.intra_op_num_threads = threads
            return options

        taps._options, module.THREADS = limited, threads
    graph = load_float(Path(model))[0]
    names = observable(graph)
    sources = taps.sources_of(graph, names)
    with taps.tapped_session(graph, list(sources.values())) as session:
        stream = (Sample(feeds, None, "sample") for feeds in samples)
        run = module.Calibration(session, names, lambda: stream, total=MANY, carry={}, sources=sources)
        run.collect()
        _after(samples, lambda: run.ranges(method))


def theirs(model: str, samples: Any, method: str, threads: int) -> None:
    """The calibration of onnxruntime.quantization."""
    import onnxruntime as ort
    from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, create_calibrator

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = iter(samples)

        def get_next(self) -> Feeds | None:
            return next(self._feeds, None)

    with tempfile.TemporaryDirectory() as scratch:
        augmented = str(Path(scratch) / "augmented.onnx")
        made = create_calibrator(
            model, augmented_model_path=augmented, calibrate_method=getattr(CalibrationMethod, PEERS[method])
        )
        if threads:
            options = ort.SessionOptions()
            options.intra_op_num_threads = threads
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            made.infer_session = ort.InferenceSession(augmented, options, providers=["CPUExecutionProvider"])
        _collect(samples, lambda: made.collect_data(Reader()))
        _after(samples, made.compute_data)


def _collect(samples: Any, work: Callable[[], object]) -> None:
    """Histograms are made after the last sample: what is beyond the samples' own time belongs to them."""
    if not isinstance(samples, Interleaved):
        work()
        return
    clock = samples._clock
    started = clock()
    work()
    inside = sum(samples.calibration) + 2 * sum(samples.raw)
    samples.added(max(clock() - started - inside, 0.0))


def _after(samples: Any, work: Callable[[], object]) -> None:
    if isinstance(samples, Interleaved):
        samples.measure(work)
    else:
        work()


SIDES = {"deploykit": ours, "onnxruntime": theirs}


def child(what: str, side: str, model: str, method: str, count: int, threads: int) -> None:
    """One measurement in a process of its own; prints JSON."""
    if what == "memory":
        SIDES[side](model, list(feeds_of(model, count)) if side == "none" else feeds_of(model, count), method, 0)
        print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))
        return
    samples = Interleaved(model, count, threads)
    SIDES[side](model, samples, method, threads)
    print(json.dumps({"raw": samples.raw, "calibration": samples.calibration}))


def measured(*arguments: object) -> Any:
    """What a child printed."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def many(side: str, method: str) -> int:
    """Samples of the larger run."""
    return MANY_OF_HISTOGRAMS if side == "onnxruntime" and method != "minmax" else MANY


def marginal(side: str, model: Path, method: str, threads: int) -> float:
    """Time of a further sample over a raw run.

    Ours is looked at sample by sample, behind the first ones; a calibration that works at the end has to be compared
    with a shorter one.
    """
    long = measured("time", side, model, method, many(side, method), threads)
    raw = statistics.median(long["raw"])
    if side == "deploykit":
        return statistics.mean(long["calibration"][FEW:-1]) / statistics.mean(long["raw"][FEW:-1])
    short = measured("time", side, model, method, FEW, threads)
    more = sum(long["calibration"]) - sum(short["calibration"])
    return more / (len(long["calibration"]) - len(short["calibration"])) / raw


def few_of(model: Path) -> Path:
    """A folder that has the first samples only: with more of them the comparison takes those that did not calibrate."""
    folder = model.with_suffix(".few")
    folder.mkdir(exist_ok=True)
    for path in sorted(model.with_suffix("").glob("*.npz"))[:FEW]:
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def command(model: Path, method: str, side: str) -> dict[str, float]:
    """Seconds of the whole command with 8 samples, and of its processes on the processor."""
    out = str(model.with_suffix(".out.onnx"))
    if side == "deploykit":
        line = [
            str(Path(sys.executable).with_name("deploykit")),
            "quantize",
            str(model),
            "-o",
            out,
            "--force",
            "--quiet",
        ]
        line += [
            "--precision",
            "int8",
            "--calib",
            str(few_of(model)),
            "--method",
            method,
        ]
    else:
        line = [sys.executable, __file__, "--child", "static", "onnxruntime", str(model), method, str(FEW), "0"]
    started, before = time.perf_counter(), os.times()
    # Random images are no text: the comparison of rec may fail (exit 1), which takes as long.
    subprocess.run(line, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall": time.perf_counter() - started, "processor": busy}


def quantize_static(model: str, method: str, count: int) -> None:
    """What a user of onnxruntime.quantization writes."""
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._feeds = feeds_of(model, count)

        def get_next(self) -> Feeds | None:
            return next(self._feeds, None)

    chosen = {"per_channel": True, "activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    out = str(Path(model).with_suffix(".static.onnx"))
    quantize_static(model, out, Reader(), calibrate_method=getattr(CalibrationMethod, PEERS[method]), **chosen)


def rows_of(model: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model, printed as it comes."""
    rows: dict[str, Any] = {}
    for side in SIDES:
        for method in given.method or METHODS:
            if side == "onnxruntime" and method not in PEERS:
                continue
            row: dict[str, Any] = {}
            if "time" in given.part:
                for title, threads in (("processor", 1),) if given.busy else (("wall", 0), ("processor", 1)):
                    found = [marginal(side, model, method, threads) for _ in range(given.rounds)]
                    row[f"marginal_{title}"] = round(statistics.median(found), 2)
            if "memory" in given.part:
                counts = FEW, many(side, method)
                more = [
                    measured("memory", side, model, method, counts[1], 0)
                    - measured("memory", side, model, method, counts[0], 0)
                    for _ in range(given.rounds)
                ]
                row["more_mb"] = {"samples": counts, "median": round(statistics.median(more), 1)}
            rows[f"{side} {method}"] = row
            print(f"  {side:12} {method:15} {json.dumps(row)}", flush=True)
    if "command" in given.part:
        rows["command"] = commands(model, given)
    return rows


def commands(model: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The whole command of both sides in turn, by method."""
    rows = {}
    for method in given.method or PEERS:
        if method not in PEERS:
            continue
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(given.rounds):
            for side, times in found.items():
                times.append(command(model, method, side))
        rows[method] = {
            side: {clock: round(statistics.median(one[clock] for one in times), 2) for clock in ("wall", "processor")}
            for side, times in found.items()
        }
        print(f"  whole command, {method:12} {json.dumps(rows[method])}", flush=True)
    return rows


def main() -> None:
    """Runs, prints and records the comparison."""
    if sys.argv[1:2] == ["--child"]:
        what, side, model, method, count, threads = sys.argv[2:]
        if what == "static":
            quantize_static(model, method, int(count))
        else:
            child(what, side, model, method, int(count), int(threads))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=FEEDS, default=[])
    parser.add_argument("--method", action="append", choices=METHODS, default=[])
    parser.add_argument("--part", action="append", choices=("time", "memory", "command"), default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    given.part = given.part or ["time", "memory", "command"]
    rows = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in given.only or FEEDS:
        with tempfile.TemporaryDirectory() as scratch:
            model = lay(name, Path(scratch))
            if model is None:
                print(f"{name} is not there")
                continue
            print(name)
            for row, found in rows_of(model, given).items():
                rows.setdefault(name, {}).setdefault(row, {}).update(found)
            RESULT.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
