"""Which shapes a package takes: one, ranges, or an enumeration. Planned, written, read back, and kept to.

Core ML knows no mixture of ranges and enumerations in one model, takes at most 128 shapes, and since iOS 18 several
inputs with enumerations, which belong together by position (guide to flexible inputs; coremltools 9.0,
`_validate_enumerated_shape_inputs`; apple/coremltools issues 2271 and 2548).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.errors import DataError
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.profiles import Profile

    Shape = tuple[int, ...]

MOST_SHAPES = 128
_NAME = "coreml"
_SEVERAL_INPUTS_SINCE = 18  # iOS


@dataclasses.dataclass(frozen=True, slots=True)
class Flexibility:
    """The shapes of a model's inputs, by name.

    usual: the shape that memory is reserved for. ranges: smallest and largest size of each axis, of inputs that vary
    so. shapes: all allowed ones, of inputs that are enumerated; inputs take those of one position together.
    """

    usual: Mapping[str, Shape]
    ranges: Mapping[str, tuple[tuple[int, int], ...]] = dataclasses.field(default_factory=dict)
    shapes: Mapping[str, tuple[Shape, ...]] = dataclasses.field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> Flexibility:
        """The same under other names."""
        return Flexibility(
            {names.get(name, name): shape for name, shape in self.usual.items()},
            {names.get(name, name): ranges for name, ranges in self.ranges.items()},
            {names.get(name, name): shapes for name, shapes in self.shapes.items()},
        )

    def bounds(self) -> dict[str, list[list[int | None]]]:
        """[min, max, *sizes] of every axis, of what is fixed too: the program may have a symbol for it all the same."""
        found: dict[str, list[list[int | None]]] = {
            name: [[size, size] for size in shape] for name, shape in self.usual.items()
        }
        found |= {name: [[low, high] for low, high in ranges] for name, ranges in self.ranges.items()}
        for name, shapes in self.shapes.items():
            columns = [list(dict.fromkeys(column)) for column in zip(*shapes, strict=True)]
            found[name] = [[min(sizes), max(sizes), *(sizes if len(sizes) > 1 else ())] for sizes in columns]
        return found

    def told(self) -> dict[str, str]:
        """In words, what the inputs that vary take: `[1..8, 3]`, or `[1, 3] or [8, 3]`."""
        return {
            **{name: _ranges(ranges) for name, ranges in self.ranges.items()},
            **{name: _shapes(dict.fromkeys(shapes)) for name, shapes in self.shapes.items()},
        }

    def check(self, given: Mapping[str, Shape]) -> None:
        """Refuses what a device would: DataError (DK547) for shapes that are not allowed, naming those that are."""
        for name, shape in given.items():
            if name in self.ranges:
                ranges = self.ranges[name]
                if len(shape) != len(ranges) or any(
                    not low <= size <= high for size, (low, high) in zip(shape, ranges, strict=True)
                ):
                    raise _refused(name, shape, _ranges(ranges))
            elif name in self.shapes:
                if shape not in self.shapes[name]:
                    raise _refused(name, shape, _shapes(dict.fromkeys(self.shapes[name])))
            elif name in self.usual and shape != self.usual[name]:
                raise _refused(name, shape, _shapes([self.usual[name]]))
        together = {name: shapes for name, shapes in self.shapes.items() if name in given}
        rows = list(zip(*together.values(), strict=True))
        if together and tuple(given[name] for name in together) not in rows:
            told = ", ".join(f"{name!r} {list(given[name])}" for name in together)
            allowed = "; ".join(
                ", ".join(f"{name!r} {list(shape)}" for name, shape in zip(together, row, strict=True))
                for row in dict.fromkeys(rows)
            )
            raise DataError(
                f"the package does not take {told} together",
                code="DK547",
                context=[f"shapes that belong together: {allowed}"],
                hint="give the inputs shapes of one row, or convert again with the sizes in use: --dim NAME=1,8",
            )


def typed(array: np.ndarray[Any, Any], spec: TensorSpec) -> np.ndarray[Any, Any]:
    """A feed in the type that the package declares. DataError (DK548) for an integer that does not fit into it."""
    if array.dtype.kind in "iu" and np.dtype(spec.dtype).kind in "iu" and array.size:
        limits, low, high = np.iinfo(spec.dtype), int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise DataError(
                f"input {spec.name!r} is {spec.dtype} in the package, and the values are {low}..{high}",
                code="DK548",
                tensor=spec.name,
                hint=f"Core ML holds integers of 32 bits: give values of {limits.min}..{limits.max}",
            )
    return array.astype(spec.dtype)


def _refused(name: str, shape: Shape, allowed: str) -> DataError:
    return DataError(
        f"input {name!r} has shape {list(shape)}, which the package does not take",
        code="DK547",
        tensor=name,
        context=[f"it takes {allowed}"],
        hint="give an allowed shape, or convert again with the sizes in use: --dim NAME=1..8, or --dim NAME=1,8",
    )


def _ranges(ranges: Sequence[tuple[int, int]]) -> str:
    return f"[{', '.join(str(low) if low == high else f'{low}..{high}' for low, high in ranges)}]"


def _shapes(shapes: Any) -> str:
    return " or ".join(str(list(shape)) for shape in shapes)


def plan(
    inputs: Sequence[TensorSpec],
    dims: Mapping[str, Sequence[int | None]],
    given: Mapping[str, Profile],
    resolved: Mapping[str, Profile],
    target: str,
) -> tuple[Flexibility, list[Finding]]:
    """What the package is to take: ranges, or with a set of sizes somewhere the combinations of all sizes.

    dims: [min, max, *sizes] by symbol. given: profiles of the user. resolved: of every input that varies.
    target: `iOS17`. Findings: an error DK546 for what Core ML cannot hold, a note DK549 for a range that is listed.
    """
    usual = {spec.name: _usual(spec, resolved.get(spec.name)) for spec in inputs}
    symbols = dict.fromkeys(size for spec in inputs for size in spec.shape or () if isinstance(size, str))
    sets = {name: [size for size in dims[name][2:] if size is not None] for name in symbols if dims.get(name, ())[2:]}
    if not sets:
        ranges = {
            name: tuple((low, high) for low, high in zip(profile[0], profile[2], strict=True))
            for name, profile in resolved.items()
            if profile[0] != profile[2]
        }
        return Flexibility(usual, ranges), []
    fixed = Flexibility(usual)
    varying = [name for name, profile in given.items() if profile[0] != profile[2]]
    if varying:
        return fixed, [_mixed(f"--profile {varying[0]} has a range", sets)]
    sizes = {name: sets.get(name) or _all_sizes(dims[name]) for name in symbols if name in dims}
    count = math.prod(map(len, sizes.values()))
    listed = [name for name in sizes if name not in sets and len(sizes[name]) > 1]
    if count > MOST_SHAPES:
        if listed:
            return fixed, [_mixed(f"dimension {listed[0]!r} has the range {_range(dims[listed[0]])}", sets)]
        return fixed, [_too_many(sets, count)]
    rows = [dict(zip(sizes, row, strict=True)) for row in itertools.product(*sizes.values())]
    shapes = {
        spec.name: tuple(tuple(row[s] if isinstance(s, str) else s for s in spec.shape or ()) for row in rows)
        for spec in inputs
    }
    shapes = {name: found for name, found in shapes.items() if len(set(found)) > 1}
    usual |= {name: found[0] for name, found in shapes.items()}
    findings = [_several(list(shapes), sets, target)] if len(shapes) > 1 and _system(target) < 18 else []
    findings += [
        note(
            "DK549",
            f"dimension {name!r} is listed as the {len(sizes[name])} sizes {_range(dims[name])}: "
            "Core ML takes no range beside a set of sizes",
            target=_NAME,
        )
        for name in listed
    ]
    return Flexibility(usual, {}, shapes), findings


def _usual(spec: TensorSpec, profile: Profile | None) -> Shape:
    if profile is not None:
        return tuple(profile[1])
    return tuple(int(size) for size in spec.shape or ()) or (1,)


def _all_sizes(bounds: Sequence[int | None]) -> Sequence[int]:
    low, high = int(bounds[0] or 1), int(bounds[1] or 1)
    return range(low, high + 1)


def _range(bounds: Sequence[int | None]) -> str:
    return f"{bounds[0] or 1}..{bounds[1]}"


def _system(target: str) -> int:
    return int("".join(letter for letter in target if letter.isdigit()))


def _told(sets: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name}={','.join(map(str, sizes))}" for name, sizes in sets.items())


def _mixed(what: str, sets: Mapping[str, Sequence[int]]) -> Finding:
    return failure(
        "DK546",
        f"{what}, and {_told(sets)} is a set of sizes: Core ML takes ranges or sets in one package, not both",
        target=_NAME,
        hint="give a set for every dimension that varies (--dim NAME=64,128), or ranges for all (--dim NAME=1..8)",
    )


def _too_many(sets: Mapping[str, Sequence[int]], count: int) -> Finding:
    return failure(
        "DK546",
        f"{_told(sets)} makes {count} combinations, and Core ML takes at most {MOST_SHAPES} shapes",
        target=_NAME,
        hint="give fewer sizes, or ranges for all dimensions: --dim NAME=MIN..MAX",
    )


def _several(names: Sequence[str], sets: Mapping[str, Sequence[int]], target: str) -> Finding:
    return failure(
        "DK546",
        f"{_told(sets)} lists shapes of {len(names)} inputs ({', '.join(map(repr, names))}), and {target} takes lists "
        f"for one input only; several are taken since iOS{_SEVERAL_INPUTS_SINCE}",
        target=_NAME,
        hint=f"--option minimum_deployment_target=iOS{_SEVERAL_INPUTS_SINCE}, or ranges: "
        + " ".join(f"--dim {name}={min(sizes)}..{max(sizes)}" for name, sizes in sets.items()),
    )


def declared(name: str, flexibility: Flexibility) -> Any:
    """The shape of an input as coremltools takes it."""
    import coremltools as ct

    usual = flexibility.usual[name]
    if name in flexibility.shapes:
        return ct.EnumeratedShapes(shapes=[list(shape) for shape in flexibility.shapes[name]], default=list(usual))
    if name not in flexibility.ranges:
        return usual
    return tuple(
        low if low == high else ct.RangeDim(lower_bound=low, upper_bound=high, default=size)
        for size, (low, high) in zip(usual, flexibility.ranges[name], strict=True)
    )


def write_shapes(spec: Any, flexibility: Flexibility) -> None:
    """Lists the enumerated shapes by position.

    coremltools 9.0 moves every repetition of the default shape to the front of an input's list
    (`_add_multiarray_ndshape_enumeration_for_feature`), so that lists of several inputs no longer match.
    """
    for item in spec.description.input:
        if item.name in flexibility.shapes and item.type.HasField("multiArrayType"):
            listed = item.type.multiArrayType.enumeratedShapes
            del listed.shapes[:]
            for shape in flexibility.shapes[item.name]:
                listed.shapes.add().shape.extend(shape)


def shapes_in(spec: Any) -> Flexibility:
    """What a package's specification says of its inputs that are arrays."""
    usual: dict[str, Shape] = {}
    ranges: dict[str, tuple[tuple[int, int], ...]] = {}
    shapes: dict[str, tuple[Shape, ...]] = {}
    for item in spec.description.input:
        if not item.type.HasField("multiArrayType"):
            continue
        array = item.type.multiArrayType
        if array.shape:
            usual[item.name] = tuple(int(size) for size in array.shape)
        kind = array.WhichOneof("ShapeFlexibility")
        if kind == "enumeratedShapes":
            shapes[item.name] = tuple(tuple(int(s) for s in shape.shape) for shape in array.enumeratedShapes.shapes)
        elif kind == "shapeRange":
            found = tuple((int(r.lowerBound), int(r.upperBound)) for r in array.shapeRange.sizeRanges)
            # A negative bound is an open one, which ML Programs do not have.
            found = tuple((low, high if high >= 0 else 2**31 - 1) for low, high in found)
            if any(low != high for low, high in found):
                ranges[item.name] = found
    return Flexibility(usual, ranges, shapes)


def shape_mismatches(asked: Flexibility, have: Flexibility) -> list[Finding]:
    """The reloaded package against what was planned, both under the package's names."""
    found = []
    for name in asked.usual:
        for what, wanted, made in (
            ("the usual shape", asked.usual, have.usual),
            ("the ranges", asked.ranges, have.ranges),
            ("the shapes", asked.shapes, have.shapes),
        ):
            if wanted.get(name) != made.get(name):
                text = f"input {name!r} was to have {what} {wanted.get(name)}, the package has {made.get(name)}"
                found.append(failure("DK529", text, target=_NAME, tensor=name))
    return found
