"""The direct route from TensorFlow: one function without variables, handed to a target's writer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from deploykit.data import DimRange, open_data
from deploykit.errors import VendorError
from deploykit.exporters import tensorflow_source
from deploykit.exporters.direct import add_beside, frameworks_turn, output_specs, prove, route_of, writer_of
from deploykit.exporters.tensorflow_export import SMALLEST, example_sizes, layouts_of
from deploykit.exporters.tensorflow_source import read_sample
from deploykit.lazy import versions_of
from deploykit.parity import row_for
from deploykit.progress import OnProgress, silent
from deploykit.report import note
from deploykit.route import Handed
from deploykit.target import get_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.data import DataRequest
    from deploykit.exporters.direct import Run
    from deploykit.exporters.request import TensorflowRequest
    from deploykit.exporters.tensorflow_graph import Frozen
    from deploykit.exporters.tensorflow_source import LoadedSource

_FLOATS = {"float16": "fp16", "bfloat16": "bf16"}


def convert_job(
    request: TensorflowRequest,
    output: str,
    target: str,
    options: Mapping[str, Any],
    profiles: Mapping[str, Sequence[Sequence[int]]],
    data: DataRequest,
    calib: DataRequest | None = None,
) -> dict[str, Any]:
    """Writes a target's artifact of a TensorFlow source at `output`; the facts of a `Product` as JSON.

    calib: what the writer measures on, for routes that do.
    Raises what loading the source raises, and VendorError (DK556) where the target's vendor does not take the graph.
    """
    source = tensorflow_source.load(request)
    route = route_of(target, "tensorflow")
    if source.model.frozen is None and (source.model.lite is None or request["kind"] not in route.kinds):
        raise VendorError(f"{Path(request['path']).name} has no graph of TensorFlow", code="DK556")
    writer = writer_of(route)
    runs = _runs(source, request["seed"])
    if not runs:
        raise VendorError("the model takes none of the sizes that were tried", code="DK556", hint="--dim NAME=MIN..MAX")
    with frameworks_turn("TensorFlow's freezing"):
        program = source.model.lite if source.model.frozen is None else _function(source.model.frozen, source)
    bounds = {name: [r.minimum, r.maximum, *r.sizes] for name, r in source.symbols.items()}
    limits = get_target(target).bounded(bounds)
    outputs = output_specs(runs)
    handed = Handed(program, source.specs, outputs, Path(output), options, limits, profiles, calib)
    made = writer(handed)
    layouts = layouts_of(source, (*handed.inputs, *handed.outputs))
    kept = ", ".join(f"{name} {kind.upper()}" for name, kind in layouts.items())
    if kept:
        made["findings"].append(note("DK654", f"image tensors keep the source's layout: {kept}").as_dict())
    made["versions"] |= versions_of("tensorflow", "tensorflow-cpu", "keras")
    made["precision"] = made.get("precision") or _precision(source)
    made["metrics"] |= {"layout": layouts, "integers": {}}
    row = row_for(_precision(source), made["precision"])
    place, seed = Path(output), request["seed"]
    add_beside(made, route, place, source.model.run, source.specs, source.symbols, row, data, seed, options)
    return made


def prove_job(
    request: TensorflowRequest,
    artifact: str,
    precision: str,
    data: DataRequest,
    integers: Mapping[str, int],
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Compares the artifact with the model of the request; JSON as `direct.prove`.

    precision: of the artifact. data: what the user gave to compare on, or random inputs. integers: of `convert_job`.
    """
    source = tensorflow_source.load(request)
    examples = [read_sample(request["sample"], source.specs)] if request["sample"] else []
    row = row_for(_precision(source), precision)
    found = prove(
        artifact,
        source.model.run,
        "the model",
        source.specs,
        source.symbols,
        row,
        data,
        request["seed"],
        examples,
        integers,
        on_progress,
    )
    found["engines"]["reference"] = source.model.engine
    return found


def _precision(source: LoadedSource) -> str:
    """The narrowest floating point type among inputs and outputs."""
    kinds = [_FLOATS[port.dtype] for port in (*source.model.inputs, *source.model.outputs) if port.dtype in _FLOATS]
    return kinds[0] if kinds else "fp32"


def _function(frozen: Frozen, source: LoadedSource) -> Any:
    """The frozen graph as a function of placeholders in the order of the specs; what it names is `deploykit_`."""
    specs = {spec.name: spec for spec in source.specs}
    inputs: dict[str, Any] = {}
    graph_def = _with_own_functions(frozen.graph_def)

    def build() -> list[Any]:
        for tensor, public in frozen.inputs.items():
            shape = [size if isinstance(size, int) else None for size in specs[public].shape or ()]
            place = f"deploykit_input_{len(inputs)}"
            inputs[tensor] = tf.compat.v1.placeholder(tf.as_dtype(specs[public].dtype), shape, place)
        made = tf.graph_util.import_graph_def(
            graph_def, input_map=inputs, return_elements=list(frozen.outputs), name="net"
        )
        return [tf.identity(value, f"deploykit_output_{at}") for at, value in enumerate(made)]

    whole = tf.compat.v1.wrap_function(build, [])
    by_public = {public: inputs[tensor] for tensor, public in frozen.inputs.items()}
    feeds = [by_public[spec.name] for spec in source.specs]
    fetches = [whole.graph.get_tensor_by_name(f"deploykit_output_{at}:0") for at in range(len(frozen.outputs))]
    return whole.prune(feeds, fetches)


def _with_own_functions(graph_def: Any) -> Any:
    """The graph with new names for its functions: TensorFlow keeps one table of them for the whole process."""
    made = type(graph_def)()
    made.CopyFrom(graph_def)
    names = {function.signature.name: f"deploykit_{function.signature.name}" for function in made.library.function}
    for function in made.library.function:
        function.signature.name = names[function.signature.name]
    for gradient in made.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for node in (*made.node, *(inner for function in made.library.function for inner in function.node_def)):
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            kind = value.WhichOneof("value")
            for called in [value.func] if kind == "func" else value.list.func if kind == "list" else ():
                called.name = names.get(called.name, called.name)
    return made


def _runs(source: LoadedSource, seed: int) -> list[Run]:
    """The source's outputs at two sets of sizes that all differ; fewer where it refuses them."""
    best: list[Run] = []
    for smallest in SMALLEST:
        runs: list[Run] = []
        for turn in (0, 1):
            sizes = example_sizes(source.symbols, smallest, turn)
            bounds = {name: DimRange(name, size, size) for name, size in sizes.items()}
            (sample,) = open_data(f"random:{seed}", source.specs, purpose="parity", samples=1, dims=bounds)
            try:
                runs.append((sizes, source.model.run(sample.feeds)))
            except Exception:  # a size that the model does not take; the next ones may fit
                break
        best = max(best, runs, key=len)
        if len(best) == 2:
            break
    return best
