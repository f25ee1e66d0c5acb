"""Input specifications and dimension ranges as users write them (`--input`, `--dim`); the standard library only."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import TYPE_CHECKING

from deploykit.artifact import TensorSpec
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bfloat16",
    "string",
)
_INPUT = re.compile(r"(?P<name>.+):(?P<dtype>[^:\[\]]+)\[(?P<dims>[^\[\]]*)\]", re.DOTALL)
_SYMBOL = re.compile(r"[^\W\d][\w.]*")
_RANGE = re.compile(r"(?P<low>\d+)(?P<open>\.\.(?P<high>\d*))?")
_SIZES = re.compile(r"\d+(\s*,\s*\d+)+")


@dataclasses.dataclass(frozen=True, slots=True)
class DimRange:
    """Bounds of a symbolic dimension; maximum None: open. sizes: the only ones that it has; none: all within bounds."""

    name: str
    minimum: int
    maximum: int | None
    sizes: tuple[int, ...] = ()

    @classmethod
    def of_sizes(cls, name: str, sizes: Sequence[int]) -> DimRange:
        """The range of a set of sizes, in their order, each once; one size alone is a range from it to itself."""
        found = tuple(dict.fromkeys(sizes))
        return cls(name, min(found), max(found), found if len(found) > 1 else ())

    def describe(self) -> str:
        """As `--dim` takes it: `batch=1..64`, `batch=1..` when open, `batch=1,8` for a set."""
        if self.sizes:
            return f"{self.name}={','.join(map(str, self.sizes))}"
        return f"{self.name}={self.minimum}..{'' if self.maximum is None else self.maximum}"


def parse_input(text: str) -> TensorSpec:
    """The spec of `x:float32[batch,3,224,224]`: a number is fixed, a name is symbolic, `[]` is a scalar.

    Raises UsageError (DK340) for a wrong form, dtype or dimension.
    """
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"the input specification {text!r} is not NAME:DTYPE[DIMENSIONS]",
            code="DK340",
            hint="--input 'x:float32[batch,3,224,224]'; a scalar is 'x:int64[]'",
        )
    dtype = _dtype(match["dtype"].strip(), text)
    written = match["dims"].strip()
    dims = [_dimension(part.strip(), text) for part in written.split(",")] if written else []
    return TensorSpec(match["name"].strip(), dtype, tuple(dims))


def format_input(spec: TensorSpec) -> str:
    """The text that `parse_input` reads back; of an unknown rank only name and dtype are written."""
    if spec.shape is None:
        return f"{spec.name}:{spec.dtype}"
    return f"{spec.name}:{spec.dtype}[{','.join(str(dim) for dim in spec.shape)}]"


def _dtype(name: str, text: str) -> str:
    if name in DTYPES:
        return name
    aliases = {"float": "float32", "double": "float64", "int": "int64", "half": "float16", "str": "string"}
    near = aliases.get(name) or next(iter(difflib.get_close_matches(name, DTYPES, 1)), None)
    raise UsageError(
        f"{name!r} in {text!r} is not a dtype",
        code="DK340",
        hint=f"did you mean {near!r}?" if near else f"one of {', '.join(DTYPES)}",
    )


def _dimension(written: str, text: str) -> int | str:
    if written.isascii() and written.isdigit():
        return int(written)
    if _SYMBOL.fullmatch(written):
        return written
    raise UsageError(
        f"{written!r} in {text!r} is not a dimension: a whole number is fixed, a name is symbolic",
        code="DK340",
        hint="name a dimension that varies, for example [batch,3,224,224], and bound it with --dim batch=1..64",
    )


def parse_dim(text: str) -> DimRange:
    """The range of `batch=1..64`; `batch=1..` is open, `batch=4` is 4..4, `batch=1,8` is 1 or 8.

    Raises UsageError (DK341) for a wrong form or an empty range.
    """
    name, separator, written = text.partition("=")
    if not separator or not name.strip():
        raise _wrong_range(text)
    return parse_range(name.strip(), written.strip())


def parse_range(name: str, written: str | int) -> DimRange:
    """The range that a configuration gives for the dimension `name`: `1..64`, `1..`, a number, or `1,8`."""
    if _SIZES.fullmatch(str(written).strip()):
        return DimRange.of_sizes(name, [int(size) for size in str(written).split(",")])
    match = _RANGE.fullmatch(str(written).strip())
    if match is None:
        raise _wrong_range(f"{name}={written}")
    low = int(match["low"])
    if match["open"] is None:
        return DimRange(name, low, low)
    if not match["high"]:
        return DimRange(name, low, None)
    high = int(match["high"])
    if high < low:
        raise UsageError(
            f"the range {name}={written} is empty: {high} is below {low}",
            code="DK341",
            hint=f"--dim {name}={high}..{low}",
        )
    return DimRange(name, low, high)


def parse_fixed_dim(text: str) -> tuple[str, int]:
    """Name and value of `batch=4`; UsageError (DK341) for a range or anything else."""
    found = parse_dim(text)
    if found.maximum != found.minimum:
        raise UsageError(f"{text!r} must fix one value", code="DK341", hint=f"--dim {found.name}={found.minimum or 1}")
    return found.name, found.minimum


def _wrong_range(text: str) -> UsageError:
    return UsageError(
        f"the dimension {text!r} is not NAME=MIN..MAX",
        code="DK341",
        hint="--dim batch=1..64, batch=1.. when open, or batch=1,8 for these sizes only",
    )
