"""DataRequest: the arguments of `open_data` as JSON, made by a command and opened in its worker."""

from __future__ import annotations

import difflib
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, TypedDict

from deploykit.data.specs import DimRange, parse_dim, parse_range
from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.data.contract import InputContract
    from deploykit.data.dataset import Dataset
    from deploykit.data.samples import Purpose

    Bounds = Mapping[str, Sequence[int | None]]


class DataRequest(TypedDict):
    """The arguments of `open_data` as JSON, for worker processes.

    dims: {name: [minimum, maximum or null, *sizes]}; sizes: the only ones, none where all within the bounds are meant.
    """

    source: str | None
    samples: int | None
    seed: int
    label: str | None
    dims: dict[str, list[int | None]]
    contract: dict[str, Any] | None
    purpose: Purpose


def data_request(
    source: str | None,
    purpose: Purpose,
    *,
    samples: int | None = None,
    seed: int = 0,
    label: str | None = None,
    dims: Bounds | None = None,
    contract: InputContract | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A `DataRequest`; contract: an InputContract or its JSON form."""
    return {
        "source": source,
        "samples": samples,
        "seed": seed,
        "label": label,
        "dims": {name: list(bounds) for name, bounds in (dims or {}).items()},
        "contract": contract.as_dict() if contract is not None and hasattr(contract, "as_dict") else contract,
        "purpose": purpose,
    }


def with_contract(request: Mapping[str, Any], *carried: Mapping[str, Any]) -> dict[str, Any]:
    """The request with the preprocessing that artifacts carry, of inputs for which its own contract has none."""
    known = dict(request["contract"] or {})
    for contract in carried:
        for name, rule in contract.items():
            if "preprocess" in rule and "preprocess" not in known.get(name, {}):
                known[name] = {**known.get(name, {}), "preprocess": rule["preprocess"]}
    return {**request, "contract": known or None}


def bounds_of(dims: Iterable[str] | Bounds) -> dict[str, list[int | None]]:
    """`--dim` texts, or bounds by name, as [minimum, maximum or None, *sizes] by name; sizes: a set's, none of a range.

    A mapping holds [minimum, maximum or None], a set of sizes, or what stands behind the `=` of `--dim`.
    Raises UsageError (DK341).
    """
    if hasattr(dims, "items"):
        return {name: _bounds(name, given) for name, given in dims.items()}
    return {found.name: _listed(found) for found in map(parse_dim, dims)}


def _bounds(name: str, given: Sequence[int | None] | AbstractSet[int] | str | int) -> list[int | None]:
    if isinstance(given, (str, int)):
        return _listed(parse_range(name, given))
    if isinstance(given, AbstractSet):
        return _listed(DimRange.of_sizes(name, sorted(given)))
    return list(given)


def _listed(found: DimRange) -> list[int | None]:
    return [found.minimum, found.maximum, *found.sizes]


def dim_options(bounds: Bounds) -> list[str]:
    """The bounds as a command takes them: `--dim batch=1..8`, `--dim batch=1,8`, each two words; from 1 where open."""
    ranges = [DimRange(name, int(low or 1), high, _sizes(more)) for name, (low, high, *more) in bounds.items()]
    return [word for found in ranges for word in ("--dim", found.describe())]


def _sizes(more: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(size for size in more if size is not None)


def dim_ranges(bounds: Bounds) -> dict[str, DimRange]:
    """DimRange by symbol from the JSON form [minimum, maximum or None, *sizes]."""
    return {name: DimRange(name, int(low or 0), high, _sizes(more)) for name, (low, high, *more) in bounds.items()}


def open_request(request: DataRequest, inputs: Sequence[TensorSpec], model: Path | None = None) -> Dataset:
    """The dataset of a request; raises what `open_data` raises."""
    from deploykit.data.dataset import open_data  # numpy and the sources: only where samples are read

    contract = None
    if request["contract"] is not None:
        from deploykit.data.contract import InputContract

        contract = InputContract.model_validate(request["contract"])
    return open_data(
        request["source"],
        inputs,
        purpose=request["purpose"],
        samples=request["samples"],
        seed=request["seed"],
        label=request["label"],
        dims=dim_ranges(request["dims"]),
        contract=contract,
        model=model,
    )


def known_bounds(bounds: Iterable[str], inputs: Iterable[TensorSpec], model: str) -> None:
    """Refuses bounds of a dimension that no input has: never ignored. Raises UsageError (DK534)."""
    symbols = {dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)}
    for name in bounds:
        if name not in symbols:
            near = difflib.get_close_matches(name, symbols, n=1)
            raise UsageError(
                f"{model} has no dimension {name!r} to bound",
                code="DK534",
                context=[f"its dimensions: {', '.join(sorted(symbols)) or 'all fixed'}"],
                hint=f"did you mean {near[0]!r}?" if near else "",
            )
