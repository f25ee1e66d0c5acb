"""`deploykit convert`: ONNX (or any source, through export) to a target's native artifact, checked, built, compared."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.api.bundle import BundleStage, bundle_stage, expect_source, settled
from deploykit.api.convert_stage import ConvertStage
from deploykit.api.export import export, export_stage, parents_of
from deploykit.api.extensions import extension_libraries, split_translations
from deploykit.api.routes import OPTION, RouteStage, attempt, not_taken, way_of
from deploykit.api.warming import imports_of
from deploykit.bundling import bundled_because, output_path
from deploykit.converters.profiles import parse_profiles
from deploykit.data.request import bounds_of, data_request, dim_ranges, known_bounds
from deploykit.errors import DeploykitError, UsageError
from deploykit.exporters.sources import detect
from deploykit.isolation import run_isolated, workers
from deploykit.progress import OnProgress, silent
from deploykit.report import Report, note
from deploykit.route import ONNX
from deploykit.stage import Verification, run_stage
from deploykit.target import (
    Target,
    check_options,
    get_target,
    parse_target,
    require_converter,
    require_packages,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deploykit.api.extensions import CustomOps
    from deploykit.artifact import Artifact


def convert(
    source: str | Path,
    *,
    to: str,
    output: str | Path,
    inputs: Sequence[str] = (),
    dims: Iterable[str] | Mapping[str, Sequence[int | None]] = (),
    sample: str | Path | None = None,
    weights: str | Path | None = None,
    args: Any = None,
    profiles: Iterable[str] | Mapping[str, Sequence[Any]] = (),
    options: Mapping[str, Any] | None = None,
    data: str | None = None,
    calib: str | Path | None = None,
    samples: int = 16,
    reference: str | Path | None = None,
    contract: Any = None,
    custom_ops: CustomOps = None,
    force: bool = False,
    seed: int = 0,
    on_progress: OnProgress = silent,
) -> Report:
    """Converts a model to a target's native artifact, in the precision that the ONNX has.

    source: an ONNX file, or any other source, which is exported first (inputs, sample, weights, args: see `export`).
    to: `name` or `name@version`. dims: `batch=1..64`. profiles: `x=1x3x8x8:8x3x8x8:64x3x8x8`.
    custom_ops: extension libraries, see `extensions.extension_libraries`, and translations, see `export`.
    data: DATA for the comparison, random:0 when not given. calib: DATA on which the converter measures, for targets
    that do. contract: the preprocessing of images, an InputContract or its JSON form.
    reference: the float ONNX for the second gate.
    Returns a report whose metrics hold the converter's facts and `parity` ({"parent": ..., "source": ...}, or null
    where the artifact does not run here). A refused node or a failed comparison is a failed report with no artifact.
    Raises UsageError, OutputError, ModelError, UnavailableError (DK214 for a target that is checked only),
    MissingDependencyError or VendorError.
    """
    target, version = parse_target(to)
    require_converter(target, version)
    check_options(target, options or {})
    translations, rest = split_translations(custom_ops)
    libraries = extension_libraries(rest, [target], besides=[get_target("onnxruntime")])
    own = [file for name, file in libraries.items() if name == "onnxruntime"]
    exporting: list[str | Path] = [*translations, *own] if translations else []
    bounds = bounds_of(dims)
    shapes = parse_profiles(profiles)
    place, suffix = output_path(target, Path(output), options or {})
    final = io.check_output(place, force=force, suffix=suffix)
    bundled = bundled_because(target, Path(output))
    if bundled is not None:
        expect_source(target, source)
    require_packages(target, f"converting to {target.title}")
    about: dict[str, Any] = {"seed": seed, "dims": bounds, "contract": contract}
    # What only a converter of ONNX knows keeps the direct way shut.
    way = way_of(target, source, options or {}, {"--calib": calib, "--custom-ops": custom_ops, "a contract": contract})
    settings = {name: value for name, value in (options or {}).items() if name != OPTION}
    loading: dict[str, Any] = {
        "inputs": inputs,
        "dims": list(dim_ranges({name: [low or 1, *rest] for name, (low, *rest) in bounds.items()}).values()),
        "sample": sample,
        "weights": weights,
        "args": args,
        "seed": seed,
    }
    compared = data_request(data, "parity", samples=samples, **about)
    with workers() as pool:
        if way.via == ONNX:
            pool.warm(imports_of(target))
        said = [] if way.why == "" else [not_taken(target, way.direct, way.why)]
        if way.via != ONNX:
            found = detect(source)
            floating = graph.describe(Path(reference)) if reference is not None else None
            arguments = (target, way.via, export_stage(found, **loading), version, settings, shapes, compared, floating)
            measuring, digest = _measured_on(target, calib, about)
            direct = RouteStage(*arguments, proven=not way.asked, calib=measuring, calib_sha256=digest)
            report, why = attempt(direct, parents_of(found), final, force=force, on_progress=on_progress)
            if report is not None:
                return report
            said = [not_taken(target, way.via, why)]
        try:
            with _onnx(source, loading, exporting, on_progress) as (model, exported):
                if model is None:
                    exported.findings[:0] = said
                    return exported
                artifact = graph.describe(model)
                if model != Path(source):  # the export knows its own, and has written those of one size as numbers
                    varying = {size for spec in artifact.inputs for size in spec.shape or ()}
                    bounds = {name: sizes for name, sizes in bounds.items() if name in varying}
                known_bounds(bounds, artifact.inputs, artifact.path.name)
                stage = (_LastStage if bundled is None else BundleStage)(
                    target,
                    version,
                    settings,
                    bounds,
                    shapes,
                    artifact.precision,
                    compared,
                    graph.describe(Path(reference)) if reference is not None else None,
                    libraries,
                    *_measured_on(target, calib, about),
                    compared["contract"],
                )
                if isinstance(stage, BundleStage):
                    stage.why = str(bundled)
                subjects = {"model": artifact}
                if target.prepares.get("model", "onnx") != "onnx":
                    subjects = parents_of(detect(source))
                writes = bundle_stage(stage, settings, artifact.path)
                report = run_stage(writes, subjects, final, force=force, on_progress=on_progress)
        except DeploykitError as problem:
            problem.context = (*problem.context, *(finding.message for finding in said))
            raise
        if target.routes and Path(source).suffix != ".onnx":
            said = said or [note("DK555", f"goes through ONNX (route={ONNX})", target=target.name)]
        report.findings[:0] = [*said, *exported.findings]
        return report if bundled is None else settled(report)


class _LastStage(ConvertStage):
    """A conversion that nothing follows: its worker's memory is free while the artifact is compared."""

    def ensures(self, inputs: Mapping[str, Artifact], made: Artifact, on_progress: OnProgress) -> Verification:
        """Ends the converter's worker first."""
        with workers() as pool:
            pool.end(self.target.worker)
        return super().ensures(inputs, made, on_progress)


