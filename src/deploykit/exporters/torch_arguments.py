"""Which argument of `forward` each named input fills: parameters, and places in nested dicts, lists and tuples.

An input is called as its parameter (`x`), or as a place in it: `batch.image`, `states.0.hidden`. What is left open in a
list or tuple is None, and so is a parameter that may be None and has no default.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import inspect
import types
import typing
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.exporters.request import TorchRequest
    from deploykit.exporters.torch_source import Loaded


@dataclasses.dataclass(frozen=True, slots=True)
class Parameters:
    """What `forward` takes. hints: annotation or container by parameter; open: takes further names by keyword."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    hints: dict[str, Any]
    keyword_only: frozenset[str] = frozenset()
    open: bool = False
    scripted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """Where each input goes.

    places: by input, the parameter and the keys below it. keywords: parameters that go by keyword. constants: values
    of parameters that are no inputs. order: of the positional parameters. program_spec: the structure that an exported
    program takes its flat inputs in; program_leaves: whether each of them is an input, and its value where it is not.
    """

    places: tuple[tuple[str, ...], ...]
    keywords: tuple[str, ...]
    order: tuple[str, ...]
    constants: dict[str, Any] = dataclasses.field(default_factory=dict)
    hints: dict[str, Any] = dataclasses.field(default_factory=dict)
    program_spec: Any = None
    program_leaves: tuple[tuple[bool, Any], ...] = ()
    open: bool = False

    @property
    def plain(self) -> bool:
        """Whether each input is one parameter, and nothing else is passed: exporters take that as it is."""
        return not self.constants and not self.open and all(len(place) == 1 for place in self.places)

    def build(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments for one value by input."""
        if self.program_spec is not None:
            given = iter(values)
            leaves = [next(given) if is_open else constant for is_open, constant in self.program_leaves]
            args, kwargs = pytree.tree_unflatten(leaves, self.program_spec)
            return tuple(args), dict(kwargs)
        trees: dict[str, Any] = dict(self.constants)
        for (top, *keys), value in zip(self.places, values, strict=True):
            if not keys:
                trees[top] = value
                continue
            inner = trees.setdefault(top, {})
            for key in keys[:-1]:
                inner = inner.setdefault(key, {})
            inner[keys[-1]] = value
        nested = {place[0] for place in self.places if len(place) > 1}
        made = {
            name: _container(tree, self.hints.get(name)) if name in nested else tree for name, tree in trees.items()
        }
        positional = tuple(made[name] for name in self.order if name in made and name not in self.keywords)
        return positional, {name: value for name, value in made.items() if name in self.keywords}


def parameters_of(loaded: Loaded) -> Parameters:
    """The parameters of `forward`, from Python, TorchScript or an exported program."""
    if loaded.program is not None:
        names = tuple(name for name in loaded.program.graph_signature.user_inputs if isinstance(name, str))
        return Parameters(names, names, {})
    if loaded.scripted:
        taken = loaded.module.forward.schema.arguments[1:]  # the first is the module, whatever the user calls it
        required = tuple(a.name for a in taken if not a.has_default_value())
        hints = {a.name: _script_hint(a.type) for a in taken}
        return Parameters(tuple(a.name for a in taken), required, hints, scripted=True)
    signature = inspect.signature(loaded.module.forward)
    hints = {}
    with contextlib.suppress(Exception):  # annotations of the user's code can name what is not there
        hints = typing.get_type_hints(loaded.module.forward)
    found = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return Parameters(
        tuple(p.name for p in found),
        tuple(p.name for p in found if p.default is p.empty),
        hints,
        frozenset(p.name for p in found if p.kind is p.KEYWORD_ONLY),
        any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()),
    )


def bind(loaded: Loaded, specs: Sequence[TensorSpec], request: TorchRequest) -> Binding:
    """The place of each input; raises UsageError (DK620) when they do not fit `forward`."""
    taken = parameters_of(loaded)
    if not specs:
        raise _error(request, taken, "the inputs are not known", _example_of(taken))
    if loaded.program is not None:
        return _bind_program(loaded, specs, request, taken)
    constants = dict(request["args"]) if loaded.scripted else {}
    for name in constants:
        if name not in taken.names:
            raise _error(request, taken, f"--arg {name} names no argument", "name one of them")
    given = [spec.name for spec in specs]
    places = [tuple(name.split(".")) for name in given]
    tops = [name if name in taken.names else place[0] for name, place in zip(given, places, strict=True)]
    if not set(tops) <= set(taken.names) and not taken.open:
        return _bind_in_order(specs, request, taken, constants)
    missing = [name for name in taken.required if name not in tops and name not in constants]
    constants |= dict.fromkeys(name for name in missing if _may_be_none(taken.hints.get(name)))
    missing = [name for name in missing if name not in constants]
    if missing:
        what = f"no --input for {', '.join(map(repr, missing))}"
        raise _error(request, taken, what, _way_to(missing[0], taken))
    nested = [place if len(place) > 1 and place[0] == top else (top,) for place, top in zip(places, tops, strict=True)]
    order = [name for name in taken.names if name in tops or name in constants]
    # By position up to the first parameter that is left to its default, or that is not in the order given.
    leading = 0
    while leading < len(order) and order[leading] == taken.names[leading]:
        leading += 1
    first = list(dict.fromkeys(tops))
    in_order = [name for name in order if name in first] == first
    positional = set(order[:leading] if in_order else ()) - taken.keyword_only
    everything = list(dict.fromkeys([*order, *first]))
    keywords = tuple(name for name in everything if name not in positional)
    is_open = any(name not in taken.names for name in tops)
    return Binding(tuple(nested), keywords, tuple(order), constants, taken.hints, open=is_open)


def _bind_program(loaded: Loaded, specs: Sequence[TensorSpec], request: TorchRequest, taken: Parameters) -> Binding:
    if len(specs) != len(taken.names):
        what = f"{len(specs)} inputs were given ({', '.join(spec.name for spec in specs)})"
        raise _error(request, taken, what, "leave --input away: an exported program declares its inputs")
    names = [spec.name for spec in specs]
    if set(names) == set(taken.names) and names != list(taken.names):
        raise _error(request, taken, "the inputs are in another order", "give them in the program's order")
    # What was no tensor when the program was made is a constant of it.
    leaves = tuple((isinstance(item, str), item) for item in loaded.program.graph_signature.user_inputs)
    return Binding(
        tuple((name,) for name in taken.names),
        (),
        taken.names,
        program_spec=loaded.program.call_spec.in_spec,
        program_leaves=leaves,
    )


def _bind_in_order(
    specs: Sequence[TensorSpec], request: TorchRequest, taken: Parameters, constants: dict[str, Any]
) -> Binding:
    """Other names than the parameters': taken in order, and the ONNX inputs are called as the user said."""
    free = [name for name in taken.names if name not in constants]
    required = [name for name in taken.required if name not in constants]
    if len(specs) > len(free) or len(specs) < len(required):
        given = ", ".join(spec.name for spec in specs)
        raise _error(
            request,
            taken,
            f"{len(specs)} inputs were given ({given})",
            "give one --input for each parameter without a default, by its name; a place in a dict, list or tuple is"
            " named --input 'batch.image:float32[...]' or 'states.0:float32[...]'",
        )
    names = tuple(free[: len(specs)])
    keywords = tuple(name for name in (*names, *constants) if constants or name in taken.keyword_only)
    return Binding(tuple((name,) for name in names), keywords, names, constants, taken.hints)


def _error(request: TorchRequest, taken: Parameters, what: str, hint: str) -> UsageError:
    text = f"{what}: forward takes ({', '.join(taken.names)})"
    return UsageError(text, code="DK620", file=request["path"], hint=hint)


def _example_of(taken: Parameters) -> str:
    name = taken.names[0] if taken.names else "x"
    return f"--input '{name}:float32[batch,3,224,224]', or --sample FILE.npz"


def _way_to(name: str, taken: Parameters) -> str:
    hint = taken.hints.get(name)
    if hint in (int, float, bool, str):
        return f"--arg {name}=VALUE fixes it" if taken.scripted else f"--input '{name}:int64[]', or give it a default"
    kind = _kind(hint)
    if kind is dict:
        return f"--input '{name}.KEY:float32[...]' for each of its keys"
    if kind in (list, tuple):
        return f"--input '{name}.0:float32[...]', '{name}.1:...' for its items"
    return f"--input '{name}:float32[...]'; None is passed where the annotation allows it"


def _script_hint(kind: Any) -> Any:
    """A Python type for a TorchScript one, as far as it matters here."""
    name = kind.kind()
    if name == "OptionalType":
        return typing.Optional[_script_hint(kind.getElementType())]  # noqa: UP045 - a value, not an annotation
    if name == "ListType":
        return list
    return {"TupleType": tuple, "DictType": dict, "IntType": int, "FloatType": float, "BoolType": bool}.get(name)


def _may_be_none(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kept = [item for item in typing.get_args(hint) if item is not type(None)]
        return kept[0] if len(kept) == 1 else None
    return hint


def _kind(hint: Any) -> Any:
    """list, tuple, dict, or the class of a named tuple or dataclass; None when the annotation does not tell."""
    hint = _without_none(hint)
    origin = typing.get_origin(hint) or hint
    if not isinstance(origin, type):
        return None
    if dataclasses.is_dataclass(origin) or (issubclass(origin, tuple) and hasattr(origin, "_fields")):
        return origin
    if issubclass(origin, tuple):
        return tuple
    if issubclass(origin, dict | collections.abc.Mapping):
        return dict
    return list if issubclass(origin, list | collections.abc.Sequence) and origin is not str else None


def _container(tree: Any, hint: Any) -> Any:
    """The nested dict of keys as the annotated structure; tuples for numbers and dicts for names without one."""
    if not isinstance(tree, dict):
        return tree
    kind = _kind(hint)
    numbered = all(key.isdigit() for key in tree)
    if kind is None:
        kind = tuple if numbered else dict
    if kind in (list, tuple) and numbered:
        fixed = [] if Ellipsis in typing.get_args(_without_none(hint)) else typing.get_args(_without_none(hint))
        count = max(max(map(int, tree)) + 1, len(fixed) if kind is tuple else 0)
        items = [tree.get(str(at)) for at in range(count)]
        return kind(_container(item, inner) for item, inner in zip(items, _inner(hint, len(items)), strict=True))
    if kind is dict:
        inner = typing.get_args(_without_none(hint))
        return {key: _container(item, inner[1] if len(inner) == 2 else None) for key, item in tree.items()}
    fields: Mapping[str, Any] = typing.get_type_hints(kind) if kind not in (list, tuple) else {}
    return kind(**{key: _container(item, fields.get(key)) for key, item in tree.items()})


def _inner(hint: Any, count: int) -> list[Any]:
    """The annotation of each item of a list or tuple."""
    inner = typing.get_args(_without_none(hint))
    if len(inner) == count and inner[-1] is not Ellipsis:
        return list(inner)
    return [inner[0] if inner else None] * count
