"""Simplifying: the native engine beside onnxsim and onnxslim, and the whole verified command beside the faster of them.

Use: python benchmarks/simplify.py [--rounds N] [--only NAME]...

Engines alone are a fresh Python that reads, simplifies and writes the file, without comparing anything. The command is
`deploykit simplify`, which also compares the result with the original. Peak memory is that of all processes of a run
together: their resident sets, which count a page of a library once for each process that maps it, and, from one more
run that is not timed, their proportional sets (PSS, Linux), which count it once. Both sides are measured both ways.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import simplify_models
from timing import interleaved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[1]
MODELS = ROOT.parent / "shared" / "models"
RESULT = Path(__file__).with_suffix(".json")
BLOCK = "import sys; sys.modules.update(torch=None, tensorflow=None);"
ENGINES = {
    "onnxslim": f"{BLOCK} import onnx, onnxslim; onnx.save(onnxslim.slim(onnx.load(sys.argv[1])), sys.argv[2])",
    "onnxsim": f"{BLOCK} import onnx, onnxsim; onnx.save(onnxsim.simplify(onnx.load(sys.argv[1]))[0], sys.argv[2])",
    "native": f"{BLOCK} from deploykit.optimizers.engines import native_job; native_job(sys.argv[1], sys.argv[2])",
}
MIB = 1 << 20


def resident(process: psutil.Process) -> int:
    """Bytes of a process in memory, pages that others map, too, included."""
    return int(process.memory_info().rss)


def proportional(process: psutil.Process) -> int:
    """Bytes of a process in memory, its share of pages that others map, too; `memory_full_info` takes longer."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def measured(
    command: Sequence[str], peaks: list[int], work: list[float], size: Callable[[psutil.Process], int] = resident
) -> float:
    """Seconds of a run. Its peak memory in MiB and its processor seconds, of all its processes, are appended."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            try:
                root = psutil.Process(process.pid)
                tree = [root, *root.children(recursive=True)]
            except psutil.Error:
                continue
            total = 0
            for one in tree:
                with contextlib.suppress(psutil.Error, OSError, StopIteration):  # it ended meanwhile
                    total += size(one)
            peak = max(peak, total)

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = code
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    if code:
        raise subprocess.CalledProcessError(code, command)
    peaks.append(peak // MIB)
    work.append(usage.ru_utime + usage.ru_stime)
    return seconds


def models(folder: Path) -> dict[str, Path]:
    """By name: the published ones where they are present, and two that are made here."""
    found = {
        path.stem: path
        for path in (
            MODELS / "digits" / "digits_cnn.onnx",
            MODELS / "silero_vad" / "silero_vad.onnx",
            MODELS / "ppocr_v4" / "rec.onnx",
            MODELS / "ppocr_v4" / "det.onnx",
        )
        if path.exists()
    }
    for name in ("resnet50", "bert_base"):
        found[name] = folder / f"{name}.onnx"
        getattr(simplify_models, name)(found[name])
    return found


def main() -> None:
    """Runs, prints and records the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args()
    deploykit = str(Path(sys.executable).with_name("deploykit"))
    rows = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, path in models(Path(scratch)).items():
            if given.only and name not in given.only:
                continue
            out = str(Path(scratch) / "out.onnx")
            command = [deploykit, "simplify", str(path), "-o", out, "--force", "--quiet"]
            peaks: dict[str, list[int]] = {}
            work: dict[str, list[float]] = {}
            shared: dict[str, list[int]] = {}
            sides: dict[str, Callable[[], float]] = {}
            for side, line in {
                **{engine: [sys.executable, "-c", code, str(path), out] for engine, code in ENGINES.items()},
                "command": command,
                "command, native": [*command, "--engine", "native"],
            }.items():
                peaks[side], work[side] = [], []
                sides[side] = functools.partial(measured, line, peaks[side], work[side])
                shared[side] = []
                if sys.platform == "linux":
                    measured(line, shared[side], [], proportional)
            times = interleaved(sides, given.rounds)
            rows[name] = report(name, path, times, work, peaks, shared)
            RESULT.write_text(json.dumps(rows, indent=1) + "\n")


def report(
    name: str,
    path: Path,
    times: dict[str, list[float]],
    work: dict[str, list[float]],
    peaks: dict[str, list[int]],
    shared: dict[str, list[int]],
) -> dict[str, object]:
    """Prints a model's table; returns it."""
    size = path.stat().st_size / MIB
    print(f"{name}, {size:.1f} MiB")
    median = {side: statistics.median(values) for side, values in times.items()}
    busy = {side: statistics.median(values) for side, values in work.items()}
    for side, values in times.items():
        seconds = f"{median[side]:7.2f} s (min {min(values):.2f})   processor {busy[side]:6.2f} s"
        print(f"  {side:16} {seconds}   peak {max(peaks[side])} MiB, PSS {max(shared[side], default=0)} MiB")
    faster = min("onnxsim", "onnxslim", key=lambda side: median[side])
    ratio = statistics.median(a / b for a, b in zip(times["native"], times[faster], strict=True))
    works = statistics.median(a / b for a, b in zip(work["native"], work[faster], strict=True))
    later = {
        side: statistics.median(a - b for a, b in zip(times[side], times[faster], strict=True))
        for side in ("command", "command, native")
    }
    print(f"  native / {faster}: {ratio:.2f}, by processor time {works:.2f}")
    print(f"  the command takes {later['command']:+.2f} s against {faster}")
    bound = 3 * size + 300e6 / MIB
    print(f"  peak of the command: {max(peaks['command'])} MiB; 3 times the model and 300 MB: {bound:.0f} MiB\n")
    return {
        "mib": round(size, 1),
        "seconds": {side: round(value, 2) for side, value in median.items()},
        "processor_seconds": {side: round(value, 2) for side, value in busy.items()},
        "peak_mib": {side: max(values) for side, values in peaks.items()},
        "peak_pss_mib": {side: max(values) for side, values in shared.items() if values},
        "native_over_faster": round(ratio, 2),
        "native_over_faster_in_processor_seconds": round(works, 2),
        "command_minus_faster": {side: round(value, 2) for side, value in later.items()},
    }


if __name__ == "__main__":
    main()
