"""ONNX to TensorFlow by onnx2tf, in the largest pieces that come out right (runs in the managed environment).

onnx2tf guesses from shapes where channels went: on whole models it stops, or gives other values. So what it makes is
compared with ONNX Runtime; a piece that fails is cut in two where the fewest tensors cross, down to nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from deploykit.converters.litert.onnx2tf_moves import move_of
from deploykit.converters.litert.onnx2tf_values import axes_that_fit, sentence, slacks, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Array = np.ndarray[Any, Any]
    Values = list[dict[str, Array]]  # of tensors by name, for each feed

_IR_VERSION = 10  # what the environment's onnxruntime reads


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A node that onnx2tf does not convert, or converts to something else."""

    node: str
    op: str
    domain: str
    reason: str


@dataclasses.dataclass
class Piece:
    """A converted run of nodes: what it takes and gives by ONNX name, and the Keras model.

    permutations: by which axes of its outputs come back into the model's order; () leaves them. dtypes: of its outputs.
    slacks: see `onnx2tf_values`.
    """

    nodes: int
    inputs: list[str]
    outputs: list[str]
    model: Any
    order: list[int]
    permutations: list[tuple[int, ...]]
    dtypes: list[str]
    slacks: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __call__(self, tensors: dict[str, Any]) -> None:
        """Computes its outputs from tensors, and adds them."""
        import tensorflow as tf

        given = [tensors[name] for name in self.inputs]
        found = self.model([given[place] for place in self.order] if len(given) > 1 else given[0])
        results = list(found) if isinstance(found, (list, tuple)) else [found]
        for name, result, axes, dtype in zip(self.outputs, results, self.permutations, self.dtypes, strict=True):
            moved = tf.transpose(result, axes) if axes else result
            tensors[name] = moved if moved.dtype == dtype else tf.cast(moved, dtype)


class StoppedError(Exception):
    """A node has no values to go on with."""


class LateError(Exception):
    """There is no time left, and no node is refused yet."""


