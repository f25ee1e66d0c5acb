"""ONNX into Relax by TVM's importer, which is made to say which node it was at and where each tensor went."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import warnings
from typing import TYPE_CHECKING, Any

from tvm.relax.frontend.onnx import onnx_frontend

from deploykit.converters.tvm.vendor import tvm

if TYPE_CHECKING:
    from collections.abc import Sequence

# Operators that the importer takes without its table.
_DIRECT = {"If", "Constant"}
# Variables whose names lead back to an ONNX tensor, by its number.
MARK = "dk"


@dataclasses.dataclass(frozen=True, slots=True)
class RefusedError(Exception):
    """A node that the importer does not take."""

    node: str
    op: str
    reason: str


class Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]  # untyped
    """The importer, with the node that it is at, and variables named after tensors of floating point.

    tensors: ONNX names by the number in the variable's name.
    """

    def __init__(self) -> None:
        """Parameters become constants of the library."""
        super().__init__(None, None, keep_params_in_input=False, sanitize=True)
        self.at: tuple[str, str] | None = None
        self.tensors: list[str] = []
        self._outputs: list[Sequence[str]] = []
        self._depth = 0

    def _construct_nodes(self, graph: Any) -> None:
        self._outputs = [node.output for node in graph.node if node.op_type != "If"]
        self._next = 0
        super()._construct_nodes(graph)

    def _convert_subgraph(self, bb: Any, graph: Any) -> Any:
        self._depth += 1
        try:
            return super()._convert_subgraph(bb, graph)
        finally:
            self._depth -= 1

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        self.at = (str(attrs["tvm_custom"]["name"]), op_name)
        made = super()._convert_operator(op_name, inputs, attrs, opset)
        self.at = None
        if self._depth:
            return made
        outputs = self._outputs[self._next]
        self._next += 1
        kind = getattr(made, "ty", None)
        if len(outputs) != 1 or not isinstance(made, tvm.ir.Call) or not isinstance(kind, tvm.relax.TensorType):
            return made
        # What is computed of sizes stays as the importer wants to recognise it.
        if not str(kind.dtype).startswith("float") or kind.ndim < 1:
            return made
        self.tensors.append(outputs[0])
        return self.bb.emit(made, name_hint=f"{MARK}{len(self.tensors) - 1}_")


def import_model(proto: Any, opset: int) -> tuple[Any, list[str]]:
    """The Relax module of an ONNX model, and the tensors that its variables are named after.

    Raises RefusedError for a node that it does not take, other exceptions of TVM where no node is to blame.
    """
    importer = Importer()
    try:
        # It prints the inputs of a failing operator, and warns of each name that it changes.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importer.from_onnx(proto.graph, opset), importer.tensors
    except Exception as problem:  # converters raise anything
        if importer.at is None:
            raise
        raise RefusedError(*importer.at, reason=first_line(problem)) from problem


def known_operators() -> set[str]:
    """Names of the operators that the importer has."""
    return set(onnx_frontend._get_convert_map()) | _DIRECT


def first_line(problem: BaseException) -> str:
    """What it says, without the trace of TVM's own code."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    said = next((line for line in lines if not line.startswith(("File ", "Traceback", "["))), "")
    return f"{type(problem).__name__}: {said}"[:400]
