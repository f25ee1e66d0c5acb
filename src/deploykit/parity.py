"""Parity: how far two outputs lie apart, and how far they may, by precision.

Accumulates in float64 over samples, so that memory is that of one sample. NaN and infinities never pass.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal, TypeAlias

import numpy as np

from deploykit.report import Finding, failure, note

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# Relative errors are taken against at least this share of the largest reference value: below it lies noise.
RELATIVE_FLOOR = 1e-3
# Elements that are looked at together: they stay in a core's cache, and below 10,000 OpenBLAS starts no threads.
_BLOCK = 1 << 13


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """What an output may differ by; every limit that is not None has to hold.

    rtol, atol_factor: elementwise, |diff| <= rtol * |ref| + atol_factor * max|ref| + atol, max|ref| over all samples.
    min_sqnr_db: 10 * log10(sum ref^2 / sum diff^2) over all samples, in dB.
    note: why this row is as it is. atol: absolute, in the output's units; only ever given by a user.
    """

    rtol: float | None = None
    atol_factor: float | None = None
    min_sqnr_db: float | None = None
    note: str = ""
    atol: float | None = None

    @property
    def elementwise(self) -> bool:
        """Whether single elements are limited."""
        return self.rtol is not None or self.atol is not None

    def override(self, rtol: float | None, atol: float | None, min_sqnr: float | None) -> Tolerance:
        """The tolerance with a user's limits instead: what is given replaces the row.

        rtol or atol alone keeps the row's other elementwise term (none in a row that has only an SQNR); without
        min_sqnr the SQNR limit goes, and with min_sqnr alone the elementwise one does.
        """
        if rtol is None and atol is None and min_sqnr is None:
            return self
        text = "given on the command line"
        if rtol is None and atol is None:
            return Tolerance(min_sqnr_db=min_sqnr, note=text)
        return Tolerance(
            rtol=rtol if rtol is not None else self.rtol or 0.0,
            atol_factor=self.atol_factor if atol is None else None,
            min_sqnr_db=min_sqnr,
            note=text,
            atol=atol,
        )

    def describe(self) -> str:
        """The limits as a user would write them."""
        terms = []
        if self.rtol is not None:
            terms.append(f"{self.rtol:g} * |ref|")
        if self.atol_factor:
            terms.append(f"{self.atol_factor:g} * max|ref|")
        if self.atol is not None:
            terms.append(f"{self.atol:g}")
        limits = [f"|diff| <= {' + '.join(terms)}"] if terms else []
        if self.min_sqnr_db is not None:
            limits.append(f"SQNR >= {self.min_sqnr_db:g} dB")
        return " and ".join(limits)


_AGAINST_FLOAT = "against the float source: noise power at most 1 % of the signal's"
TOLERANCES: dict[str, Tolerance] = {
    "fp32": Tolerance(1e-4, 1e-5, note="order of summation and fused multiply-adds; nothing is rounded on purpose"),
    "fp16": Tolerance(1e-2, 2e-3, note="11 significant bits (4.9e-4) in every intermediate"),
    "mixed": Tolerance(1e-2, 2e-3, note="fp32 and fp16 side by side: the row of its narrower part"),
    "bf16": Tolerance(5e-2, 1e-2, note="8 significant bits (3.9e-3) in every intermediate"),
    "int8": Tolerance(min_sqnr_db=20.0, note=_AGAINST_FLOAT),
    "int8-dynamic": Tolerance(min_sqnr_db=20.0, note=_AGAINST_FLOAT),
    "int8-weights": Tolerance(min_sqnr_db=20.0, note=_AGAINST_FLOAT),
    "int4-weights": Tolerance(min_sqnr_db=20.0, note=_AGAINST_FLOAT + "; the INT8 row, as no looser one is justified"),
    # Measured on two CNNs (digits, MNIST; three Q/DQ schemes; reference: ONNX Runtime without graph optimisation):
    # ONNX Runtime 45 dB to exact, OpenVINO 42 to 142 dB. Mistakes: a scale per tensor where it is per channel, 13 to
    # 32 dB; a lost convolution bias, 6 to 9 dB; a zero point off by one, 33 to 68 dB. Deep models spread
    # rounding, right engines are 17 dB apart: `segments` tells there, and this limit is never lowered.
    "int8-parent": Tolerance(
        min_sqnr_db=30.0,
        note="an engine's result against its quantized ONNX parent. Engines fold scales and sum in another order, so a "
        "value on the border between two levels may take the neighbouring one, and that spreads: elementwise equality "
        "does not hold between two correct engines. What rounding may add is limited to a tenth of the noise power "
        "that the int8 row allows for quantization itself (20 dB + 10 dB); where it is missed, segments decide (below)",
    ),
}
# The computation is float where only weights are stored as integers: the parent is met to float rounding.
_FLOAT_COMPUTE = {"int8-weights": "fp32", "int4-weights": "fp32"}
_FLOATS = ("fp32", "mixed", "fp16", "bf16")  # ascending by what they allow


def row_for(reference: str, candidate: str) -> str:
    """The row of `TOLERANCES` for a candidate's precision against a reference's.

    Two floats: the looser row. Quantized against float: the quantized one's row. The same quantized precision on both
    sides (an engine and its ONNX parent): equality within rounding, "int8-parent", or "fp32" where the computation is
    float. Unknown precisions count as fp32, unknown integer ones as int8.
    """
    sides = [_known(reference), _known(candidate)]
    quantized = [name for name in sides if name not in _FLOATS]
    if not quantized:
        return max(sides, key=_FLOATS.index)
    if len(quantized) == 2 and sides[0] == sides[1]:
        return _FLOAT_COMPUTE.get(sides[1], "int8-parent")
    return quantized[-1]


def _known(precision: str) -> str:
    if precision in TOLERANCES:
        return precision
    return "int8" if "int" in precision else "fp32"


Kind = Literal["float", "integer", "bool", "string"]


def kind_of(dtype: np.dtype[Any]) -> Kind:
    """The kind of a numpy dtype; ml_dtypes' floats and 4-bit integers count as what they are."""
    name = dtype.name
    if name.startswith(("float", "bfloat", "complex")):
        return "float"
    if name.startswith(("int", "uint")):
        return "integer"
    return "bool" if name == "bool" else "string"