class Segments:
    """The pieces of one model.

    model: opset and shapes as `from_onnx` prepares them; every node named. feeds: two sets of inputs whose symbolic
    sizes differ, so that a size which is the same in both is fixed.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Values,
        convert: Callable[..., Any],
        check: Callable[[Piece, Values, list[list[Array]]], str] = lambda piece, values, wanted: "",
        tried: Mapping[tuple[int, int], tuple[Piece | None, str]] | None = None,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        """convert: `onnx2tf.convert`. check: what else is wrong with a piece, given inputs and wanted outputs.

        tried: `tried` of other segments of this model, not to be converted again. late: whether to stop.
        """
        self._check, self._late = check, late
        self._known = dict(tried or {})
        self.tried: dict[tuple[int, int], tuple[Piece | None, str]] = {}
        self._model = model
        self._graph = model.graph
        self._convert = convert
        self._constants = {tensor.name: tensor for tensor in self._graph.initializer}
        self._types = {
            value.name: value for value in (*self._graph.value_info, *self._graph.input, *self._graph.output)
        }
        self._nodes = list(self._graph.node)
        self.slacks = slacks(self._nodes)
        self._results = [value.name for value in self._graph.output]
        self.values: Values = [dict(feed) for feed in feeds]
        self.pieces: list[Piece] = []
        self.refusals: list[Refusal] = []

    def build(self) -> None:
        """Converts everything; `pieces` are then in order, or `refusals` say what stopped it. Raises LateError."""
        with contextlib.suppress(StoppedError):
            self._take(0, len(self._nodes))

    def constants(self) -> dict[str, Array]:
        """Results of the model that do not depend on its inputs."""
        return {name: numpy_helper.to_array(self._constants[name]) for name in self._results if name in self._constants}

    def _take(self, start: int, stop: int) -> None:
        if start == stop:
            return
        if self._late():
            raise StoppedError if self.refusals else LateError
        nodes = self._nodes[start:stop]
        inputs, outputs = self._border(start, stop)
        if not outputs:  # nobody reads what they compute
            return
        part = self._part(nodes, inputs, outputs)
        try:
            wanted = self._expected(part, inputs, outputs)
        except Exception as problem:  # onnxruntime's errors have no common class
            if len(nodes) > 1:
                middle = self._cut(start, stop)
                self._take(start, middle)
                self._take(middle, stop)
                return
            reason = f"ONNX Runtime {ort.__version__}, whose values onnx2tf's are compared with, does not run it: "
            self.refusals.append(Refusal(nodes[0].name, nodes[0].op_type, nodes[0].domain, reason + sentence(problem)))
            raise StoppedError from problem
        if stop - start == 1 and not inputs:
            # Nothing that varies goes in: what ONNX Runtime gives is a constant.
            for name, value in zip(outputs, wanted[0], strict=True):
                tensor = numpy_helper.from_array(np.asarray(value), name)
                self._constants[name] = tensor
            return
        if inputs:
            piece, reason = self._found((start, stop), part, inputs, outputs, wanted)
            if piece is not None:
                self.pieces.append(piece)
                self._keep(outputs, wanted, stop)
                return
            if len(nodes) == 1:
                node = nodes[0]
                self.refusals.append(Refusal(node.name, node.op_type, node.domain, reason))
                self._keep(outputs, wanted, stop)
                return
        middle = self._cut(start, stop)
        self._take(start, middle)
        self._take(middle, stop)

    def _found(
        self,
        place: tuple[int, int],
        part: onnx.ModelProto,
        inputs: list[str],
        outputs: list[str],
        wanted: list[list[Array]],
    ) -> tuple[Piece | None, str]:
        """What is known of these nodes, or comes of converting them."""
        known, reason = self._known.get(place, (None, ""))
        if known is not None:
            reason = self._check(known, self.values, wanted)
            if not reason:
                self.tried[place] = known, ""
                return self.tried[place]
        if (place not in self._known and not reason) or len(part.graph.node) == 1:
            self.tried[place] = self._converted(part, inputs, outputs, wanted)
        else:  # a whole that has failed before fails again, or it is right in TensorFlow and not beyond
            self.tried[place] = None, reason
        return self.tried[place]

    def _keep(self, outputs: Sequence[str], wanted: Sequence[Sequence[Array]], stop: int) -> None:
        """Values of what was given, and no more of what nobody reads any more."""
        for values, results in zip(self.values, wanted, strict=True):
            values.update(zip(outputs, results, strict=True))
        read = set(self._results).union(*(_reads(node) for node in self._nodes[stop:]))
        for values in self.values:
            for name in [name for name in values if name not in read]:
                del values[name]

    def _border(self, start: int, stop: int) -> tuple[list[str], list[str]]:
        """What the nodes take from before that is no constant, and what they give to those behind."""
        nodes = self._nodes[start:stop]
        made = [name for node in nodes for name in node.output if name]
        known = set(made) | set(self._constants)
        inputs = list(dict.fromkeys(name for node in nodes for name in _reads(node) if name not in known))
        later = set(self._results).union(*(_reads(node) for node in self._nodes[stop:]))
        return inputs, [name for name in made if name in later]

    def _cut(self, start: int, stop: int) -> int:
        """Where the fewest tensors cross, in the middle half."""
        quarter = (stop - start) // 4
        places = range(start + max(quarter, 1), max(stop - max(quarter, 1), start + 1) + 1)
        middle = (start + stop) / 2
        return min(places, key=lambda place: (len(self._border(start, place)[1]), abs(place - middle)))

    def _part(self, nodes: Sequence[onnx.NodeProto], inputs: list[str], outputs: list[str]) -> onnx.ModelProto:
        """The nodes as a model whose names onnx2tf cannot mistake: it cuts and joins names by their characters."""
        called = {name: f"i{place}" for place, name in enumerate(inputs)}
        called |= {name: f"o{place}" for place, name in enumerate(outputs)}
        copies = []
        for place, node in enumerate(nodes):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = f"n{place}"
            copies.append(copy)
        for name in dict.fromkeys(name for node in nodes for name in (*_reads(node), *node.output)):
            if name:
                called.setdefault(name, f"t{len(called)}")
        constants = []
        for name in dict.fromkeys(name for node in nodes for name in _reads(node) if name in self._constants):
            tensor = onnx.TensorProto()
            tensor.CopyFrom(self._constants[name])
            tensor.name = called[name]
            constants.append(tensor)
        for copy in copies:
            _rename(copy, called)
        graph = helper.make_graph(
            copies,
            "piece",
            [self._info(name, called[name], place) for place, name in enumerate(inputs)],
            [self._info(name, called[name], None) for name in outputs],
            constants,
            value_info=[
                self._typed(name, called[name])
                for name in called
                if name in self._types and name not in inputs + outputs
            ],
        )
        return helper.make_model(graph, opset_imports=self._model.opset_import, ir_version=_IR_VERSION)

    def _typed(self, name: str, called: str) -> onnx.ValueInfoProto:
        info = onnx.ValueInfoProto()
        info.CopyFrom(self._types[name])
        info.name = called
        return info

    def _info(self, name: str, called: str, place: int | None) -> onnx.ValueInfoProto:
        """Type and shape: of an input as both feeds have it, of an output as the model declares or infers it."""
        if place is None:
            return self._typed(name, called) if name in self._types else onnx.ValueInfoProto(name=called)
        first, second = (values[name] for values in self.values)
        shape: list[int | str] = [
            size if size == other else f"{called}_{axis}"
            for axis, (size, other) in enumerate(zip(first.shape, second.shape, strict=True))
        ]
        for axis, size in enumerate(self._declared(name, len(shape))):
            # A symbol stays one also where both feeds happen to agree.
            if isinstance(size, str):
                shape[axis] = f"{called}_{axis}"
        return helper.make_tensor_value_info(called, helper.np_dtype_to_tensor_dtype(first.dtype), shape)

    def _declared(self, name: str, rank: int) -> list[int | str | None]:
        if name not in {value.name for value in self._graph.input}:
            return [None] * rank
        dims = self._types[name].type.tensor_type.shape.dim
        return [dim.dim_param or dim.dim_value for dim in dims]

    def _expected(self, part: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> list[list[Array]]:
        settings = ort.SessionOptions()
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        settings.log_severity_level = 4
        session = ort.InferenceSession(part.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        names = [f"o{place}" for place in range(len(outputs))]
        return [
            session.run(names, {f"i{place}": values[name] for place, name in enumerate(inputs)})
            for values in self.values
        ]

    def _converted(
        self, part: onnx.ModelProto, inputs: list[str], outputs: list[str], wanted: list[list[Array]]
    ) -> tuple[Piece | None, str]:
        """The piece, or why it is none: what onnx2tf did first."""
        reason = ""
        own = move_of(part) if len(part.graph.node) == 1 else None
        if own is not None:
            piece, wrong = self._judged(part, inputs, outputs, own, list(range(len(inputs))), wanted)
            if not wrong:
                return piece, ""
        # The second way is quick to fail and seldom better: for the whole, and where there is nothing left to cut.
        loose = len(part.graph.node) in (1, len(self._nodes))
        for settings in ({}, {"disable_strict_mode": True}) if loose else ({},):
            try:
                model = self._keras(part, len(inputs), settings)
                order = _order(model.input_names, len(inputs))
            except (Exception, SystemExit) as problem:  # onnx2tf raises whatever TensorFlow does, and exits
                reason = reason or f"onnx2tf stops: {sentence(problem)}"
                continue
            piece, wrong = self._judged(part, inputs, outputs, model, order, wanted)
            if not wrong:
                return piece, ""
            reason = reason or wrong
        return None, reason

    def _judged(
        self,
        part: onnx.ModelProto,
        inputs: list[str],
        outputs: list[str],
        model: Any,
        order: list[int],
        wanted: list[list[Array]],
    ) -> tuple[Piece, str]:
        kinds = [str(np.asarray(value).dtype) for value in wanted[0]]
        piece = Piece(len(part.graph.node), inputs, outputs, model, order, [()] * len(outputs), kinds, self.slacks)
        return piece, self._compare(piece, wanted) or self._check(piece, self.values, wanted)

    def _keras(self, part: onnx.ModelProto, count: int, settings: Mapping[str, Any]) -> Any:
        with tempfile.TemporaryDirectory() as folder, _inside(folder):
            path = Path(folder) / "model.onnx"
            onnx.save(part, str(path))
            return self._convert(
                input_onnx_file_path=str(path),
                output_folder_path=str(Path(folder) / "out"),
                keep_shape_absolutely_input_names=[f"i{place}" for place in range(count)],
                not_use_onnxsim=True,
                disable_model_save=True,
                verbosity="error",
                **settings,
            )

    def _compare(self, piece: Piece, wanted: list[list[Array]]) -> str:
        """What is wrong with a piece's values; "" when nothing is, with the permutations of its outputs set."""
        try:
            found = [_evaluated(piece, values) for values in self.values]
        except Exception as problem:  # TensorFlow's errors of any kind
            return f"what onnx2tf makes of it does not run: {sentence(problem)}"
        for place in range(len(piece.outputs)):
            pairs = [(results[place], given[place]) for results, given in zip(wanted, found, strict=True)]
            axes = axes_that_fit(pairs, self.slacks.get(piece.outputs[place], 0.0))
            if axes is None:
                return told(pairs)
            piece.permutations[place] = axes
        return ""


