"""DataRequest: the arguments of `open_data` as JSON, made by a command and opened in its worker."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, TypedDict

from deploykit.data.specs import DimRange, parse_dim
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
    """The arguments of `open_data` as JSON, for worker processes; dims: {name: [minimum, maximum or null]}."""

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


def bounds_of(dims: Iterable[str] | Bounds) -> dict[str, list[int | None]]:
    """`--dim` texts, or bounds by name, as [minimum, maximum or None] by name. Raises UsageError (DK341)."""
    if hasattr(dims, "items"):
        return {name: list(bounds) for name, bounds in dims.items()}
    ranges = [parse_dim(text) for text in dims]
    return {found.name: [found.minimum, found.maximum] for found in ranges}


def dim_ranges(bounds: Bounds) -> dict[str, DimRange]:
    """DimRange by symbol from the JSON form [minimum, maximum or None]."""
    return {name: DimRange(name, int(low or 0), high) for name, (low, high) in bounds.items()}


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
