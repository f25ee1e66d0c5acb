"""ONNX to a folder that a web server hands out: model, page, Node script, and ONNX Runtime Web (runs in the worker)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit import graph, io
from deploykit.converters.bounds import unused_bounds
from deploykit.converters.onnxruntime.dimensions import fix_sizes, fixed_sizes
from deploykit.converters.onnxruntime_web.folder import ASSETS, MARKER, MODEL, PAGE, SCHEMA, SCRIPTS
from deploykit.converters.onnxruntime_web.frames import DTYPES, rows_of
from deploykit.converters.onnxruntime_web.limits import findings_for
from deploykit.converters.onnxruntime_web.package import (
    NAME,
    VERSION,
    find_package,
    install_command,
    node_version,
)
from deploykit.data.request import data_request, open_request
from deploykit.errors import DataError, GateError, UsageError
from deploykit.report import note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.onnxruntime_web.package import Package
    from deploykit.report import Finding

_COPY, _NONE = "copy", "none"
_HERE = "ort/"
_RANDOM = "random:0"


def convert_job(
    model: str,
    output: str,
    options: Mapping[str, Any],
    dims: Mapping[str, Sequence[int | None]],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    precision: str,
    contract: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes the folder `output`: the model as it is, with dimensions of one size fixed, and what runs it.

    The page's sample is the first one of the option `sample`, of random:0 without it. ONNX Runtime Web is copied from
    the npm package where one is installed (option `runtime`: copy, none, or an address that the page loads it from).
    Raises UsageError (DK527) for a wrong option, GateError (DK526) for an input that JavaScript has no type for.
    """
    path, final = Path(model), Path(output)
    backend = str(options.get("version", "wasm"))
    package = find_package()
    source = _source(options, package)
    loaded = graph.load(path)
    inputs, outputs = graph.interface(loaded)
    _expect_types(path, (*inputs, *outputs))
    fix_sizes(loaded, fixed_sizes(inputs, dims, profiles))
    findings = unused_bounds(inputs, dims, profiles, target=NAME)
    findings += findings_for(path, loaded, backend, dims)
    if any(finding.severity == "error" for finding in findings):
        return _facts(loaded, final, findings, {}, {})
    inputs, outputs = graph.interface(loaded)
    with io.no_space_named(Path(final.name)):
        final.mkdir()
        files = graph.save(loaded, final / MODEL)
        for name in PAGE:
            shutil.copyfile(ASSETS / name, final / name)
        sample = _write_sample(final, path, inputs, str(options.get("sample", _RANDOM)), dims, contract)
        copied = _copy(source, package, backend, final)
        version = package.version if package is not None else VERSION
        facts = {
            "schema": SCHEMA,
            "title": loaded.graph.name or "model",
            "model": MODEL,
            "external": [name for name in files if name != MODEL],
            "backend": backend,
            "version": version,
            "runtime": source if source not in (_COPY, _NONE) else _HERE,
            "script": SCRIPTS[backend][0],
            "inputs": [spec.as_dict() for spec in inputs],
            "outputs": [spec.as_dict() for spec in outputs],
            "sample": sample,
        }
        _write_json(final / MARKER, facts)
        _write_json(final / "package.json", _package_json(version))
    if not copied and source in (_COPY, _NONE):
        findings.append(_without_runtime(version, backend, package))
    return _facts(
        loaded,
        final,
        findings,
        {**({NAME: version} if copied else {}), **({"node": node} if (node := node_version()) else {})},
        {"backend": backend, "runtime": "copied" if copied else source, "runtime_version": version},
    )


def _facts(
    loaded: Any, final: Path, findings: Sequence[Finding], versions: Mapping[str, str], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    inputs, outputs = graph.interface(loaded)
    return {
        "inputs": [spec.as_dict() for spec in inputs],
        "outputs": [spec.as_dict() for spec in outputs],
        "files": [final.name],
        "versions": dict(versions),
        "findings": [finding.as_dict() for finding in findings],
        "metrics": {**metrics, "nodes": sum(1 for _ in graph.all_nodes(loaded))},
    }


def _source(options: Mapping[str, Any], package: Package | None) -> str:
    """Where the page gets ONNX Runtime Web: "copy", "none" or an address that ends in a slash."""
    asked = str(options.get("runtime", _COPY if package is not None else _NONE))
    if asked.startswith(("https://", "http://", "/")):
        return asked if asked.endswith("/") else f"{asked}/"
    if asked not in (_COPY, _NONE):
        raise UsageError(
            f"runtime is {_COPY}, {_NONE} or the address of a dist folder, not {asked!r}", code="DK527", target=NAME
        )
    if asked == _COPY and package is None:
        raise UsageError(
            f"runtime={_COPY} needs the npm package {NAME}, which is not installed",
            code="DK527",
            target=NAME,
            hint=install_command(),
        )
    return asked


def _expect_types(path: Path, specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        if spec.dtype not in DTYPES:
            raise GateError(
                f"{spec.name!r} is {spec.dtype}, and JavaScript has no tensors of that type",
                code="DK526",
                file=path,
                tensor=spec.name,
                target=NAME,
                hint="cast it to float32 inside the model",
            )


def _write_sample(
    folder: Path,
    model: Path,
    inputs: Sequence[TensorSpec],
    source: str,
    dims: Mapping[str, Sequence[int | None]],
    contract: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """Writes sample.bin, and returns what lies where in it."""
    request = data_request(source, "parity", samples=1, dims=dims, contract=contract)
    try:
        feeds = next(iter(open_request(request, inputs, model=model))).feeds  # type: ignore[arg-type]
    except DataError as problem:
        if source == _RANDOM:
            problem.hint = f"--option sample=FILE.npz gives the page inputs to show; {problem.hint}".rstrip("; ")
        raise
    rows, parts = rows_of(feeds, inputs)
    (folder / "sample.bin").write_bytes(b"".join(parts))
    return rows


def _copy(source: str, package: Package | None, backend: str, folder: Path) -> bool:
    if source != _COPY or package is None:
        return False
    place = folder / _HERE
    place.mkdir()
    for name in SCRIPTS[backend]:
        shutil.copyfile(package.dist / name, place / name)
    return True


def _package_json(version: str) -> dict[str, Any]:
    return {
        "name": "model",
        "private": True,
        "type": "module",
        "scripts": {"start": "node run.mjs"},
        "dependencies": {NAME: version},
    }


def _write_json(path: Path, facts: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _without_runtime(version: str, backend: str, package: Package | None) -> Finding:
    needed = ", ".join(SCRIPTS[backend])
    return note(
        "DK574",
        f"the page has no ONNX Runtime Web beside it: it loads {needed} of {NAME} {version} from {_HERE}",
        target=NAME,
        hint=("" if package else f"{install_command()} and convert again, or ")
        + f"copy them from the npm package's dist/ to OUT/{_HERE}",
    )
