"""`deploykit simplify`: fewer nodes, equal outputs, never a larger file for no reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from deploykit import graph, io
from deploykit.data.specs import parse_fixed_dim
from deploykit.errors import UsageError
from deploykit.isolation import workers
from deploykit.progress import OnProgress, silent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.report import Report


def simplify(
    model: str | Path,
    *,
    output: str | Path,
    engine: Literal["auto", "native", "onnxsim", "onnxslim"] = "auto",
    max_growth: float = 1.05,
    dims: Iterable[str] | Mapping[str, int] = (),
    fuse: bool = False,
    force: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Simplifies an ONNX model; a result is used only when its interface and outputs are those of the original.

    engine: "auto" tries all and takes the smallest (nodes that compute, then bytes). max_growth: of the file.
    dims: numbers for symbolic dimensions, `batch=1`. Without a gain the original is written, and the report says so.
    fuse: also onnxruntime's transformer fusions, for models that are to run there and nowhere else; kept when proven.
    Returns a report with metrics "engine" ("none" when the original was kept), "nodes" and "bytes" (before, after), and
    with fuse "fusions" ({operator: count}).
    Raises ModelError and InvalidFileError for the input, UsageError (DK604, DK620) for options, OutputError,
    MissingDependencyError, and with one engine VendorError when it fails.
    """
    from deploykit.optimizers.candidates import ENGINES, described, warm

    if engine != "auto" and engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r}", code="DK604", hint=f"auto, {', '.join(ENGINES)}")
    if max_growth < 1:
        raise UsageError(f"--max-growth {max_growth:g} is below 1", code="DK604", hint="--max-growth 1.05")
    path = Path(model)
    target = io.check_output(Path(output), force=force, suffix=".onnx")
    graph.check_kind(path)
    with workers() as pool:
        warm(pool, engine, path.stat().st_size)
        # The processes start while these are imported.
        from deploykit.optimizers.stage import SimplifyStage
        from deploykit.stage import run_stage

        original = described(path)
        sizes: dict[str, int] = dict(dims) if isinstance(dims, Mapping) else dict(map(parse_fixed_dim, dims))
        _check_dims(sizes, original.inputs)
        return run_stage(
            SimplifyStage(engine, max_growth, sizes, seed, fuse=fuse),
            {"model": original},
            target,
            force=force,
            on_progress=on_progress,
        )


def _check_dims(sizes: Mapping[str, int], inputs: Sequence[TensorSpec]) -> None:
    symbols = list(dict.fromkeys(dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)))
    for name in sizes:
        if name not in symbols:
            raise UsageError(
                f"the model has no symbolic dimension {name!r}",
                code="DK620",
                context=[f"it has: {', '.join(symbols) or 'none'}"],
                hint=f"--dim {symbols[0]}={sizes[name]}" if symbols else "leave --dim away",
            )
