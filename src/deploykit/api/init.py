"""`deploykit init`: a starter deploykit.yaml, written from a model's own interface."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deploykit import io
from deploykit.bundling import why_not_built
from deploykit.errors import UsageError
from deploykit.exporters.sources import detect, takes
from deploykit.report import Report, note
from deploykit.target import get_target, target_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deploykit.artifact import TensorSpec

_SUFFIXES = (".yaml", ".yml")
_BATCH_BOUNDS = "1..8"
_OPEN_BOUNDS = "MIN..MAX"
_UNKNOWN_INPUTS = """\
# The inputs of a Python source are not known without running it. Fill in and remove the marks:
# inputs:
#   image:
#     dtype: float32
#     shape: [batch, 3, 224, 224]      # a name is a symbolic dimension
#     dims: {batch: 1..8}"""
_REST = """\
quantize:
  - {precision: fp16}
  # INT8 needs typical inputs: a .npz with one array per input, a folder of images, or module:callable.
  # - {precision: int8, calib: calib.npz}
"""
_END = """\
# Accuracy of every artifact on labelled data (labels under the key y):
# evaluate: {data: test.npz, metric: top1, max_drop: 0.5}
# A broken budget is exit code 1:
# budgets: {p99_ms: 20, size_mb: 50}
output: deploykit-out
"""


def init(model: str | Path, *, output: str | Path = "deploykit.yaml", force: bool = False) -> Report:
    """Writes a configuration for `deploykit run` that is valid as it stands, with comments for what to add.

    model: an ONNX file, whose inputs are listed, or another source, whose inputs are left as an example to fill in.
    Returns a report with metrics {"config": path, "inputs": [...]}.
    Raises UsageError (DK831) for an output that is not YAML, OutputError where it cannot be written, ModelError for a
    broken model.
    """
    path = Path(output)
    if path.suffix not in _SUFFIXES:
        raise UsageError(
            f"the configuration {path.name!r} should end in .yaml", code="DK831", file=path, hint=f"-o {path.stem}.yaml"
        )
    source = detect(model)
    takes(source)
    io.check_output(path, force=force)
    inputs: tuple[TensorSpec, ...] = ()
    if source.kind.name == "onnx" and source.path is not None:
        from deploykit import graph  # not before: it brings the graph library

        inputs = graph.describe(source.path).inputs
    text = _text(_relative(str(model), path.parent), inputs, weights=source.kind.name == "python")
    io.write_text(path, text, force=force)
    report = Report("init", metrics={"config": str(path), "inputs": [spec.as_dict() for spec in inputs]})
    report.add(note("DK833", f"next: look it through, then run `deploykit run {path}`"))
    return report


def _text(source: str, inputs: tuple[TensorSpec, ...], *, weights: bool = False) -> str:
    lines = [
        "# For `deploykit run`; docs/configuration.md describes every key.",
        f"source: {_scalar(source)}",
    ]
    if weights:
        lines.append("# weights: weights.safetensors      # without it the factory has to load them")
    lines += ["inputs:", *(line for spec in inputs for line in _input(spec))] if inputs else [_UNKNOWN_INPUTS]
    lines.append(_REST.rstrip())
    lines.append("targets:")
    made = (get_target(name) for name in target_names())
    lines += [f"  {each.name}: {{}}" for each in made if each.converter is not None and why_not_built(each) is None]
    return "\n".join(lines) + "\n" + _END


def _input(spec: TensorSpec) -> Iterable[str]:
    yield f"  {_scalar(spec.name)}:"
    yield f"    dtype: {spec.dtype}"
    if spec.shape is None:
        yield "    # its rank is not known: shape: [batch, 3, 224, 224]"
        return
    yield f"    shape: [{', '.join(_scalar(str(d)) if isinstance(d, str) else str(d) for d in spec.shape)}]"
    symbols = [d for d in dict.fromkeys(spec.shape) if isinstance(d, str)]
    batch = [f"{_scalar(symbol)}: {_BATCH_BOUNDS}" for symbol in symbols if _is_batch(symbol)]
    others = [f"{_scalar(symbol)}: {_OPEN_BOUNDS}" for symbol in symbols if not _is_batch(symbol)]
    if batch:
        yield f"    dims: {{{', '.join(batch)}}}  # the sizes that will be used"
    if others:
        yield f"    # sizes to fill in, for targets that need bounds: dims: {{{', '.join([*batch, *others])}}}"
    if spec.dtype == "float32" and len(spec.shape) == 4:
        yield "    # preprocess: {resize: [256, 256], crop: [224, 224], scale: 1/255, color: rgb, layout: nchw}"


def _is_batch(symbol: str) -> bool:
    return symbol.lower() in ("n", "b") or "batch" in symbol.lower()


def _scalar(text: str) -> str:
    """The text as a YAML scalar, quoted only where YAML needs it."""
    import yaml  # not before: help and errors do without

    return yaml.safe_dump(text, allow_unicode=True, width=10_000).splitlines()[0]


def _relative(source: str, folder: Path) -> str:
    """The source's file relative to the configuration, where it lies below or beside it; otherwise absolute."""
    file, separator, factory = source.rpartition(":") if source.rpartition(":")[0].endswith(".py") else (source, "", "")
    path = Path(file)
    if not path.exists():
        return source
    try:
        return f"{path.resolve().relative_to(folder.resolve()).as_posix()}{separator}{factory}"
    except ValueError:
        return f"{path.resolve().as_posix()}{separator}{factory}"
