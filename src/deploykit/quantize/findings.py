"""What quantization has to say: one finding a fact, with its node or tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx_ir as ir

    from deploykit.quantize.half import HalfResult
    from deploykit.quantize.half_formats import HalfFormat
    from deploykit.quantize.plan import FloatNode
    from deploykit.quantize.ranges import Ranges

# The second half of the data still made the range this much wider: the first half was not enough.
MOVING = 0.10
FEW_SAMPLES = 8
# Names of inner nodes that a finding about a control-flow node lists.
NAMED = 4
# Below this share of saturating pairs the sums that are met are almost never both extreme.
SATURATING = 0.01


def about_ranges(ranges: Ranges, used: Collection[str]) -> list[Finding]:
    """Too few samples, ranges that have not settled, tensors that never fired, are constant or not finite."""
    found: list[Finding] = []
    if ranges.samples < FEW_SAMPLES:
        found.append(
            warning(
                "DK365",
                f"only {ranges.samples} calibration samples: ranges rest on what they happen to hold",
                hint="give some hundred representative samples to --calib",
            )
        )
    moving = {name: ranges.tensors[name].growth for name in used if ranges.tensors[name].growth > MOVING}
    if moving and ranges.samples >= FEW_SAMPLES:
        worst = max(sorted(moving), key=lambda name: moving[name])
        found.append(
            warning(
                "DK366",
                f"the second half of the samples still widened the range of {len(moving)} of {len(used)} tensors by "
                f"more than {MOVING:.0%}, {worst!r} by {moving[worst]:.0%}",
                tensor=worst,
                hint="give more samples to --calib",
            )
        )
    for name, tensor in ranges.tensors.items():
        if tensor.not_finite:
            text = f"tensor {name!r} had {tensor.not_finite} NaN or infinite elements, which its range leaves out"
            found.append(
                warning("DK367", text, tensor=name, hint="deploykit validate shows whether the float model is sound")
            )
        elif not tensor.fired:
            found.append(
                note("DK368", f"tensor {name!r} was empty in every sample: what reads it stays float", tensor=name)
            )
        elif tensor.constant and name in used:
            text = f"tensor {name!r} was {tensor.minimum:g} in every element of every sample"
            found.append(
                note("DK369", text, tensor=name, hint="does the calibration data exercise this part of the model?")
            )
    return found


def about_plan(nodes: Sequence[ir.Node], left: Sequence[FloatNode]) -> list[Finding]:
    """Each node that stays float with its reason, and a warning when nothing becomes integer."""
    found = about_float(left)
    if not nodes:
        found.append(
            warning(
                "DK356",
                "nothing was quantized: no Conv, ConvTranspose, MatMul or Gemm of the main graph qualifies",
                hint="--precision fp16 makes this model smaller and faster",
            )
        )
    return found


def about_float(left: Sequence[FloatNode]) -> list[Finding]:
    """Each node that stays float with its reason; those inside a control-flow body under the name of that node."""
    found = [
        note("DK355", f"{item.op} {item.name!r} stays float: {item.reason}", node=item.name, op=item.op)
        for item in left
        if item.owner is None
    ]
    owners: dict[tuple[str, str], list[str]] = {}
    for item in left:
        if item.owner is not None:
            owners.setdefault(item.owner, []).append(item.name)
    return found + [_about_body(op, name, inner) for (op, name), inner in owners.items()]


def _about_body(op: str, name: str, inner: list[str]) -> Finding:
    names = ", ".join(repr(node) for node in inner[:NAMED])
    more = f" and {len(inner) - NAMED} more" if len(inner) > NAMED else ""
    return note("DK357", f"{op} {name!r}: its bodies stay float, with {names}{more}", node=name, op=op)


def about_saturation(saturating: Mapping[str, float]) -> list[Finding]:
    """Nodes whose result differs on CPUs that add two products in int16."""
    return [
        warning(
            "DK358",
            f"node {name!r}: on a CPU without VNNI {share:.0%} of the pairs of u8*s8 products saturate int16, and the "
            "result differs from other CPUs",
            node=name,
            hint=f"--exclude {name}, or a target whose scheme has 7-bit weights",
        )
        for name, share in saturating.items()
        if share > SATURATING
    ]


def about_half(result: HalfResult, form: HalfFormat) -> list[Finding]:
    """Islands that stay float32, and values that the format cannot hold; many of one kind are one finding."""
    found = _about_islands(result.islands)
    if len(result.underflow) > NAMED:
        worst = max(sorted(result.underflow), key=lambda name: result.underflow[name])
        text = (
            f"{len(result.underflow)} weights have values that are too small for {form.title} and become 0, "
            f"{worst!r} the most: {result.underflow[worst]:.1%}"
        )
        found.append(note("DK371", text, tensor=worst))
    else:
        for name, share in result.underflow.items():
            text = f"{share:.1%} of the values of {name!r} are too small for {form.title} and become 0"
            found.append(note("DK371", text, tensor=name))
    if not result.converted:
        found.append(
            warning("DK372", f"nothing was converted: the model has no float32 operator that {form.title} runs")
        )
    return found


def _about_islands(islands: Sequence[tuple[str, str, str]]) -> list[Finding]:
    """Each island by name; those that share op and reason beyond the first few with their number only."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, op, reason in islands:
        kinds.setdefault((op, reason), []).append(name)
    found = []
    for (op, reason), names in kinds.items():
        found += [note("DK370", f"{op} {name!r} stays float32: {reason}", node=name, op=op) for name in names[:NAMED]]
        if len(names) > NAMED:
            text = f"{len(names) - NAMED} more {op} stay float32: {reason}"
            found.append(note("DK370", text, op=op))
    return found
