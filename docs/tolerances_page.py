"""The page of tolerances: the table of the code, and how faults are told from rounding where a limit cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deploykit.parity import TOLERANCES
from deploykit.segments import ALLOWED

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """\
# Tolerances

An output passes when every element satisfies `|candidate - reference| <= rtol * |reference| + atol`, with
`atol` a factor of the largest `|reference|`, or, where a signal-to-noise limit stands, when SQNR reaches it.
NaN and infinities never pass. A tolerance is never raised to what was observed.

| precision | rtol | atol, x max abs ref | min SQNR, dB | note |
|---|---|---|---|---|
"""
MOVEMENT = """
## fp32 outputs beyond their row

Some networks enlarge roundings. PP-OCR v4's detector on a page of text differs by 1.8 times the fp32 row between ONNX
Runtime's own optimised and unoptimised runs; moving its weights by one unit in the last place, less than what storing
them in float32 has rounded, moves its outputs by up to 1.8 times the row as well. No engine could keep to it. So
where the row is missed by less than ten times, `convert`, `run` and `validate` compare the ONNX model with itself
(`deploykit.spread`): each weight moved by four units in its last place (2^-21), up or down as drawn, four draws, on
the same samples, both sides unoptimised. An output passes when the model's own results lie further apart than the
artifact's (DK450, with both numbers), and fails as before when they do not (DK451). The artifact has no part in that
limit. Ten times the row is never passed, nothing changes for limits given by hand, and no other precision has this
rule.

One layer of an fp32 model was changed, {layers} layers evenly spaced. *Row*: found by the fp32 row. *Beside*: still
found with the rule above. Faults that neither finds leave the outputs within the row. Written by
`benchmarks/movement_faults.py`.

| model | fault | layers | row | beside |
|---|---|---|---|---|
{rows}
"""
SEGMENTS = """
## INT8 artifacts below 30 dB

A value on the border between two levels takes either one, by the order in which an engine sums. In a deep model that
spreads: PP-OCR v4's INT8 recogniser is 27 to 30 dB from itself when its scales are moved by 5e-7, ONNX Runtime is
17 dB from its own unoptimised run, OpenVINO 18 dB, and all of them are right. No limit for the whole tells that from a
fault, and a lower one would let faults pass (below). So the limit stays, and where it is missed, `convert`, `run` and
`validate` look inside (`deploykit.segments`):

- The artifact runs whole, as it is, with the integers that each QuantizeLinear makes as outputs besides.
- The ONNX parent, cut at each QuantizeLinear, computes every segment from the integers that the *engine* had in front
  of it. So rounding does not add up, and everything between the inputs and the outputs is covered.
- Every integer has to be the level next to the value that it rounds: at most 1/2 + {allowed} of a level away. Ties may
  fall either way; nothing else may differ. Outputs behind the last integers keep to the fp32 row.

There is no share of elements that may be wrong. Over 600 million integers OpenVINO (15 models) was at most 0.0011 of a
level beyond the half, ONNX Runtime's integer kernels (4 models) 0.019. Such a comparison takes 1.0 to 1.3 times the
processor time of the plain one and at most 1.4 times its memory (16 samples, OpenVINO and ONNX Runtime, PP-OCR rec and
det, MiniLM), and is made only where 30 dB is missed. Where all segments are right the report says DK446 with the
numbers, where one is not DK447 with the first wrong tensor and the node that makes it. An engine that shows no integers
(OpenVINO, ONNX Runtime and the interpreter for Core ML do; Core ML on a Mac does not) is refused as before, and DK448
says how far the model is from itself. Limits given by hand (`--min-sqnr`) hold as they
are, and the gate against the float source (20 dB) is not touched.

What it found in engines while it was made: an attention mask that OpenVINO 2026.4 takes for quantized data (uniform
attention, 25.4 dB where the right result is 26.0 dB; deploykit works around it), and float weights between
DequantizeLinear and QuantizeLinear that ONNX Runtime 1.32 quantizes by itself.

### Faults that were put in

One layer of the INT8 model was changed and converted to OpenVINO: {layers} layers evenly spaced, fewer where one has no
such part; {samples} samples. *Segments*: found by the test above. *Spread*: found by a limit at the model's own
movement (the least of five draws less 3 dB), the alternative that was not taken. *Above 30 dB*: the fault leaves the
outputs within the limit, so nobody looks inside. The faults that segments miss move no integer by more than 1/16 of a
level (a channel that is nearly dead, and outputs that stay within the fp32 row). Written by
`benchmarks/rounding_faults.py`.
"""


def page(measured: Path, movement: Path) -> str:
    """measured, movement: what `benchmarks/rounding_faults.py` and `benchmarks/movement_faults.py` have written."""
    lines = [HEAD.rstrip("\n")]
    for precision, row in TOLERANCES.items():
        sqnr = "" if row.min_sqnr_db is None else f"{row.min_sqnr_db:g}"
        rtol = "" if row.rtol is None else f"{row.rtol:g}"
        atol = "" if row.atol_factor is None else f"{row.atol_factor:g}"
        lines.append(f"| {precision} | {rtol} | {atol} | {sqnr} | {row.note} |")
    rows = json.loads(measured.read_text(encoding="utf-8"))
    first = next(iter(rows.values()))
    fields = {"allowed": f"1/{1 / ALLOWED:g}", "layers": first["layers"], "samples": first["samples"]}
    moved = _movement(json.loads(movement.read_text(encoding="utf-8")))
    return "\n".join([*lines, moved.rstrip("\n"), SEGMENTS.format(**fields), *_faults(rows)]) + "\n"


def _movement(found: dict[str, Any]) -> str:
    rows = [
        f"| {model} | {fault} | {count['tried']} | {count['row']} | {count['beside']} |"
        for model, row in found.items()
        for fault, count in row["faults"].items()
    ]
    tried = max(count["tried"] for row in found.values() for count in row["faults"].values())
    return MOVEMENT.format(layers=tried, rows="\n".join(rows))


def _faults(rows: dict[str, Any]) -> list[str]:
    lines = [
        "| model | fault | layers | segments | spread | above 30 dB |",
        "|---|---|---|---|---|---|",
    ]
    for name, model in rows.items():
        sound = model["sound"]
        limit = f"limit {model['limit_db']:.1f} dB"
        verdict = "wrong" if not sound["right"] else "right"
        lines.append(f"| {name} | none: {sound['sqnr_db']:.1f} dB | | {verdict} | {limit} | |")
        for fault, found in model["faults"].items():
            parts = sum(not row["right"] for row in found)
            spread = sum(row["sqnr_db"] is not None and row["sqnr_db"] < model["limit_db"] for row in found)
            above = sum(row["sqnr_db"] is None or row["sqnr_db"] >= 30 for row in found)
            lines.append(f"| | {fault} | {len(found)} | {parts} | {spread} | {above} |")
    return lines
