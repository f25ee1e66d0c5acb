"""Runs a reloaded ML Program operator by operator, with every declared shape and type asserted."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import numpy as np
from coremltools.converters.mil.mil import Var, types

from deploykit.converters.coreml.simulator.table import EVALUATORS, Array, Undocumented
from deploykit.errors import GateError, UnavailableError, VendorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Observe = Callable[[str, Any], Any]

_CONTROL = {"const", "cond", "while_loop"}
# Their results take the type of arguments that numpy does not look at; feeds are cast where they come in.
_TYPED_BY_ARGUMENTS = {"input", "pow", "reduce_mean", "fill", "fill_like", "range_1d", "one_hot"}
_WIDER = {np.dtype(np.float16): np.float32, np.dtype(np.int32): np.int64}
INT32 = np.iinfo(np.int32)
_KEPT = 1_000_000  # more readers than there are: never dropped
_TURNS = 100_000  # a loop that has not ended by then is taken for one that never does


def operations(block: Any) -> Iterator[Any]:
    """Every operation of a block and of the blocks inside."""
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from operations(inner)


def lacking(function: Any) -> list[str]:
    """MIL operators of a function that have no evaluator, sorted."""
    kinds = {operation.op_type for operation in operations(function)}
    return sorted(kinds - _CONTROL - set(EVALUATORS))


class Interpreter:
    """One function of a program. Constants are made once; an intermediate is dropped after its last reader.

    Every result is rounded to the declared type at once, so an fp16 program rounds after each operator, as an engine
    that stores fp16 does; inside an operator it computes in 32 bits or more.
    """

    def __init__(self, function: Any, name: str) -> None:
        """name: of the package, for messages. Raises UnavailableError (DK502) naming operators without an evaluator."""
        missing = lacking(function)
        if missing:
            raise UnavailableError(
                f"{name} is not simulated: the interpreter has no {', '.join(missing)}",
                code="DK502",
                target="coreml",
                hint="compare it on a Mac with deploykit validate",
            )
        self.function = function
        self.name = name
        self._fixed: dict[Var, Any] = {}
        for operation in function.operations:
            if operation.op_type == "const" or operation.op_type.startswith("constexpr_"):
                self._step(operation, self._fixed)
        self._readers = _readers(function)

    def run(self, feeds: Mapping[str, Array], observe: Observe | None = None) -> dict[str, Array]:
        """Outputs by name.

        observe: called with each result of the function's own operators; what it returns stands for the result.
        Raises VendorError (DK533) where a result differs from what the program declares, GateError (DK548) where an
        integer does not fit into 32 bits, UnavailableError (DK502) where it asks for something that Apple does not
        document.
        """
        values = dict(self._fixed)
        for name, variable in self.function.inputs.items():
            values[variable] = self._checked(variable, np.asarray(feeds[name]), "input")
        with np.errstate(all="ignore"):
            self._block(self.function, values, dict(self._readers), observe)
        return {variable.name: values[variable] for variable in self.function.outputs}

    def _arguments(self, operation: Any, values: Mapping[Var, Any]) -> dict[str, Any]:
        """What the evaluator of an operation gets."""
        return arguments_of(operation, values.__getitem__)

    def _block(
        self, block: Any, values: dict[Var, Any], readers: dict[Var, int] | None, observe: Observe | None = None
    ) -> None:
        for operation in block.operations:
            if all(variable in self._fixed for variable in operation.outputs):
                continue
            self._step(operation, values)
            if observe is not None:
                for variable in operation.outputs:
                    values[variable] = observe(variable.name, values[variable])
            if readers is None:
                continue
            for variable in _inputs(operation):
                readers[variable] = readers.get(variable, 0) - 1
                if readers[variable] == 0 and variable not in self._fixed:
                    values.pop(variable, None)

    def _step(self, operation: Any, values: dict[Var, Any]) -> None:
        if operation.op_type == "const":
            values[operation.outputs[0]] = _constant(operation.outputs[0])
            return
        if operation.op_type == "cond":
            made = self._cond(operation, values)
        elif operation.op_type == "while_loop":
            made = self._loop(operation, values)
        else:
            try:
                made = EVALUATORS[operation.op_type](**self._arguments(operation, values))
            except Undocumented as problem:
                raise UnavailableError(
                    f"{self.name} is not simulated: {operation.op_type} {operation.name!r} asks for {problem}, "
                    "and Apple documents no result for that",
                    code="DK502",
                    target="coreml",
                    hint="compare it on a Mac with deploykit validate",
                ) from problem
            except (ValueError, TypeError, IndexError) as problem:  # packages made elsewhere hold what ours never do
                why = f"cannot be computed here: {type(problem).__name__}: {problem}"
                raise self._fault(operation.outputs[0], why, operation.op_type) from problem
        results = made if isinstance(made, (list, tuple)) else [made]
        for variable, value in zip(operation.outputs, results, strict=True):
            values[variable] = self._checked(variable, value, operation.op_type)

    def _cond(self, operation: Any, values: dict[Var, Any]) -> list[Any]:
        block = operation.blocks[0 if bool(values[operation.inputs["pred"]]) else 1]
        self._block(block, values, None)
        return [values[variable] for variable in block.outputs]

    def _loop(self, operation: Any, values: dict[Var, Any]) -> list[Any]:
        test, body = operation.blocks
        state = [values[variable] for variable in operation.inputs["loop_vars"]]
        for _ in range(_TURNS):
            values.update(zip(test.inputs, state, strict=True))
            self._block(test, values, None)
            if not bool(values[test.outputs[0]]):
                return state
            values.update(zip(body.inputs, state, strict=True))
            self._block(body, values, None)
            state = [values[variable] for variable in body.outputs]
        raise self._fault(operation.outputs[0], f"its loop has not ended after {_TURNS} turns", "while_loop")

    def _checked(self, variable: Var, value: Any, kind: str) -> Any:
        """The value in the declared type, once its shape is the declared one."""
        if isinstance(value, (str, dict)):  # a classifier's label and dictionary
            return value
        array = np.asarray(value)
        declared = tuple(variable.shape) if types.is_tensor(variable.sym_type) else ()
        fits = len(declared) == array.ndim and all(
            not isinstance(size, (int, np.integer)) or int(size) == have
            for size, have in zip(declared, array.shape, strict=True)
        )
        if not fits:
            raise self._fault(variable, f"has shape {list(array.shape)}, declared {[str(s) for s in declared]}", kind)
        wanted = np.dtype(types.nptype_from_builtin(variable.dtype))
        same = array.dtype.kind == wanted.kind or {array.dtype.kind, wanted.kind} == {"i", "u"}
        if not same and kind not in _TYPED_BY_ARGUMENTS:
            raise self._fault(variable, f"is {array.dtype}, declared {wanted}", kind)
        if array.dtype == np.int64 and wanted == np.int32 and array.size:
            self._check_range(variable, array, kind)
        return array.astype(wanted, copy=False)

    def _check_range(self, variable: Var, array: Array, kind: str) -> None:
        """Integers are computed in 64 bits here: what 32 bits cannot hold would wrap around or saturate on a device."""
        low, high = int(array.min()), int(array.max())
        if low < INT32.min or high > INT32.max:
            raise GateError(
                f"{self.name}: {variable.name!r} of {kind} reaches {high if high > INT32.max else low} on this sample, "
                "and Core ML computes integers in 32 bits",
                code="DK548",
                target="coreml",
                hint="keep this part out of the model, or compute it in float32",
            )

    def _fault(self, variable: Var, what: str, kind: str) -> VendorError:
        return VendorError(f"{self.name}: {variable.name!r} of {kind} {what}", code="DK533", target="coreml")


def _constant(variable: Var) -> Any:
    """The value of a constant; sizes that coremltools has folded from symbols come as objects."""
    value = variable.val
    if isinstance(value, (str, np.str_)):
        return str(value)
    array = np.asarray(value)
    return array.astype(types.nptype_from_builtin(variable.dtype)) if array.dtype == object else array


def arguments_of(operation: Any, value_of: Callable[[Var], Any]) -> dict[str, Any]:
    """Values by argument name, fp16 widened to fp32 and int32 to int64, in which nothing wraps around unseen."""

    def of(variable: Var) -> Any:
        value = value_of(variable)
        wider = _WIDER.get(value.dtype) if isinstance(value, np.ndarray) else None
        return value if wider is None else value.astype(wider)

    return {
        name: [of(item) for item in given] if isinstance(given, (list, tuple)) else of(given)
        for name, given in operation.inputs.items()
        if given is not None
    }


def _inputs(operation: Any) -> Iterator[Var]:
    for given in operation.inputs.values():
        if isinstance(given, (list, tuple)):
            yield from given
        elif given is not None:
            yield given


def _readers(function: Any) -> dict[Var, int]:
    """How often each variable is read; those of inner blocks and outputs are kept to the end."""
    counts: collections.Counter[Var] = collections.Counter()
    for operation in function.operations:
        counts.update(_inputs(operation))
        for block in operation.blocks:
            for inner in operations(block):
                counts.update(dict.fromkeys(_inputs(inner), _KEPT))
            counts.update(dict.fromkeys(block.outputs, _KEPT))
    counts.update(dict.fromkeys(function.outputs, _KEPT))
    return dict(counts)
