"""Latency of the models that the quantization benchmark made, against their float models, on onnxruntime and OpenVINO.

Every side runs in a process of its own that is kept; the sides take turns, so that what disturbs the machine hits all
alike. A ratio is the median over rounds of float seconds over the candidate's: above 1 the candidate is faster.

python benchmarks/quantization_latency.py ENGINE MODEL FEED.npz   # one side: a line on stdin is a round
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

ROUNDS = 7
ROUND_S = 0.2
# The recipes whose latency says something: one of each form of graph.
TIMED = (
    *("int8 auto", "int8 openvino", "int8 tensorrt-rtx", "int8 search", "int8-dynamic", "int8-weights"),
    *("int4-weights auto", "fp16"),
    *(
        "onnxruntime minmax U8S8",
        "onnxruntime percentile U8S8",
        "onnxruntime percentile S8S8",
        "onnxruntime dynamic",
        "NNCF PTQ",
    ),
)
OPENVINO = frozenset({"int8 auto", "int8 openvino", "int8-weights", "int4-weights auto", "NNCF PTQ"})


class Side:
    """One engine with one model."""

    def __init__(self, engine: str, model: Path, feed: Path) -> None:
        command = [sys.executable, __file__, engine, str(model), str(feed)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.round()  # loaded and warm

    def round(self) -> float:
        """Median seconds of a call in one round; RuntimeError when the engine refuses the model."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            return float(self._process.stdout.readline())
        except (ValueError, OSError) as problem:
            raise RuntimeError("it does not run") from problem

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


def measure(
    name: str,
    folder: Path,
    cells: dict[str, Any],
    keep: Callable[[str, str, dict[str, Any]], None],
    recipes: Collection[str],
) -> None:
    """Adds `latency_ratio` (onnxruntime) and `openvino_latency_ratio` to the cells of one model, of these recipes."""
    from quantization_peers_setup import slug

    feed = next(iter(sorted((folder / "eval").glob("*.npz"))))
    for engine, key in (("onnxruntime", "latency_ratio"), ("openvino", "openvino_latency_ratio")):
        float_side = Side(engine, folder / "model.onnx", feed)
        for recipe in TIMED:
            path = folder / "made" / f"{slug(recipe)}.onnx"
            if recipe not in recipes or recipe not in cells or "failed" in cells[recipe] or not path.exists():
                continue
            if engine == "openvino" and recipe not in OPENVINO:
                continue
            try:
                candidate = Side(engine, path, feed)
            except RuntimeError:
                cells[recipe][key] = None
                continue
            ratios = [float_side.round() / candidate.round() for _ in range(ROUNDS)]
            candidate.close()
            cells[recipe][key] = round(statistics.median(ratios), 3)
            print(f"{name:16} {recipe:28} {engine:12} {cells[recipe][key]:.2f}", flush=True)
            keep(name, recipe, cells[recipe])
        float_side.close()


def call_of(engine: str, model: Path) -> Callable[[dict[str, np.ndarray]], object]:
    """A function that runs the model once."""
    if engine == "openvino":
        import openvino as ov

        core = ov.Core()
        request = core.compile_model(core.read_model(model), "CPU").create_infer_request()
        return request.infer
    import onnxruntime as ort

    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    types = {value.name: value.type for value in session.get_inputs()}

    def run(feeds: dict[str, np.ndarray]) -> object:
        return session.run(None, feeds)

    def cast(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {k: v.astype(np.float16) if types[k] == "tensor(float16)" else v for k, v in feeds.items()}

    run.cast = cast  # type: ignore[attr-defined]
    return run


def main() -> None:
    """One side."""
    engine, model, feed = sys.argv[1:]
    with np.load(feed) as file:
        feeds = {name: array for name, array in file.items() if name != "y"}
    run = call_of(engine, Path(model))
    feeds = getattr(run, "cast", dict)(feeds)
    for _ in range(3):
        run(feeds)
    for _ in sys.stdin:
        seconds, until = [], time.perf_counter() + ROUND_S
        while not seconds or time.perf_counter() < until:
            started = time.perf_counter()
            run(feeds)
            seconds.append(time.perf_counter() - started)
        print(statistics.median(seconds), flush=True)


if __name__ == "__main__":
    main()
