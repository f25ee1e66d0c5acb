"""docs/serving.md: its text, and the measurements of benchmarks/serving.json."""

import json
from pathlib import Path

HEADS = ["model, protocol", "clients", "server", "requests/s", "p50 ms", "p99 ms"]


def page(text: Path, data: Path) -> str:
    """The page; the text alone while nothing was measured."""
    found = text.read_text(encoding="utf-8")
    if not data.exists():
        return found.replace("<!-- table -->", "Not measured yet: `python benchmarks/serving.py --write`.")
    return found.replace("<!-- table -->", "\n".join(_lines(json.loads(data.read_text(encoding="utf-8")))))


def _lines(measured: dict) -> list[str]:
    lines = [
        f"`wrk` runs on the same {measured['cpus']} CPUs as the server. Medians of interleaved runs by",
        "`benchmarks/serving.py`. FastAPI is the server that people write themselves: one call of onnxruntime a",
        "request, on the event loop (`async def`) or on its thread pool (`def`).",
        "",
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
    ]
    for title, key in (("digits CNN, JSON", "digits"), ("ResNet-50 shape, binary", "resnet50")):
        for clients, row in measured[key].items():
            for name, run in row.items():
                if isinstance(run, dict):
                    times = [f"{run[key]:g}" if key in run else "" for key in ("p50_ms", "p99_ms")]
                    lines.append(f"| {title} | {clients} | {name} | {run['rps']:g} | {' | '.join(times)} |")
    digits, resnet = measured["digits"], measured["resnet50"]
    lines += ["", "Ratios, medians of pairs:", ""]
    for clients, row in digits.items():
        ratios = f"{row['ratio']:g} times FastAPI's `async def`, {row['ratio_def']:g} times its `def`"
        lines.append(f"- digits, {clients} clients: {ratios}.")
    for clients, row in resnet.items():
        lines.append(
            f"- ResNet-50 shape, {clients} clients: {row['share']:.0%} of the calls that onnxruntime alone makes in a "
            f"process (FastAPI: {row['share_fastapi']:.0%})."
        )
    if "rss_mb" in measured:
        sizes = measured["rss_mb"]
        lines.append(f"- Memory under load, minute by minute, in MB: {', '.join(f'{size:g}' for size in sizes)}.")
    return lines