def _measured_on(
    target: Target, calib: str | Path | None, about: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, str | None]:
    """What the converter may measure on, and the digest of that data. UsageError (DK803): a target that measures none.

    about: seed, dims and contract of the request.
    """
    if calib is None:
        return None, None
    if "calib" not in target.takes:
        raise UsageError(
            f"{target.title} measures nothing while it converts, so --calib has no use",
            code="DK803",
            target=target.name,
            hint="calibrate with deploykit quantize MODEL -o OUT --calib DATA, and convert what it writes",
        )
    request = data_request(str(calib), "calibration", **about)
    found = run_isolated("data", "deploykit.data.digests:digest_job", {"source": str(calib), "base": "."})
    return request, str(found)


@contextlib.contextmanager
def _onnx(
    source: str | Path, loading: dict[str, Any], custom_ops: Sequence[str | Path], on_progress: OnProgress
) -> Iterator[tuple[Path | None, Report]]:
    """The source as an ONNX file, and the report of the export that made it; None when the export failed.

    loading: of `export`: inputs, dims, sample, weights, args, seed.
    """
    path = Path(source)
    if path.suffix == ".onnx":
        graph.check_file(path)
        given = {f"--{name.removesuffix('s')}": loading[name] for name in ("inputs", "sample", "args")}
        given["--weights"] = loading["weights"]
        given["--custom-ops with translations"] = [file for file in custom_ops if Path(file).suffix == ".py"]
        ignored = [option for option, value in given.items() if value]
        if ignored:
            raise UsageError(
                f"{' and '.join(ignored)} belong to a source that is exported first, and {path.name} is ONNX already",
                code="DK604",
                hint="leave them away; --dim bounds its dimensions",
            )
        yield path, Report("export")
        return
    with io.scratch_folder() as folder:
        stem = str(source).rpartition(":")[2] if ":" in str(source) else path.stem
        report = export(
            source,
            output=Path(folder) / f"{Path(stem).stem or 'model'}.onnx",
            custom_ops=custom_ops or None,
            on_progress=on_progress,
            **loading,
        )
        made = report.artifact
        yield (made.path if made is not None else None), report