def _order(names: Sequence[str], count: int) -> list[int]:
    """Which input each of the Keras model's is; some lose their names, and stand in the graph's order then."""
    places = [int(name[1:]) if name[:1] == "i" and name[1:].isdecimal() else -1 for name in map(str, names)]
    return places if sorted(places) == list(range(count)) else list(range(count))


def _evaluated(piece: Piece, values: Mapping[str, Array]) -> list[Array]:
    import tensorflow as tf

    tensors = {name: tf.constant(values[name]) for name in piece.inputs}
    piece(tensors)
    return [np.asarray(tensors[name]) for name in piece.outputs]


def _reads(node: onnx.NodeProto) -> set[str]:
    """Tensors that a node reads, by itself and in its bodies."""
    found = {name for name in node.input if name}
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            inner = {value.name for value in (*body.input, *body.initializer)}
            inner |= {name for held in body.node for name in held.output}
            found |= {name for held in body.node for name in _reads(held) if name not in inner}
            found |= {value.name for value in body.output if value.name not in inner}
    return found


def _rename(node: onnx.NodeProto, called: Mapping[str, str]) -> None:
    for field in (node.input, node.output):
        for place, name in enumerate(field):
            field[place] = called.get(name, name)
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for held in body.node:
                _rename(held, called)
            for value in body.output:
                value.name = called.get(value.name, value.name)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    """onnx2tf leaves files in the current folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
