"""The int4-weights job: weights of 4 bits in blocks, rounded to nearest or by what calibration data makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError
from deploykit.progress import OnProgress, Progress
from deploykit.quantize import findings as say
from deploykit.quantize.folding import fold_weights
from deploykit.quantize.int4_forms import Contributed, Standard
from deploykit.quantize.int4_rounding import Rounding
from deploykit.quantize.int4_sites import FORMS, INT4_OPSET, STANDARD, Form, Site, find_sites
from deploykit.quantize.places import Rewriter
from deploykit.quantize.plan import check_exclusions
from deploykit.quantize.prepare import MINIMUM_OPSET, load_float
from deploykit.quantize.product import counts, written
from deploykit.report import Finding, warning

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.quantize.settings import Settings

# Blocks that onnxruntime's kernels take: powers of two.
INT4_IR_VERSION = 10
BLOCKS = (16, 32, 64, 128, 256)


def quantize_int4(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The int4-weights job. Raises UsageError DK391 for a method that does not go with the target or the data."""
    form = FORMS.get(settings.target or "onnxruntime", STANDARD)
    check_blocks(settings.block_size)
    model, said = load_float(source, minimum_opset=MINIMUM_OPSET if form.contributed else INT4_OPSET)
    check_exclusions(model, settings.exclude)
    fold_weights(model, recurrent=False)  # which have no 4-bit form
    sites, left = find_sites(model, settings.exclude, settings.block_size, form)
    rounding = Rounding(model, source, settings, form)
    done = write_sites(model, sites, rounding, form, on_progress)
    said += [*rounding.findings, *say.about_float(left)]
    if not done:
        said.append(_nothing())
    facts = written(model, output, "int4-weights", said)
    facts["metrics"] |= {
        "calibration": rounding.metrics,
        **counts(done, left),
        "int8_macs_share": 0.0,
        "bits": 4,
        "block_size": settings.block_size,
        "method": rounding.method,
        "rounded_by": rounding.tally,
    }
    return facts


def check_blocks(block_size: int) -> None:
    """Raises UsageError (DK343) for a block size that no kernel takes."""
    if block_size not in BLOCKS:
        raise UsageError(
            f"--block-size {block_size}: engines have kernels for blocks of {', '.join(map(str, BLOCKS))}",
            code="DK343",
            hint="--block-size 32; smaller blocks lose less and take more room",
        )


def _nothing() -> Finding:
    return warning(
        "DK392",
        "nothing was quantized: 4-bit weights are for MatMul, Gemm, tables and 1x1 convolutions of some size",
        hint="--precision int8-weights takes all convolutions and recurrent layers too",
    )


def write_sites(
    model: ir.Model, sites: list[Site], rounding: Rounding, form: Form, on_progress: OnProgress
) -> list[str]:
    """Rounds every matrix once and writes it for each node that reads it; returns the names of the nodes."""
    if not sites:
        return []
    by_key: dict[tuple[object, ...], list[Site]] = {}
    for site in sites:
        by_key.setdefault(site.key, []).append(site)
    made = rounding.round(by_key, on_progress)
    if any(site.place.node.op_type == "Conv" for site in sites) or not form.contributed:
        # The first version of the format with 4-bit integers.
        model.ir_version = max(model.ir_version or 0, INT4_IR_VERSION)
    rewriter = Rewriter(model)
    writer = Contributed(model, rewriter) if form.contributed else Standard(rewriter, symmetric=form.symmetric)
    for number, (key, readers) in enumerate(by_key.items()):
        on_progress(Progress("writing 4-bit weights", readers[0].weight.name or "", number + 1, len(by_key)))
        writer.write(
            [site.place for site in readers], readers[0].weight, made.pop(key), transposed=readers[0].transposed
        )
    rewriter.finish()
    return [site.place.node.name or "" for site in sites]
