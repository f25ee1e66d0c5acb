"""What coremltools' own front-ends have in common: the interface asked for, the package, and the look at it afterwards.

The framework is imported here beside coremltools, so this runs in the worker of a direct route only.
"""

from __future__ import annotations

import contextlib
import io as memory
import logging
import traceback
import warnings
from typing import TYPE_CHECKING, Any

import coremltools as ct
import numpy as np

from deploykit import io
from deploykit.converters.coreml.asked import Asked, asked_for
from deploykit.converters.coreml.convert import (
    expect_space,
    interface_changes,
    interface_mismatches,
    passes,
    product_facts,
)
from deploykit.converters.coreml.door import package_shapes, write_names
from deploykit.converters.coreml.frontend import door_type
from deploykit.converters.coreml.inspect import open_package
from deploykit.converters.coreml.naming import mil_names
from deploykit.converters.coreml.options import deployment_target
from deploykit.converters.coreml.package import normalize
from deploykit.converters.coreml.shapes import declared, plan, shape_mismatches, write_shapes
from deploykit.converters.coreml.shapes_record import interface_record
from deploykit.converters.coreml.support import NAME, interface_problems
from deploykit.converters.profiles import resolve_profiles
from deploykit.errors import DeploykitError, VendorError
from deploykit.lazy import versions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from deploykit.converters.coreml.shapes import Flexibility
    from deploykit.route import Handed

    # `ct.convert` with the arguments that a front-end has of its own: inputs, package names by the model's, common.
    Front = Callable[[list[Any], Mapping[str, str], dict[str, Any]], Any]

_LONG = 400  # characters of a reason


def write_package(handed: Handed, front: Front) -> dict[str, Any]:
    """Writes the package at `handed.output` and compares its interface with what was asked for; a `Product` as JSON.

    front: calls `ct.convert`. Raises VendorError (DK556) with the node that coremltools stopped at, UsageError
    (DK527) for a bad option.
    """
    target = deployment_target(handed.options)
    inputs, outputs = handed.inputs, handed.outputs
    shapes, findings = resolve_profiles(inputs, handed.dims, _listed(handed), target=NAME)
    findings += interface_problems(inputs, outputs)
    result: dict[str, Any] = {
        "inputs": [],
        "outputs": [],
        "files": [handed.output.name],
        "versions": versions_of("coremltools"),
        "findings": findings,
        "metrics": {},
    }
    if not any(finding.severity == "error" for finding in findings):
        flexibility, more = plan(inputs, handed.dims, _listed(handed), shapes, target)
        findings += more
        asked = asked_for(handed.options, handed.output, inputs, outputs, {}, None)
    if not any(finding.severity == "error" for finding in findings):
        names = mil_names([spec.name for spec in (*inputs, *outputs)])
        findings += interface_changes(inputs, asked.vectors(outputs), names) + asked.changes()
        with io.no_space_named(type(handed.output)(handed.output.name)):
            _save(handed, front, names, flexibility, target, asked)
        opened = open_package(handed.output)
        findings += shape_mismatches(flexibility.renamed(names), package_shapes(opened.spec))
        findings += interface_mismatches(inputs, asked.vectors(outputs), names, opened.facts)
        findings += asked.mismatches(opened, names)
        result |= asked.facts(product_facts(inputs, outputs, names, opened.facts), names, opened.facts)
        result["interface"] = interface_record(inputs, outputs, names, result, flexibility)
    result["findings"] = [finding.as_dict() for finding in findings]
    return result


def _listed(handed: Handed) -> dict[str, list[list[int]]]:
    return {name: [list(shape) for shape in shapes] for name, shapes in handed.profiles.items()}


def _save(
    handed: Handed, front: Front, names: Mapping[str, str], flexibility: Flexibility, target: str, asked: Asked
) -> None:
    interface = [
        ct.TensorType(
            name=names[spec.name],
            shape=declared(spec.name, flexibility),
            dtype=np.dtype(door_type(spec.dtype) or spec.dtype).type,
        )
        for spec in handed.inputs
    ]
    common = {
        "convert_to": "mlprogram",
        "minimum_deployment_target": ct.target[target],
        "compute_precision": ct.precision.FLOAT32,  # "as the program says": no pass changes it
        "skip_model_load": True,
        "pass_pipeline": passes(),
        "classifier_config": asked.classifier(names),
    }
    with _quiet():
        with _front_ends_turn():
            package = front(interface, names, common)
        try:
            package.save(str(handed.output))
        except RuntimeError as problem:
            if "FileWriter" in str(problem):
                expect_space()
            raise
    spec = package.get_spec()
    write_names(spec, names, list(names))
    write_shapes(spec, flexibility.renamed(names))
    asked.write(spec, names)
    normalize(handed.output, spec)


@contextlib.contextmanager
def _front_ends_turn() -> Iterator[None]:
    """Turns what a front-end raises into VendorError (DK556), with the node that its frames call `node`."""
    try:
        yield
    except DeploykitError:
        raise
    except Exception as problem:  # front-ends raise anything
        why = f"{type(problem).__name__}: {' '.join(str(problem).split())[:_LONG]}"
        for frame, _ in reversed(list(traceback.walk_tb(problem.__traceback__))):
            node = frame.f_locals.get("node")
            op, name = getattr(node, "kind", None) or getattr(node, "op", None), getattr(node, "name", None)
            op = str(getattr(node, "target", op)) if op == "call_function" else op  # of torch.fx
            if isinstance(op, str) and isinstance(name, str):
                text = f"coremltools does not take node {name!r} ({op}): {why}"
                raise VendorError(text, code="DK556", op=op, node=name, log=[why]) from problem
        raise VendorError(f"coremltools does not take it: {why}", code="DK556", log=[why]) from problem


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences coremltools' notes about types at the interface, which are findings here, and its progress bars."""
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(memory.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
