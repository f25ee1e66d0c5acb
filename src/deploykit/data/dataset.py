"""Dataset: the samples that a DATA argument gives for a model, checked, sampled and streamed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from deploykit.data.fitting import Fitter
from deploykit.data.samples import Sample, Source, Wanted
from deploykit.errors import DataError
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnx_ir as ir

    from deploykit.artifact import TensorSpec
    from deploykit.data.contract import InputContract
    from deploykit.data.samples import Purpose
    from deploykit.data.specs import DimRange

RANDOM = re.compile(r"random(?::(\d+))?")
CALLABLE = re.compile(r"(?P<module>.+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")
FORMS = (
    "file.npz, file.npy, a folder of .npz, a folder of images, file.csv, file.jsonl, file.parquet, "
    "package.module:callable, file.py:callable, random or random:SEED"
)


class Dataset:
    """Checked samples of a source; can be iterated again, and holds one sample at a time beyond what the source holds.

    total: how many samples iteration gives; None when only reading tells. description: the data in one word or two.
    findings: notes and warnings, also those made while iterating, each kind once. labelled: samples have labels.
    """

    def __init__(self, source: Source, wanted: Wanted) -> None:
        """Raises DataError: DK303 no samples, DK307 no labels where accuracy needs them."""
        self._source = source
        self._wanted = wanted
        self.description = source.description
        self.labelled = source.labelled
        self.findings: list[Finding] = source.findings
        self._keep = _sampling(source.total, wanted)
        self.total = source.total if self._keep is None else len(self._keep)
        if self.total is None and wanted.samples is not None:
            self._at_most: int | None = wanted.samples
        else:
            self._at_most = None
        if self.total == 0:
            raise self._nothing()
        if wanted.purpose == "accuracy" and not self.labelled:
            raise DataError(
                f"{source.description} has no labels, and accuracy needs them",
                code="DK307",
                hint=f"add {wanted.label_name or 'labels'!r} to the data, or name them with --label NAME",
            )
        if wanted.label is not None and not self.labelled:
            raise DataError(
                f"{source.description} has no labels named {wanted.label!r}",
                code="DK307",
                hint="check the name after --label, or leave the option out",
            )
        self._fitter = Fitter(wanted, source.description, self.findings)

    def _nothing(self) -> DataError:
        return DataError(
            f"{self.description} gives no samples",
            code="DK303",
            hint=f"give at least one sample; data may be {FORMS}",
        )

    def __iter__(self) -> Iterator[Sample]:
        """Yields the samples.

        Raises DataError for the first one that does not fit (its name in the message), or when there is none.
        """
        done = 0
        for sample in self._source.read(self._keep):
            if done == self._at_most:
                break
            yield self._with_start(self._fitter.fit(sample), done)
            done += 1
        if not done:
            raise self._nothing()

    def _with_start(self, sample: Sample, index: int) -> Sample:
        """The first sample with zeros for carried inputs that it does not give."""
        if index or not self._wanted.carried:
            return sample
        from deploykit.data.start import zero_start

        feeds = dict(sample.feeds)
        for spec in self._wanted.inputs:
            if spec.name not in feeds:
                feeds[spec.name] = zero_start(spec, self._wanted.inputs, sample.feeds)
                said = note(
                    "DK329", f"{self.description}: {spec.name!r} starts with zeros and is carried on", tensor=spec.name
                )
                if said not in self.findings:
                    self.findings.append(said)
        return Sample(feeds, sample.label, sample.name)


def _sampling(total: int | None, wanted: Wanted) -> list[int] | None:
    """The indices to read; None: all. Evenly spread, but the first ones where state is carried from one to the next."""
    if wanted.samples is None or total is None or total <= wanted.samples:
        return None
    if wanted.carried:
        return list(range(wanted.samples))
    return spread(total, wanted.samples)


def spread(total: int, count: int) -> list[int]:
    """`count` ascending indices below `total`, evenly spread, in the middle of equal parts."""
    return [(2 * part + 1) * total // (2 * count) for part in range(count)]


def open_data(
    source: str | None,
    inputs: Sequence[TensorSpec],
    *,
    purpose: Purpose,
    samples: int | None = None,
    seed: int = 0,
    label: str | None = None,
    dims: Mapping[str, DimRange] | None = None,
    contract: InputContract | None = None,
    model: Path | ir.Model | None = None,
) -> Dataset:
    """The samples that a DATA argument gives for a model with these inputs.

    source: a path, a callable, `random[:SEED]`; None: `random:0` for parity and bench, with a note that says so.
    samples: at most so many, evenly spread where the total is known; None: all (random: 16).
    seed: of `random` without one. label: the key or column of the labels; None: `y`. dims: ranges of symbolic
    dimensions, for random data. contract: preprocessing and carried inputs. model: ONNX file, or its graph, that random
    integers obey.
    Raises DataError (DK300-DK331), InvalidFileError for a path that is not there, UnavailableError when a package is
    missing.
    """
    wanted = Wanted(tuple(inputs), purpose, samples, seed, label, dims or {}, contract, model)
    if samples is not None and samples < 1:
        raise DataError(f"{samples} samples were asked for", code="DK303", hint="--samples must be at least 1")
    if source is None:
        if purpose in {"calibration", "accuracy"}:
            option = "--calib" if purpose == "calibration" else "--eval"
            raise DataError(
                f"{purpose} needs data, and none was given",
                code="DK304",
                hint=f"{option} DATA, where DATA is {FORMS}"
                if purpose == "calibration"
                else f"{option} DATA with labels",
            )
        dataset = Dataset(_random(wanted, 0), wanted)
        said = note("DK320", "no data was given: inputs are random:0", hint="--data FILE compares on real inputs")
        dataset.findings.insert(0, said)
        return dataset
    return Dataset(_source(source, wanted), wanted)


def _random(wanted: Wanted, seed: int) -> Source:
    from deploykit.data.random_data import RandomSource

    return RandomSource(wanted, seed)


def _source(source: str, wanted: Wanted) -> Source:
    match = RANDOM.fullmatch(source)
    if match is not None:
        return _random(wanted, wanted.seed if match[1] is None else int(match[1]))
    path = Path(source)
    if path.is_dir():
        from deploykit.data.folders import folder_source

        return folder_source(path, wanted)
    named = CALLABLE.fullmatch(source)
    if not path.exists() and named is not None:
        from deploykit.data.callables import CallableSource

        return CallableSource(named["module"], named["name"], wanted)
    return _file(path, wanted)


def _npz(path: Path, wanted: Wanted) -> Source:
    from deploykit.data.chunks import NpzSource

    return NpzSource(path, wanted)


def _npy(path: Path, wanted: Wanted) -> Source:
    from deploykit.data.chunks import npy_source

    return npy_source(path, wanted)


def _table(path: Path, wanted: Wanted) -> Source:
    from deploykit.data.tables import table_source

    return table_source(path, wanted)


_FILES: dict[str, Callable[[Path, Wanted], Source]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".csv": _table,
    ".jsonl": _table,
    ".parquet": _table,
}


READABLE = tuple(_FILES)  # suffixes of data files


def _file(path: Path, wanted: Wanted) -> Source:
    from deploykit.io import existing_file

    reader = _FILES.get(path.suffix.lower())
    existing_file(path, "data file")
    if reader is None:
        raise DataError(
            f"{path.name} is not a kind of data that is read", code="DK305", file=path, hint=f"data may be {FORMS}"
        )
    return reader(path, wanted)
