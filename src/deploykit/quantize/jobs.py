"""The work of `quantize`, as a job for a worker process: it takes and returns JSON, models travel as files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.data import digest_of, open_request
from deploykit.evaluation import make_metric
from deploykit.lazy import postpone_sympy
from deploykit.progress import OnProgress, silent
from deploykit.quantize.facts import facts_of, load_for_later
from deploykit.quantize.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    Job = Callable[[Path, Path, Settings, OnProgress], dict[str, Any]]

postpone_sympy()
# precision -> the function that makes it.
JOBS: dict[str, str] = {
    "int8": "deploykit.quantize.static:quantize_static",
    "int8-dynamic": "deploykit.quantize.dynamic:quantize_dynamic",
    "int8-weights": "deploykit.quantize.weight_only:quantize_weight_only",
    "int4-weights": "deploykit.quantize.int4:quantize_int4",
    "fp16": "deploykit.quantize.half_job:quantize_half",
    "bf16": "deploykit.quantize.half_job:quantize_bfloat16",
    "mixed": "deploykit.quantize.search:quantize_mixed",
}


def describe_job(model: str, data: str | None) -> dict[str, Any]:
    """What is to be known before the work: `model`, as `artifact_from_dict` takes it, and the digest of the DATA.

    Raises as `graph.describe` and `digest_of` do.
    """
    path = Path(model)
    found = graph.describe(path, load_for_later(path))
    more = {"stage": found.stage, "options": found.options, "tool_versions": found.tool_versions}
    return {
        "model": {**found.as_dict(), **more, "files": list(found.files), "companions": list(found.companions)},
        "data_sha256": "" if data is None else digest_of(data, Path.cwd()),
    }


def quantize_job(
    model: str,
    output: str,
    precision: str,
    settings: dict[str, Any],
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Writes the quantized model at `output`; settings as `Settings.as_dict` has them. Returns `Product` facts.

    Raises UsageError and DataError for a metric and labels that cannot be scored, and as the job of the precision does.
    """
    module, _, name = JOBS[precision].partition(":")
    job: Job = getattr(importlib.import_module(module), name)
    asked = Settings.from_dict(settings)
    _check_accuracy(Path(model), asked)
    return job(Path(model), Path(output), asked, on_progress)


def _check_accuracy(source: Path, settings: Settings) -> None:
    """Refuses a metric or labels that cannot be scored before minutes of calibration, not after them."""
    if settings.accuracy is None:
        return
    make_metric(settings.accuracy["metric"], (source,))
    open_request(settings.accuracy["data"], facts_of(source).inputs, source)