def as_array(value: Any) -> Array:
    """An output as an array: a sequence of maps (ONNX-ML's ZipMap) becomes a matrix with keys in sorted order."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, dict) for item in value):
        return np.array([[item[key] for key in sorted(item)] for item in value])
    return np.asarray(value)


def _stands_for(ref: Array, cand: Array) -> bool:
    """Whether numbers are nothing but 0 and 1 where the reference has booleans, as formats without these write them."""
    return ref.dtype.kind == "b" and cand.dtype.kind in "fiu" and bool(np.isin(cand, (0, 1)).all())


class OutputComparison:
    """Compares one output over samples.

    Floats are measured against the tolerance; integers, booleans and strings must be equal, whatever the precision (a
    class label is right or wrong). Widths may differ within a kind (float16 for float32, int32 for int64: noted), and
    0 and 1 stand for booleans.
    """

    def __init__(self, name: str, tolerance: Tolerance) -> None:
        self.name = name
        self.tolerance = tolerance
        self.samples = 0
        self._mismatch: str | None = None
        self._narrowed: tuple[str, str] | None = None
        self._exact_kind = False
        self._elements = self._unequal = 0
        self._nonfinite = [0, 0]
        self._max_ref = self._max_abs = 0.0
        self._signal = self._noise = self._dot = self._energy = 0.0
        self._relative = _LargestRelative()
        self._worst = (-math.inf, 0.0, 0.0)  # |diff| - rtol * |ref|, |diff|, |ref|

    def add(self, reference: Any, candidate: Any) -> None:
        """Takes one sample's output of both sides."""
        ref, cand = as_array(reference), as_array(candidate)
        self.samples += 1
        if self._mismatch is None:
            self._mismatch = self._difference_in_form(ref, cand)
        if self._mismatch is not None:
            return
        if ref.dtype != cand.dtype:
            self._narrowed = (ref.dtype.name, cand.dtype.name)
        self._elements += ref.size
        if kind_of(ref.dtype) == "float":
            ref, cand = ref.ravel(), cand.ravel()
            for start in range(0, ref.size, _BLOCK):
                part = slice(start, start + _BLOCK)
                self._add_floats(_flat(ref[part]), _flat(cand[part]))
        else:
            self._add_exact(ref.ravel(), cand.ravel())

    def _difference_in_form(self, ref: Array, cand: Array) -> str | None:
        if ref.shape != cand.shape:
            return f"has shape {list(cand.shape)}, the reference {list(ref.shape)} (sample {self.samples - 1})"
        if kind_of(ref.dtype) != kind_of(cand.dtype) and not _stands_for(ref, cand):
            return f"is {cand.dtype.name}, the reference {ref.dtype.name}"
        return None

    def _add_exact(self, ref: Array, cand: Array) -> None:
        self._exact_kind = True
        unequal = ref != cand
        self._unequal += int(np.count_nonzero(unequal))
        if kind_of(ref.dtype) != "string" and ref.size:
            difference = np.abs(ref.astype(np.float64) - cand.astype(np.float64))
            self._max_abs = max(self._max_abs, float(difference.max()))

    def _add_floats(self, ref: Array, cand: Array) -> None:
        finite = np.isfinite(ref) & np.isfinite(cand)
        if not finite.all():
            self._nonfinite[0] += int(np.count_nonzero(~np.isfinite(ref)))
            self._nonfinite[1] += int(np.count_nonzero(~np.isfinite(cand)))
            return
        difference, size = np.abs(ref - cand), np.abs(ref)
        self._unequal += int(np.count_nonzero(difference))
        self._max_ref = max(self._max_ref, float(size.max()))
        self._max_abs = max(self._max_abs, float(difference.max()))
        self._signal += float(ref @ ref)
        self._energy += float(cand @ cand)
        self._dot += float(ref @ cand)
        self._noise += float(difference @ difference)
        self._relative.add(difference, size, RELATIVE_FLOOR * self._max_ref)
        excess = difference - (self.tolerance.rtol or 0.0) * size
        worst = int(excess.argmax())
        self._worst = max(self._worst, (float(excess[worst]), float(difference[worst]), float(size[worst])))

    @property
    def sqnr_db(self) -> float:
        """Signal to noise in dB: infinite when equal, -infinite when only the reference is all zeros."""
        if self._noise == 0:
            return math.inf
        return 10 * math.log10(self._signal / self._noise) if self._signal else -math.inf

    @property
    def cosine(self) -> float:
        """Cosine of the angle between all reference and all candidate values; 1 when both are zero, 0 when one is."""
        norms = math.sqrt(self._signal) * math.sqrt(self._energy)
        if norms == 0:
            return 1.0 if self._signal == self._energy else 0.0
        return min(1.0, max(-1.0, self._dot / norms))

    @property
    def exact(self) -> bool:
        """Equal everywhere (a zero's sign aside), in shape, kind and value, without NaN or infinities."""
        return not self._mismatch and not self._unequal and not any(self._nonfinite)

    @property
    def passed(self) -> bool:
        """Whether at least one sample was compared and every limit holds."""
        if not self.samples or self._mismatch is not None or any(self._nonfinite):
            return False
        if self._exact_kind or self._unequal == 0:
            return self._unequal == 0
        within = not self.tolerance.elementwise or self._worst[0] <= self._allowed()
        loud = self.tolerance.min_sqnr_db is None or self.sqnr_db >= self.tolerance.min_sqnr_db
        return within and loud

    def _allowed(self) -> float:
        """The part of the elementwise limit that is the same for all elements."""
        return (self.tolerance.atol or 0.0) + (self.tolerance.atol_factor or 0.0) * self._max_ref

    def result(self) -> dict[str, Any]:
        """The output's row of the JSON contract; numbers that do not exist (strings, NaN, other shapes) are None.

        excess: what of the largest |diff| is beyond rtol * |ref|, as a share of max|ref|, which `atol_factor` limits.
        """
        measured = self._mismatch is None and not any(self._nonfinite)
        floats = measured and not self._exact_kind
        row: dict[str, Any] = {
            "name": self.name,
            "max_abs": self._max_abs if measured else None,
            "max_rel": self._relative.value(RELATIVE_FLOOR * self._max_ref) if floats else None,
            "sqnr_db": self.sqnr_db if floats and math.isfinite(self.sqnr_db) else None,
            "cosine": self.cosine if floats else None,
            "exact": self.exact,
            "passed": self.passed,
            "tolerance": "equal" if self._exact_kind else self.tolerance.describe(),
        }
        if floats and self.tolerance.elementwise and self._max_ref:
            row["excess"] = max(self._worst[0], 0.0) / self._max_ref
        if self._exact_kind:
            row["mismatch_share"] = self._unequal / self._elements if self._elements else 0.0
        if any(self._nonfinite):
            row["nonfinite"] = {"reference": self._nonfinite[0], "candidate": self._nonfinite[1]}
        return row

    def findings(self) -> list[Finding]:
        """What is to be said about this output; none when it passed in the reference's dtype."""
        found = []
        if self._narrowed is not None:
            was, now = self._narrowed
            found.append(note("DK405", f"output {self.name!r} is {now}, {was} in the reference", tensor=self.name))
        if not self.passed:
            found.append(self._failure())
        return found

    def _failure(self) -> Finding:
        what = f"output {self.name!r}"
        if not self.samples:
            return failure("DK401", f"{what} was not compared: there was no sample", tensor=self.name)
        if self._mismatch is not None:
            return failure("DK403", f"{what} {self._mismatch}", tensor=self.name)
        if any(self._nonfinite):
            sides = [f"{n} in the {side}" for n, side in zip(self._nonfinite, _SIDES, strict=True) if n]
            text = f"{what} has NaN or infinite values: {' and '.join(sides)}, of {self._elements} each"
            # Numbers that the float model does not give either are no fault of the candidate's.
            hint = "the reference gives them too: compare on inputs that it takes" if self._nonfinite[0] else ""
            return failure("DK402", text, tensor=self.name, hint=hint)
        if self._exact_kind:
            share = 100 * self._unequal / self._elements
            text = f"{what} must be equal and is not: {self._unequal} of {self._elements} values differ ({share:.3g} %)"
            return failure("DK406", text, tensor=self.name)
        return failure("DK401", f"{what} differs: {'; '.join(self._exceeded())}", tensor=self.name)

    def _exceeded(self) -> list[str]:
        """Each limit that does not hold, with its number."""
        lines = []
        excess, difference, size = self._worst
        if self.tolerance.elementwise and excess > self._allowed():
            limit = (self.tolerance.rtol or 0.0) * size + self._allowed()
            lines.append(f"|diff| {difference:.4g} where {limit:.4g} is allowed ({self.tolerance.describe()})")
        if self.tolerance.min_sqnr_db is not None and self.sqnr_db < self.tolerance.min_sqnr_db:
            lines.append(f"SQNR {self.sqnr_db:.2f} dB, at least {self.tolerance.min_sqnr_db:g} dB is needed")
        return lines


