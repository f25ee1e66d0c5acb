"""What every direct route shares: the writer called beside the framework, sizes of outputs, and the proof."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from deploykit.artifact import TensorSpec
from deploykit.data import Sample, dim_ranges, open_request
from deploykit.data.dtypes import dtype_name
from deploykit.errors import DeploykitError, VendorError
from deploykit.exporters.diagnosis import in_two_lines
from deploykit.exporters.proof import Proof, SourceSide
from deploykit.parity import TOLERANCES
from deploykit.route import Route, hidden
from deploykit.runtime import open_runtime
from deploykit.target import format_of, get_target, resolve, target_of_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deploykit.data import DataRequest, DimRange
    from deploykit.progress import OnProgress
    from deploykit.report import Finding
    from deploykit.route import Answered, Beside, Writer
    from deploykit.runtime import Feeds, Outputs

    Run = tuple[Mapping[str, int], Outputs]  # sizes of the symbols, and the source's outputs at them


def route_of(target: str, via: str) -> Route:
    """The target's route for what that exporter loads."""
    return get_target(target).routes[via]


def writer_of(route: Route) -> Writer:
    """The route's writer; its vendor is imported here, without what it would only find."""
    with hidden(route.hides):
        found: Writer = resolve(route.writer)
    return found


@contextlib.contextmanager
def frameworks_turn(what: str) -> Iterator[None]:
    """Turns whatever a framework raises into VendorError (DK556) with its reason; what: a part of the way."""
    try:
        yield
    except DeploykitError:
        raise
    except Exception as problem:  # converters raise anything
        traceback.print_exception(problem)  # into the worker's log, which -v shows
        lines = in_two_lines(problem).splitlines()
        raise VendorError(
            f"{what} does not take it: {lines[0]}", code="DK556", context=lines[1:], log=lines
        ) from problem


def output_specs(runs: Sequence[Run]) -> tuple[TensorSpec, ...]:
    """The outputs of one or two runs whose sizes differ: numbers that stay, symbols that they follow, or a name."""
    first_sizes, first = runs[0]
    second_sizes, second = runs[-1]
    return tuple(
        TensorSpec(
            name,
            dtype_name(array.dtype),
            tuple(
                _size(name, axis, (a, b), first_sizes, second_sizes)
                for axis, (a, b) in enumerate(zip(array.shape, second[name].shape, strict=True))
            ),
        )
        for name, array in first.items()
    )


def _size(
    name: str, axis: int, seen: tuple[int, int], first: Mapping[str, int], second: Mapping[str, int]
) -> int | str:
    if seen[0] == seen[1]:
        return int(seen[0])
    followed = [symbol for symbol in first if (first[symbol], second[symbol]) == seen]
    return followed[0] if followed else f"{name}_{axis}"


def _widened(samples: Iterable[Sample], integers: Mapping[str, int], seed: int) -> Iterator[Sample]:
    """Random samples with integers anywhere from 0 to their largest value."""
    rng = np.random.default_rng(seed)
    for sample in samples:
        made = {
            name: rng.integers(0, high, sample.feeds[name].shape, sample.feeds[name].dtype, endpoint=True)
            for name, high in integers.items()
        }
        yield Sample({**sample.feeds, **made}, sample.label, sample.name)


def add_beside(
    made: dict[str, Any],
    route: Route,
    artifact: Path,
    run: Callable[[Feeds], Outputs],
    specs: tuple[TensorSpec, ...],
    symbols: Mapping[str, DimRange],
    row: str,
    data: DataRequest,
    seed: int,
    settings: Mapping[str, Any],
) -> None:
    """Writes what goes with the artifact and adds it to the facts of the product; nothing where the writer failed.

    run, specs, symbols, row, data, seed: as in `prove`. settings: the target's options.
    """
    if route.beside is None or any(facts["severity"] == "error" for facts in made["findings"]):
        return

    def answered(artifact: Any) -> Iterator[Answered]:
        dataset, _ = _samples(data, specs, _allowed(symbols, specs, artifact), made["metrics"]["integers"], seed)
        for sample in dataset:
            with contextlib.suppress(Exception):  # the user's code: a sample that the source refuses has no answer
                yield sample.name, sample.feeds, run(sample.feeds)

    beside: Beside = resolve(route.beside)
    found = beside(artifact, answered, row, settings)
    made["companions"] = found["companions"]
    made["findings"] += found["findings"]


