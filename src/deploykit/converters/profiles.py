"""Optimization profiles: smallest, usual and largest shape of each input, from `--profile` or `--dim` bounds."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any

from deploykit.converters.bounds import unused_bounds
from deploykit.errors import UsageError
from deploykit.report import Finding, failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deploykit.artifact import TensorSpec

    # Of an engine with one profile: by input; of one with several: in their order.
    ProfileSets = dict[str, "Profile"] | Sequence[Mapping[str, "Profile"]]

Profile = list[list[int]]  # min, opt, max shape
MOST_PROFILES = 16  # each one holds kernels of its own, and is chosen by hand at run time
Bounds = list[int | None]  # min, max of a symbolic dimension; None: open
_SHAPE = re.compile(r"\d+(x\d+)*")
_EXAMPLE = "--profile x=1x3x224x224:8x3x224x224:64x3x224x224"


def parse_profile(text: str) -> tuple[str, Profile]:
    """`INPUT=MIN:OPT:MAX` with shapes as `1x3x224x224`: the input's name and its three shapes.

    Raises UsageError (DK521) when it is not that, or when MIN <= OPT <= MAX does not hold.
    """
    name, separator, shapes = text.rpartition("=")
    if not separator or not name:
        raise UsageError(f"--profile {text!r} is not INPUT=MIN:OPT:MAX", code="DK521", hint=_EXAMPLE)
    return name, profile_of(name, shapes.split(":"))


def profile_of(name: str, shapes: Sequence[str | Sequence[int]]) -> Profile:
    """Three shapes, each `1x3x224x224` or a list of ints (as YAML gives them), checked.

    Raises UsageError (DK521).
    """
    if len(shapes) != 3:
        raise UsageError(
            f"the profile of input {name!r} has {len(shapes)} shape(s); three are needed: MIN, OPT, MAX",
            code="DK521",
            tensor=name,
            hint=_EXAMPLE,
        )
    profile = [_shape(name, shape) for shape in shapes]
    smallest, usual, largest = profile
    if not len(smallest) == len(usual) == len(largest):
        raise UsageError(f"the shapes of the profile of {name!r} differ in rank", code="DK521", tensor=name)
    if not all(a <= b <= c for a, b, c in zip(smallest, usual, largest, strict=True)):
        raise UsageError(
            f"the profile of input {name!r} is not MIN <= OPT <= MAX in every dimension: {describe(profile)}",
            code="DK521",
            tensor=name,
            hint=_EXAMPLE,
        )
    return profile


def _shape(name: str, value: str | Sequence[int]) -> list[int]:
    if isinstance(value, str):
        if not _SHAPE.fullmatch(value.strip()):
            raise UsageError(
                f"{value!r} in the profile of input {name!r} is not a shape", code="DK521", tensor=name, hint=_EXAMPLE
            )
        return [int(part) for part in value.strip().split("x")]
    return [int(size) for size in value]


def parse_profiles(profiles: Iterable[str] | Mapping[str, Sequence[Any]]) -> list[dict[str, Profile]]:
    """All profiles of a command line (`INPUT=MIN:OPT:MAX` each) or of a file (name: three shapes, or a list of such).

    An input that is named again gets its shapes of the next profile; one that is named once has the same in all.
    Returns shapes by input for each profile; empty where there is none. Raises UsageError (DK521).
    """
    given: dict[str, list[Profile]] = {}
    if hasattr(profiles, "items"):
        for name, value in profiles.items():
            given[name] = [profile_of(name, shapes) for shapes in (value if _are_several(value) else [value])]
    else:
        for text in profiles:
            name, profile = parse_profile(text)
            given.setdefault(name, []).append(profile)
    count = max(map(len, given.values()), default=0)
    for name, found in given.items():
        if len(found) not in (1, count):
            raise UsageError(
                f"input {name!r} has {len(found)} profiles where another one has {count}",
                code="DK521",
                tensor=name,
                hint="each input has one in every profile, in the same order, or one for all of them",
            )
    if count > MOST_PROFILES:
        raise UsageError(
            f"{count} profiles are more than the {MOST_PROFILES} that an engine is built with here",
            code="DK521",
            hint="leave out those that others cover",
        )
    return [{name: found[min(k, len(found) - 1)] for name, found in given.items()} for k in range(count)]


def _are_several(value: Sequence[Any]) -> bool:
    """Whether a file's entry is a list of profiles: of lists that hold shapes, not sizes."""
    return bool(value) and all(
        isinstance(each, (list, tuple)) and each and not isinstance(each[0], int) for each in value
    )


def as_sets(profiles: ProfileSets) -> list[dict[str, Profile]]:
    """Profiles in their order, of either form."""
    if isinstance(profiles, dict):
        return [dict(profiles)] if profiles else []
    return [dict(shapes) for shapes in profiles]


def hull(profiles: ProfileSets) -> dict[str, Profile]:
    """One profile by input that takes what any of several takes, for targets that know ranges only."""
    sets = as_sets(profiles)
    found: dict[str, Profile] = {}
    for shapes in sets:
        for name, (low, usual, high) in shapes.items():
            known = found.setdefault(name, [low, usual, high])
            if len(known[0]) == len(low):
                found[name] = [list(map(min, known[0], low)), known[1], list(map(max, known[2], high))]
    return found


