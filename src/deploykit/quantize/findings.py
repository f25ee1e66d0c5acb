"""What quantization has to say: one finding a fact, with its node or tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx_ir as ir

    from deploykit.half_search import Refinement
    from deploykit.quantize.half import HalfResult
    from deploykit.quantize.half_formats import HalfFormat
    from deploykit.quantize.plan import FloatNode
    from deploykit.quantize.ranges import Ranges

# The second half of the data still made the range this much wider: the first half was not enough.
MOVING = 0.10
FEW_SAMPLES = 8
# More samples than this share that are equal to others, or all 0, are worth a warning.
REPEATED = 0.1
# A range so many times wider than 99 % of the magnitudes leaves these at most 4 of 127 steps.
FAR = 32
# The reason of `plan` for everything inside a body.
WHOLE_BODY = "control-flow bodies stay float"
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
    found += _about_outliers(ranges, used)
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


def _about_outliers(ranges: Ranges, used: Collection[str]) -> list[Finding]:
    far = {}
    for name in used:
        tensor = ranges.tensors[name]
        largest = max(abs(tensor.minimum), abs(tensor.maximum))
        if tensor.fired and tensor.typical > 0 and largest > FAR * tensor.typical:
            far[name] = largest / tensor.typical
    if not far:
        return []
    worst = max(sorted(far), key=lambda name: far[name])
    tensor = ranges.tensors[worst]
    largest = max(abs(tensor.minimum), abs(tensor.maximum))
    kept = tensor.interval(symmetric=True)
    return [
        note(
            "DK335",
            f"{len(far)} of {len(used)} tensors have outliers: {worst!r} reaches {largest:.4g}, {far[worst]:.0f} times "
            f"what 99 % of its values stay below ({tensor.typical:.4g}); {kept.method} keeps it up to {kept.high:.4g}",
            tensor=worst,
            hint="--method percentile or mse clips them; --sensitivity shows what that costs",
        )
    ]


def about_samples(count: int, repeated: int, zeros: int, resumed: int) -> list[Finding]:
    """Samples that an interrupted calibration had seen, and samples that say nothing new or nothing at all."""
    found: list[Finding] = []
    if resumed:
        found.append(note("DK338", f"calibration went on after {resumed} samples of an interrupted run"))
    if repeated > REPEATED * count:
        text = f"{repeated} of {count} calibration samples are equal to another one: {count - repeated} differ"
        found.append(warning("DK336", text, hint="ranges rest on the samples that differ; give others to --calib"))
    if zeros > REPEATED * count:
        text = f"{zeros} of {count} calibration samples are 0 in every element"
        found.append(warning("DK337", text, hint="check how the data was made; such samples hold no ranges"))
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
    owners: dict[tuple[tuple[str, str], str], list[str]] = {}
    for item in left:
        if item.owner is not None:
            owners.setdefault((item.owner, "" if WHOLE_BODY in item.reason else item.reason), []).append(item.name)
    return found + [_about_body(op, name, reason, inner) for ((op, name), reason), inner in owners.items()]


def _about_body(op: str, name: str, reason: str, inner: list[str]) -> Finding:
    names = ", ".join(repr(node) for node in inner[:NAMED])
    more = f" and {len(inner) - NAMED} more" if len(inner) > NAMED else ""
    text = (
        f"in its bodies {names}{more} stay float: {reason}" if reason else f"its bodies stay float, with {names}{more}"
    )
    return note("DK357", f"{op} {name!r}: {text}", node=name, op=op)


def about_saturation(saturating: Mapping[str, float]) -> list[Finding]:
    """Nodes whose result differs on CPUs that add two products in int16: one finding, under the worst one's name."""
    shares = {name: share for name, share in saturating.items() if share > SATURATING}
    if not shares:
        return []
    worst = max(sorted(shares), key=lambda name: shares[name])
    others = f" (and {len(shares) - 1} more nodes with fewer)" if len(shares) > 1 else ""
    return [
        warning(
            "DK358",
            f"on a CPU without VNNI {shares[worst]:.0%} of the pairs of u8*s8 products of {worst!r}{others} saturate "
            "int16, and the result differs from other CPUs",
            node=worst,
            hint="DEPLOYKIT_VNNI=0 in the environment makes the model for such CPUs: 7-bit weights in these nodes",
        )
    ]


def about_half(result: HalfResult, form: HalfFormat) -> list[Finding]:
    """Islands that stay float32, and values that the format cannot hold; many of one kind are one finding."""
    found = [
        note(
            "DK370",
            f"{name!r} stays float32: it reaches {peak:.3g}, and {form.title} ends at {form.limit:.6g}",
            tensor=name,
        )
        for name, peak in result.wide.items()
    ]
    found += _about_islands(result.islands)
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


def about_refinement(found: Refinement | None, form: HalfFormat) -> list[Finding]:
    """Which nodes were left in float32 because of what their rounding costs, or that this does not help."""
    if found is None or (not found.islands and found.reached):
        return []
    names = ", ".join(repr(name) for name in found.costly[:NAMED])
    was = f"{form.title} was off by {found.before:.3g} times what is allowed on the calibration data"
    if found.reached:
        text = (
            f"{was}; with {len(found.islands)} nodes left in float32 it is {found.after:.3g} times "
            f"(after {found.evaluations} evaluations); the costliest: {names}"
        )
        return [note("DK318", text)]
    text = (
        f"{was}, and no quarter of the nodes in float32 brings it below 1 ({found.after:.3g} with the costliest; "
        f"{found.evaluations} evaluations); the costliest: {names}"
    )
    return [warning("DK318", text, hint="--eval DATA shows what it costs in accuracy, if anything")]


def about_speed() -> Finding:
    """What half precision is for where the target computes in float32 anyway."""
    text = "fp16 is for size here: onnxruntime's CPU kernels compute most of it in float32, with casts around"
    return note("DK317", text, hint="--precision int8 for speed on CPUs; deploykit bench measures it")


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