def _samples(
    data: DataRequest,
    specs: tuple[TensorSpec, ...],
    symbols: Mapping[str, DimRange],
    integers: Mapping[str, int],
    seed: int,
) -> tuple[Iterable[Sample], list[Finding]]:
    """The user's samples, or random ones at the allowed sizes, and what is to be said of them."""
    bounds = {name: [found.minimum, found.maximum, *found.sizes] for name, found in symbols.items()}
    dataset = open_request({**data, "dims": bounds}, specs)
    random = (data["source"] or "random:").startswith("random:")
    return (_widened(dataset, integers, seed) if random else dataset), dataset.findings


def _allowed(symbols: Mapping[str, DimRange], specs: Sequence[TensorSpec], runtime: Any) -> dict[str, DimRange]:
    """The ranges, narrowed to the sizes that the artifact was made for: a profile can say less than the source."""
    found = dict(symbols)
    for spec in specs:
        for size, made in zip(spec.shape or (), runtime.bounds.get(spec.name, ()), strict=False):
            if isinstance(size, str) and size in found:
                low, high, *sizes = made
                found |= dim_ranges({size: [max(low or 1, found[size].minimum), high, *(sizes or found[size].sizes)]})
    return found


def _fits(sample: Sample, specs: Sequence[TensorSpec], symbols: Mapping[str, DimRange]) -> bool:
    """Whether the sample's sizes are among those that are to be compared."""
    pairs = [
        (symbols[dim], size)
        for spec in specs
        for dim, size in zip(spec.shape or (), sample.feeds[spec.name].shape, strict=False)
        if isinstance(dim, str) and dim in symbols
    ]
    return all(
        bounds.minimum <= size <= (size if bounds.maximum is None else bounds.maximum)
        and (not bounds.sizes or size in bounds.sizes)
        for bounds, size in pairs
    )


def _has_other_way(artifact: Path) -> bool:
    format = format_of(artifact)
    target = target_of_format(format) if format else None
    return target is not None and target.converter is not None


def prove(
    artifact: str,
    run: Callable[[Feeds], Outputs],
    name: str,
    specs: tuple[TensorSpec, ...],
    symbols: Mapping[str, DimRange],
    row: str,
    data: DataRequest,
    seed: int,
    examples: Iterable[Sample],
    integers: Mapping[str, int],
    on_progress: OnProgress,
) -> dict[str, Any]:
    """Compares an artifact with the source's own outputs, on the examples, the user's data, and at all sizes.

    run: outputs by name in the source's framework. row: of `parity.TOLERANCES`. integers: the largest value of an input
    that random samples are to have, where it is known. Returns JSON as `Proof.run`; its
    execution and engine are those of the artifact's runtime. Raises UnavailableError (DK502) where it does not run.
    """
    runtime = open_runtime(Path(artifact))
    try:
        symbols = _allowed(symbols, specs, runtime)
        chosen, said = _samples(data, specs, symbols, integers, seed)
        proof = Proof(
            SourceSide(run, name),
            runtime.predict,
            specs,
            symbols,
            None,
            seed,
            TOLERANCES[row],
            given=[*(sample for sample in examples if _fits(sample, specs, symbols)), *chosen],
            adapt=lambda samples: _widened(samples, integers, seed),
            way="--option route=onnx goes through ONNX" if _has_other_way(Path(artifact)) else "",
        )
        result = proof.run(on_progress)
    finally:
        runtime.close()
    findings = [finding.as_dict() for finding in said] + cast("list[dict[str, Any]]", result["findings"])
    return {**result, "findings": findings, "execution": runtime.execution, "engines": {"candidate": runtime.engine}}
