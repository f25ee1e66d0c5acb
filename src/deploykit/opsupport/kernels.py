"""Kernels of ONNX Runtime: which one, if any, its registry finds for a node.

A kernel with an end (1-10) matches every version of the operator inside; one without (11 and later) matches only the
version that it starts at, so that an operator that a newer opset revised has no kernel until one is written
(onnxruntime/core/framework/kernel_registry.cc).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from deploykit.opsupport.outcome import FIX, HOLDS, Outcome, broken, label, listed, ranges, untold
from deploykit.opsupport.tensor_checks import table_dtype, to_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deploykit.opsupport.facts import NodeFacts, TensorFacts

    Kernel = Mapping[str, Any]


_KNOW = "declare the types where the model is exported"
_OTHER_OPSET = f"export the model with another opset, or {FIX} converts it"


def kernel_for(kernels: Sequence[Kernel], node: NodeFacts, *, by_version: bool, half_as_float: bool) -> Outcome:
    """Whether one of the kernels takes the node in its version and types.

    by_version: by the registry's rule; otherwise the ranges are those of the model's opset, and an open one stays open.
    half_as_float: whether a float16 node without a kernel is computed by the float32 one, between casts.
    """
    if not by_version:
        of_opset = [kernel for kernel in kernels if _includes(kernel["since"], node.opset)]
        if of_opset:
            return _best(of_opset, node, half_as_float=half_as_float)
        told = ranges(kernel["since"] for kernel in kernels)
        return broken(f"the model's opset is {node.opset}, and {node.op} is taken in opsets {told}", _OTHER_OPSET)
    # Operators of ONNX Runtime's own domains have one version each.
    since = node.since if node.since is not None else 1 if node.domain.startswith("com.m") else None
    if since is None:
        return untold(f"the version of {node.op} is unknown to the installed onnx", "upgrade onnx")
    of_version = [kernel for kernel in kernels if _matches(kernel["since"], since)]
    if not of_version:
        return broken(
            f"opset {node.opset} means {node.op} as revised in opset {since}, and there are kernels for the versions "
            f"{ranges(_versions(kernels))} only",
            _OTHER_OPSET,
        )
    return _best(of_version, node, half_as_float=half_as_float)


def _best(kernels: Sequence[Kernel], node: NodeFacts, *, half_as_float: bool) -> Outcome:
    outcomes = [_types(kernel, node, half_as_float=half_as_float) for kernel in kernels]
    return next((o for o in outcomes if o.holds), None) or next((o for o in outcomes if o.holds is None), outcomes[0])


def _matches(versions: Sequence[int | None], since: int) -> bool:
    low, high = versions
    return low == since if high is None else (low or 0) <= since <= high


def _includes(opsets: Sequence[int | None], opset: int) -> bool:
    low, high = opsets
    return (low or 0) <= opset and (high is None or opset <= high)


def _versions(kernels: Sequence[Kernel]) -> list[tuple[int, int]]:
    """The op versions that have a kernel, as ranges."""
    return sorted({(low, low if high is None else high) for low, high in (kernel["since"] for kernel in kernels)})


def _types(kernel: Kernel, node: NodeFacts, *, half_as_float: bool) -> Outcome:
    found = HOLDS
    types = kernel.get("types", {})
    known = set()
    unknown = []
    for place, tensor, name in _constrained(node):
        taken = types.get(name)
        if taken is None:
            continue
        dtype = table_dtype(tensor.dtype)
        if dtype is None:
            unknown.append((place, name))
            continue
        known.add(name)
        if dtype in taken or (half_as_float and dtype == "float16" and "float32" in taken):
            continue
        return broken(f"{place} is {dtype}, and there are kernels for {listed(taken)}", to_dtype(dtype))
    for place, name in unknown:
        # Tensors of one constraint have one type; and a kernel for all that the standard allows takes any.
        if name not in known and not allowed_of(node.domain, node.op, node.since or 0).get(name, {""}) <= set(
            types[name]
        ):
            found = untold(f"the type of {place} is unknown, and there are kernels for {listed(types[name])}", _KNOW)
    return found


def _constrained(node: NodeFacts) -> Iterator[tuple[str, TensorFacts, str]]:
    """The node's tensors with the names of their type constraints."""
    inputs, outputs = constraints_of(node.domain, node.op, node.since or 0)
    for role, tensors, names in (("input", node.inputs, inputs), ("output", node.outputs, outputs)):
        for at, tensor in enumerate(tensors):
            if tensor is not None and names:
                # The last parameter may stand for any number of tensors.
                yield label(at, tensor, role), tensor, names[min(at, len(names) - 1)]


@functools.lru_cache(maxsize=4096)
def constraints_of(domain: str, op: str, since: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Type constraints of the inputs and of the outputs, in the standard's names; empty where it has no such operator.

    A parameter without a constraint of its own has the name of its type, as in `tensor(int64)`.
    """
    from onnx import defs

    if not since:
        # Vendors' schemas are not in onnx; nearly all call the type of the first input T.
        return (("T",), ()) if domain else ((), ())
    try:
        schema = defs.get_schema(op, max_inclusive_version=since, domain=domain)
    except defs.SchemaError:
        return (), ()
    return (
        tuple(_constraint(parameter) for parameter in schema.inputs),
        tuple(_constraint(parameter) for parameter in schema.outputs),
    )


def _constraint(parameter: Any) -> str:
    # ONNX Runtime registers parameters without a constraint under their own names.
    return str(parameter.name if "(" in parameter.type_str else parameter.type_str)


@functools.lru_cache(maxsize=4096)
def allowed_of(domain: str, op: str, since: int) -> dict[str, frozenset[str]]:
    """The types that the standard allows for each constraint, as the operator tables write them."""
    from onnx import defs

    try:
        schema = defs.get_schema(op, max_inclusive_version=since, domain=domain)
    except defs.SchemaError:
        return {}
    parameters = [*schema.inputs, *schema.outputs]
    own = {str(p.name): frozenset(map(_plain, [p.type_str])) for p in parameters if "(" in p.type_str}
    return own | {str(c.type_param_str): frozenset(map(_plain, c.allowed_type_strs)) for c in schema.type_constraints}


_PLAIN = {"float": "float32", "double": "float64"}


def _plain(text: str) -> str:
    """`tensor(float)` as the tables write it."""
    kind, _, inner = text.rstrip(")").partition("(")
    return _PLAIN.get(inner, inner) if kind == "tensor" else kind
