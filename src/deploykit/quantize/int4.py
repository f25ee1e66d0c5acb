"""The int4-weights job: weights of 4 bits in blocks, rounded to nearest or by what calibration data makes of them."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.errors import UsageError
from deploykit.progress import OnProgress, Progress
from deploykit.quantize import findings as say
from deploykit.quantize.families import MAC_OPS, RECURRENT
from deploykit.quantize.int4_forms import Contributed, Standard
from deploykit.quantize.int4_rounding import Rounding
from deploykit.quantize.places import Place, Rewriter, constant_reader, places, shape_of
from deploykit.quantize.plan import FloatNode, check_exclusions
from deploykit.quantize.prepare import MINIMUM_OPSET, is_constant, load_float
from deploykit.quantize.product import counts, written
from deploykit.quantize.slices import shrinks
from deploykit.report import Finding, warning

if TYPE_CHECKING:
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.quantize.settings import Settings

# Targets whose engine is onnxruntime: its own operators keep 4 bits in memory and in the kernel.
ONNXRUNTIME = frozenset({None, "onnxruntime", "onnxruntime-web"})
# The first opset with 4-bit integers and with a DequantizeLinear in blocks.
INT4_OPSET = 21
# Blocks that onnxruntime's kernels take: powers of two.
BLOCKS = (16, 32, 64, 128, 256)
# A float32 scale and a zero point of 4 bits.
BITS_PER_SCALE = 36


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A weight in a place, as a matrix [rows, columns] whose columns are summed over.

    transposed: the model has [columns, rows].
    """

    place: Place
    weight: ir.Value
    transposed: bool

    @property
    def key(self) -> tuple[object, ...]:
        """The same for all sites of one matrix."""
        return (id(self.weight), self.transposed)


def quantize_int4(source: Path, output: Path, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
    """The int4-weights job. Raises UsageError DK391 for a method that does not go with the target or the data."""
    contributed = settings.target in ONNXRUNTIME
    check_blocks(settings.block_size)
    model, said = load_float(source, minimum_opset=MINIMUM_OPSET if contributed else INT4_OPSET)
    check_exclusions(model, settings.exclude)
    sites, left = find_sites(model, settings.exclude, settings.block_size, contributed=contributed)
    rounding = Rounding(model, source, settings, contributed=contributed)
    done = write_sites(model, sites, rounding, contributed=contributed, on_progress=on_progress)
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
    """Raises UsageError (DK391) for a block size that no kernel takes."""
    if block_size not in BLOCKS:
        raise UsageError(
            f"--block-size {block_size}: engines have kernels for blocks of {', '.join(map(str, BLOCKS))}",
            code="DK391",
            hint="--block-size 32; smaller blocks lose less and take more room",
        )


def _nothing() -> Finding:
    return warning(
        "DK392",
        "nothing was quantized: 4-bit weights are for MatMul, Gemm, tables and 1x1 convolutions of some size",
        hint="--precision int8-weights takes all convolutions and recurrent layers too",
    )


def find_sites(
    model: ir.Model, exclude: tuple[str, ...], block: int, *, contributed: bool
) -> tuple[list[Site], list[FloatNode]]:
    """Every weight that 4 bits in blocks are for, in graph order, and the nodes that stay float with the reason."""
    sites: list[Site] = []
    left: list[FloatNode] = []
    opset = graph.opset(model)
    for place in places(model.graph):
        node = place.node
        reason = _why_float(node, exclude, block, contributed=contributed, opset=opset)
        if reason is None:
            weight = node.inputs[0 if node.op_type == "Gather" else 1]
            assert weight is not None
            plain = node.op_type == "MatMul" or (node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 0)
            sites.append(Site(place, weight, transposed=plain))
        elif reason:
            left.append(FloatNode(node.name or "", node.op_type, reason, place.owner))
    return sites, left


def _why_float(node: ir.Node, exclude: tuple[str, ...], block: int, *, contributed: bool, opset: int) -> str | None:
    """None: quantize. A reason: stays float and is reported. An empty text: nothing that anyone would quantize."""
    if node.domain or node.op_type not in MAC_OPS | RECURRENT | {"Gather"}:
        return ""
    table = node.op_type == "Gather"
    if table and not (constant_reader(node.inputs[0]) and len(shape_of(node.inputs[0])) > 1):
        return ""
    if node.name in exclude or node.op_type in exclude:
        return "excluded"
    if node.op_type in RECURRENT:
        return "the error of 4 bits would be carried from step to step; --precision int8-weights takes it"
    if node.op_type == "ConvTranspose":
        return "4 bits in blocks are for matrices; --precision int8-weights takes it"
    weight = node.inputs[0 if table else 1]
    if not is_constant(weight):
        first = is_constant(node.inputs[0])
        return "its weight is the first operand" if first else "both operands are computed: there is no weight"
    if not constant_reader(weight):
        return "its weight is not float32"
    return _why_float_matrix(node, shape_of(weight), block, contributed=contributed, opset=opset)


def _why_float_matrix(
    node: ir.Node, shape: tuple[int, ...], block: int, *, contributed: bool, opset: int
) -> str | None:
    if node.op_type == "Conv":
        if node.attributes.get_int("group", 1) != 1 or math.prod(shape[2:]) != 1:
            return "4 bits in blocks are for 1x1 convolutions without groups; --precision int8-weights takes it"
        if opset < INT4_OPSET:
            return f"a convolution's 4-bit weights need opset {INT4_OPSET}, and the model has {opset}"
    elif len(shape) != 2:
        return f"its weight has {len(shape)} dimensions, and 4 bits in blocks are for matrices"
    table = node.op_type == "Gather"
    if table and node.attributes.get_int("axis", 0) % 2:
        return "it picks columns of its table, and blocks lie along them"
    plain = node.op_type == "MatMul" or (node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 0)
    rows, columns = (shape[1], shape[0]) if plain else shape[:2]
    if (table or node.op_type == "Conv" or not contributed) and columns % block:
        return f"its {columns} columns are no multiple of the block size {block}"
    if not shrinks(rows * columns, 4, rows * -(-columns // block), BITS_PER_SCALE) or columns < block:
        return f"its weight of {rows} x {columns} is too small for blocks of {block}"
    return None


def write_sites(
    model: ir.Model, sites: list[Site], rounding: Rounding, *, contributed: bool, on_progress: OnProgress
) -> list[str]:
    """Rounds every matrix once and writes it for each node that reads it; returns the names of the nodes."""
    if not sites:
        return []
    by_key: dict[tuple[object, ...], list[Site]] = {}
    for site in sites:
        by_key.setdefault(site.key, []).append(site)
    made = rounding.round(by_key, on_progress)
    rewriter = Rewriter(model)
    form = Contributed(model, rewriter) if contributed else Standard(rewriter)
    names = [site.place.node.name or "" for site in sites]
    for number, site in enumerate(sites):
        form.write(site.place, site.weight, made[site.key], site.key)
        on_progress(Progress("writing 4-bit weights", names[number], number + 1, len(sites)))
    rewriter.finish()
    return names