def describe(profile: Profile) -> str:
    """As on the command line: `1x3x224x224:8x3x224x224:64x3x224x224`."""
    return ":".join("x".join(str(size) for size in shape) for shape in profile)


def resolve_sets(
    inputs: Sequence[TensorSpec],
    dims: Mapping[str, Sequence[int | None]],
    profiles: ProfileSets,
    *,
    target: str,
) -> tuple[list[dict[str, Profile]], list[Finding]]:
    """Every profile of an engine, complete, and what is missing or does not fit; see `resolve_profiles`.

    Without a profile, dimensions that have a set of sizes (`[min, max, *sizes]`) give one for each combination of them.
    """
    sets = as_sets(profiles)
    variants: list[Mapping[str, Sequence[int | None]]] = [dims]
    listed = {name: bounds[2:] for name, bounds in dims.items() if bounds[2:]}
    if listed and not sets and math.prod(map(len, listed.values())) <= MOST_PROFILES:
        chosen = itertools.product(*listed.values())
        variants = [{**dims, **{name: [n, n] for name, n in zip(listed, sizes, strict=True)}} for sizes in chosen]
    resolved: list[dict[str, Profile]] = []
    findings: list[Finding] = []
    for given, bounds in itertools.product(sets or [{}], variants):
        shapes, said = resolve_profiles(inputs, bounds, given, target=target)
        findings += [finding for finding in said if finding not in findings]
        if shapes and shapes not in resolved:
            resolved.append(shapes)
    return resolved, findings


def resolve_profiles(
    inputs: Sequence[TensorSpec],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Profile],
    *,
    target: str,
) -> tuple[dict[str, Profile], list[Finding]]:
    """The profile of every input with a dynamic dimension, and what is missing or does not fit, all at once.

    A profile that was given wins. Otherwise each symbol takes its `--dim` bounds as min and max, and as opt their
    geometric mean (1..64: 8), the middle of a range of batch sizes.
    Findings: errors DK520 a dimension without an upper bound, DK521 a profile that does not fit the model; a warning
    DK204 for bounds of a dimension that the model does not have.
    """
    names = {spec.name for spec in inputs}
    findings = unused_bounds(inputs, dims, {}, target=target)
    findings += [
        failure(
            "DK521",
            f"there is a profile for {name!r}, which is no input of the model",
            target=target,
            tensor=name,
            hint=f"inputs: {', '.join(sorted(names))}",
        )
        for name in profiles
        if name not in names
    ]
    resolved: dict[str, Profile] = {}
    for spec in inputs:
        if spec.name in profiles:
            findings += _misfits(spec, profiles[spec.name], target)
            resolved[spec.name] = profiles[spec.name]
        elif spec.shape is None:
            findings.append(
                failure(
                    "DK520",
                    f"the rank of input {spec.name!r} is unknown",
                    target=target,
                    tensor=spec.name,
                    hint=f"export it with a fixed rank, or give --profile {spec.name}=MIN:OPT:MAX",
                )
            )
        elif any(isinstance(size, str) for size in spec.shape):
            open_dims = [s for s in spec.shape if isinstance(s, str) and (s not in dims or dims[s][1] is None)]
            if open_dims:
                findings.append(_unbounded(spec, list(dict.fromkeys(open_dims)), dims, target))
            else:
                resolved[spec.name] = _from_dims(spec.shape, dims)
    return resolved, findings


def _from_dims(shape: Sequence[int | str], dims: Mapping[str, Sequence[int | None]]) -> Profile:
    bounds = [(size, size) if isinstance(size, int) else (dims[size][0] or 1, dims[size][1] or 1) for size in shape]
    return [
        [low for low, _ in bounds],
        [min(max(round(math.sqrt(low * high)), low), high) for low, high in bounds],
        [high for _, high in bounds],
    ]


def _unbounded(
    spec: TensorSpec, symbols: Sequence[str], dims: Mapping[str, Sequence[int | None]], target: str
) -> Finding:
    named = " and ".join(map(repr, symbols))
    have = f"dimension {named}" if len(symbols) == 1 else f"dimensions {named}"
    lows = {symbol: (dims[symbol][0] if symbol in dims else None) or 1 for symbol in symbols}
    return failure(
        "DK520",
        f"{have} of input {spec.name!r} ({spec.describe()}) {'has' if len(symbols) == 1 else 'have'} no upper bound,"
        f" and {target} needs one",
        target=target,
        tensor=spec.name,
        hint=f"{' '.join(f'--dim {name}={low}..{max(64, low)}' for name, low in lows.items())}"
        " (put in the largest sizes that you will use)",
    )


def _misfits(spec: TensorSpec, profile: Profile, target: str) -> list[Finding]:
    if spec.shape is None:
        return []
    fits = all(
        len(shape) == len(spec.shape)
        and all(isinstance(size, str) or size == given for size, given in zip(spec.shape, shape, strict=True))
        for shape in profile
    )
    if fits:
        return []
    return [
        failure(
            "DK521",
            f"the profile {describe(profile)} does not fit input {spec.name!r}, which is {spec.describe()}",
            target=target,
            tensor=spec.name,
            hint="a fixed dimension has the same size in all three shapes",
        )
    ]
