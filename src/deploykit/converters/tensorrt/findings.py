"""What TensorRT says while it parses and builds, as findings that name the ONNX node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploykit.errors import DeploykitError, UsageError, VendorError
from deploykit.report import Finding, failure, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.profiles import Profile
    from deploykit.converters.tensorrt.engine import BuildError, Messages, RefusedError

_PLACES = ("MIN", "OPT", "MAX")
_CONTRADICTION = re.compile(
    r"k(?P<which>MIN|OPT|MAX) values for profile (?P<number>\d+) violate shape constraints: "
    r"(?P<node>[^:]+): (?P<why>.+?)( In |$)"
)
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "FP8": "float8_e4m3fn",
    "FP4": "float4_e2m1fn",
    "INT4": "int4",
}


def dtype_name(kind: Any) -> str:
    """Numpy's name of a `DataType`; TensorRT's own where numpy has none."""
    return _DTYPES.get(kind.name, str(kind.name).lower())


def of_log(log: Messages, target: str, title: str, start: int = 0) -> list[Finding]:
    """What messages after `start` amount to: an error each for dropped settings and errors, a note for warnings."""
    return [
        *(
            failure(
                "DK523",
                f"{title} dropped or refused something: {message}",
                target=target,
                hint="remove the option or node that it names; the engine would not be what was asked for",
            )
            for message in log.dropped(start)
        ),
        *(note("DK524", f"{title} warns: {message}", target=target) for message in log.warned(start)),
    ]


def refused(problem: RefusedError, model: str, target: str, title: str) -> list[Finding]:
    """An error for each node that the parser refuses. Raises VendorError (DK525) when it names none."""
    if not problem.problems:
        name = Path(model).name
        raise VendorError(
            f"{title} does not read {name}", code="DK525", file=model, target=target, log=problem.log
        ) from problem
    return [
        failure(
            "DK526",
            f"{title} refuses node {found.node!r} ({found.op}): {found.reason}",
            target=target,
            node=found.node,
            op=found.op,
            hint=f"deploykit check {Path(model).name} --target {target} lists every node and what to do",
        )
        for found in problem.problems
    ]


def not_built(
    problem: BuildError, profiles: Sequence[Mapping[str, Profile]], target: str, title: str, hint: str
) -> DeploykitError:
    """The builder's failure as our error, naming the layer where it does: VendorError (DK525).

    Shapes that contradict each other inside the model are the profile's fault: UsageError (DK521).
    """
    found = next(filter(None, map(_CONTRADICTION.search, problem.errors)), None)
    if found is not None and int(found["number"]) < len(profiles):
        which, shapes = _PLACES.index(found["which"]), profiles[int(found["number"])]
        tried = ", ".join(f"{name}={'x'.join(map(str, profile[which]))}" for name, profile in shapes.items())
        number = f" {int(found['number']) + 1}" if len(profiles) > 1 else ""
        return UsageError(
            f"the model does not run in the {found['which']} shape of its profile{number}, {tried}: {found['why']}",
            code="DK521",
            node=found["node"],
            target=target,
            hint="--profile INPUT=MIN:OPT:MAX with three shapes that the model runs in, as with multiples of its "
            "strides",
        )
    return VendorError(
        f"{title} could not build the engine{f' at {problem.node!r}' if problem.node else ''}: {problem.errors[-1]}",
        code="DK525",
        node=problem.node,
        target=target,
        log=problem.log,
        hint=hint,
    )


def interface_changes(
    network: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], target: str
) -> list[Finding]:
    """The engine's tensors against the model's: a renamed or retyped one is an error, never silent."""
    built = {
        tensor.name: dtype_name(tensor.dtype)
        for tensor in [
            *(network.get_input(index) for index in range(network.num_inputs)),
            *(network.get_output(index) for index in range(network.num_outputs)),
        ]
    }
    return [
        failure(
            "DK529",
            f"tensor {spec.name!r} is {spec.dtype} in the model and {built.get(spec.name, 'missing')} in the engine",
            target=target,
            tensor=spec.name,
            hint="change its type in the model, or remove the tensor when nothing uses it",
        )
        for spec in [*inputs, *outputs]
        if built.get(spec.name) != spec.dtype
    ]