_SIDES = ("reference", "candidate")


def _flat(array: Array) -> Array:
    """A vector as float64; a complex number counts as two."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128).view(np.float64)
    return array.astype(np.float64)


class _LargestRelative:
    """max |diff| / max(|ref|, floor) for a floor that is known only at the end and never shrinks on the way.

    Keeps the few elements that can still be the largest: those not beaten, for every later floor, by the one with the
    largest |diff|. (Beaten for the present floor is beaten for each later one, since that one's |diff| is not smaller.)
    """

    def __init__(self) -> None:
        self._difference = np.zeros(0)
        self._size = np.zeros(0)

    def add(self, difference: Array, size: Array, floor: float) -> None:
        """Takes |diff| and |ref| of one sample, and the floor as known so far."""
        difference = np.concatenate([self._difference, difference])
        size = np.maximum(np.concatenate([self._size, size]), floor)
        if floor == 0:  # only zeros so far: each element may count later
            size = np.maximum(size, np.finfo(np.float64).tiny)
        largest = int(difference.argmax())
        keep = difference * size[largest] > difference[largest] * size
        keep[largest] = True
        difference, size = difference[keep], size[keep]
        # Of what is left, in order of |ref|, only a record |diff| can still win.
        order = np.lexsort((-difference, size))
        difference, size = difference[order], size[order]
        record = np.concatenate([[True], difference[1:] > np.maximum.accumulate(difference)[:-1]])
        self._difference, self._size = difference[record], size[record]

    def value(self, floor: float) -> float:
        """The largest relative error; 0 without elements."""
        if not self._difference.size:
            return 0.0
        if floor == 0:
            return math.inf if self._difference.any() else 0.0
        return float((self._difference / np.maximum(self._size, floor)).max())
