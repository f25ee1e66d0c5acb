"""How a module is called for export: example tensors, which dimensions vary, and the names of inputs and outputs."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from deploykit.artifact import TensorSpec
from deploykit.data.dtypes import dtype_name, numpy_dtype
from deploykit.data.specs import DimRange, format_input
from deploykit.errors import DataError, ModelError, UsageError
from deploykit.exporters.diagnosis import reason, user_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.exporters.request import TorchRequest
    from deploykit.exporters.torch_source import Loaded
    from deploykit.runtime import Feeds, Outputs

# Sizes that do not look alike, so that two dimensions that are equal in the example are so by the model's own doing.
# Never 1 where it can be helped: torch.export makes a constant of a dimension of size 1.
_EXAMPLE_SIZES = (2, 3, 5, 7, 11, 13)


@dataclasses.dataclass(slots=True)
class Call:
    """One way to call the module.

    parameters: of `forward`, by input, in the order of the specs; positional when `keyword` is false for it.
    """

    module: torch.nn.Module
    specs: tuple[TensorSpec, ...]
    parameters: tuple[str, ...]
    keywords: tuple[str, ...]
    ranges: dict[str, DimRange]
    example: dict[str, torch.Tensor]
    output_names: tuple[str, ...] = ()

    def arguments(
        self, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        """Positional and keyword arguments of `forward` for tensors by input name."""
        pairs = list(zip(self.specs, self.parameters, strict=True))
        positional = tuple(tensors[spec.name] for spec, parameter in pairs if parameter not in self.keywords)
        return positional, {parameter: tensors[spec.name] for spec, parameter in pairs if parameter in self.keywords}

    def run(self, feeds: Feeds) -> Outputs:
        """Outputs by name of the module in eager mode."""
        # numpy has bfloat16 only through ml_dtypes, which torch does not know.
        tensors = {spec.name: as_tensor(feeds[spec.name], spec) for spec in self.specs}
        args, kwargs = self.arguments(tensors)
        with torch.no_grad():
            value = self.module(*args, **kwargs)
        leaves = [leaf for leaf in pytree.tree_leaves(value) if leaf is not None]
        return dict(zip(self.output_names, map(as_array, leaves), strict=True))

    @property
    def symbols(self) -> dict[str, DimRange]:
        """Every symbol of the inputs with its range; from 1 up where none was given."""
        names = [dim for spec in self.specs for dim in spec.shape or () if isinstance(dim, str)]
        return {name: self.ranges.get(name, DimRange(name, 1, None)) for name in dict.fromkeys(names)}


def as_tensor(array: np.ndarray[Any, Any], spec: TensorSpec) -> torch.Tensor:
    """A tensor of the spec's dtype with its own memory: a module may write into its input."""
    if spec.dtype == "bfloat16":
        return torch.from_numpy(np.asarray(array, np.float32).copy()).to(torch.bfloat16)
    return torch.from_numpy(np.array(array, numpy_dtype(spec.dtype)))


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """An output as an array; bfloat16 becomes ml_dtypes' type, as in the ONNX side."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    narrow = value.dtype == torch.bfloat16
    if narrow:
        value = value.float()
    array: np.ndarray[Any, Any] = value.detach().numpy()
    return array.astype(numpy_dtype("bfloat16")) if narrow else array


def prepare(loaded: Loaded, request: TorchRequest) -> Call:
    """The call that the request describes, tried once in eager mode.

    Raises UsageError (DK620) when inputs are missing or do not fit `forward`, ModelError (DK621) when the module itself
    fails on the example, DataError (DK622) for a sample that does not fit.
    """
    specs = tuple(TensorSpec.from_dict(facts) for facts in request["inputs"])
    sample = _read_sample(request["sample"]) if request["sample"] else {}
    program_specs = _program_specs(loaded)
    specs = specs or _specs_of(sample) or program_specs
    ranges = {name: DimRange(name, int(low or 0), high) for name, (low, high) in request["dims"].items()}
    if program_specs:
        known = {dim for spec in specs for dim in spec.shape or ()}
        ranges = {**{name: bounds for name, bounds in _program_ranges(loaded).items() if name in known}, **ranges}
    parameters, keywords = _bind(loaded, specs, request)
    _check_dims(specs, ranges)
    specs = tuple(dataclasses.replace(spec, shape=_fixed(spec.shape, ranges)) for spec in specs)
    call = Call(loaded.module, specs, parameters, keywords, ranges, {})
    call.example = _example(call, sample, request["seed"])
    call.output_names = _output_names(call)
    return call


def _read_sample(path: str) -> dict[str, np.ndarray[Any, Any]]:
    try:
        with np.load(Path(path), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError) as problem:
        raise DataError(
            f"{path} cannot be read as a .npz sample: {problem}",
            code="DK622",
            file=path,
            hint="np.savez('sample.npz', x=x) with one array for each input",
        ) from problem


def _specs_of(sample: Mapping[str, np.ndarray[Any, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype_name(array.dtype), array.shape) for name, array in sample.items())


def _program_specs(loaded: Loaded) -> tuple[TensorSpec, ...]:
    """Inputs as the exported program declares them; its symbols keep their names."""
    if loaded.program is None:
        return ()
    wanted = set(loaded.program.graph_signature.user_inputs)
    values = {node.name: node.meta.get("val") for node in loaded.program.graph.nodes if node.op == "placeholder"}
    return tuple(
        TensorSpec(
            name,
            str(value.dtype).removeprefix("torch."),
            tuple(size if isinstance(size, int) else str(size) for size in value.shape),
        )
        for name, value in values.items()
        if name in wanted and isinstance(value, torch.Tensor)
    )


def _program_ranges(loaded: Loaded) -> dict[str, DimRange]:
    found = {}
    for symbol, bounds in loaded.program.range_constraints.items():
        high = int(bounds.upper) if bounds.upper.is_finite and bounds.upper < 1 << 40 else None
        found[str(symbol)] = DimRange(str(symbol), max(1, int(bounds.lower)), high)
    return found


def _bind(
    loaded: Loaded, specs: Sequence[TensorSpec], request: TorchRequest
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parameter of `forward` for each input, and those that go by keyword."""
    names, required = _parameters(loaded)
    shown = ", ".join(names)
    if not specs:
        raise UsageError(
            f"the inputs are not known: forward takes ({shown})",
            code="DK620",
            file=request["path"],
            hint=f"--input '{names[0] if names else 'x'}:float32[batch,3,224,224]', or --sample FILE.npz",
        )
    given = [spec.name for spec in specs]
    if not set(given) <= set(names):
        # Other names than the parameters': taken in order, and the ONNX inputs are called as the user said.
        if len(given) > len(names) or len(given) < len(required):
            raise UsageError(
                f"{len(given)} inputs were given ({', '.join(given)}), and forward takes ({shown})",
                code="DK620",
                file=request["path"],
                hint="give one --input for each parameter without a default, by its name",
            )
        return tuple(names[: len(given)]), ()
    missing = [name for name in required if name not in given]
    if missing:
        raise UsageError(
            f"no --input for {', '.join(map(repr, missing))}: forward takes ({shown})",
            code="DK620",
            file=request["path"],
            hint=f"--input '{missing[0]}:float32[...]'",
        )
    leading = [name for name, wanted in zip(given, names, strict=False) if name == wanted]
    prefix = next(
        (i for i, (name, wanted) in enumerate(zip(given, names, strict=False)) if name != wanted), len(leading)
    )
    return tuple(given), tuple(given[prefix:])


def _parameters(loaded: Loaded) -> tuple[list[str], list[str]]:
    """Names of all parameters of `forward`, and of those without a default."""
    if loaded.program is not None:
        names = [str(name) for name in loaded.program.graph_signature.user_inputs]
        return names, names
    if loaded.scripted:
        arguments = [argument for argument in loaded.module.forward.schema.arguments if argument.name != "self"]
        return [a.name for a in arguments], [a.name for a in arguments if not a.has_default_value()]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = [p for p in inspect.signature(loaded.module.forward).parameters.values() if p.kind in kinds]
    return [p.name for p in taken], [p.name for p in taken if p.default is inspect.Parameter.empty]


def _check_dims(specs: Sequence[TensorSpec], ranges: Mapping[str, DimRange]) -> None:
    known = dict.fromkeys(dim for spec in specs for dim in spec.shape or () if isinstance(dim, str))
    for name in ranges:
        if name not in known:
            raise UsageError(
                f"--dim {name} names no dimension of the inputs",
                code="DK620",
                context=[format_input(spec) for spec in specs],
                hint=f"symbols: {', '.join(known)}" if known else "name the dimension in --input: x:float32[batch,3]",
            )


def _fixed(shape: tuple[int | str, ...] | None, ranges: Mapping[str, DimRange]) -> tuple[int | str, ...] | None:
    """The shape with the number in place of each symbol whose range is one number."""
    fixed = {name: bounds.minimum for name, bounds in ranges.items() if bounds.minimum == bounds.maximum}
    return None if shape is None else tuple(fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)


def example_sizes(symbols: Mapping[str, DimRange], seen: Mapping[str, int]) -> dict[str, int]:
    """A size for each symbol: the sample's where it has one above 1, otherwise small, different and in range."""
    sizes: dict[str, int] = {}
    for name, bounds in symbols.items():
        if seen.get(name, 0) > 1:
            sizes[name] = seen[name]
            continue
        low, high = max(bounds.minimum, 2), bounds.maximum
        wanted = [size for size in _EXAMPLE_SIZES if size >= low and (high is None or size <= high)]
        fresh = [size for size in wanted if size not in sizes.values()]
        sizes[name] = next(iter(fresh or wanted), low if high is None else min(low, high))
    return sizes


def _example(call: Call, sample: Mapping[str, np.ndarray[Any, Any]], seed: int) -> dict[str, torch.Tensor]:
    _check_sample(call, sample)
    seen = {
        dim: size
        for spec in call.specs
        if spec.name in sample
        for dim, size in zip(spec.shape or (), sample[spec.name].shape, strict=True)
        if isinstance(dim, str)
    }
    sizes = example_sizes(call.symbols, seen)
    rng = np.random.default_rng(seed)
    tensors = {}
    for spec in call.specs:
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape or ())
        array = sample.get(spec.name)
        if array is not None:
            # A sample of batch 1 is repeated: torch.export would make a constant of the 1.
            array = np.resize(array, shape) if array.shape != shape else array
        elif np.issubdtype(numpy_dtype(spec.dtype), np.integer):
            array = np.ones(shape, numpy_dtype(spec.dtype))
        elif spec.dtype == "bool":
            array = np.ones(shape, np.bool_)
        else:
            array = rng.standard_normal(shape).astype(np.float32)
        tensors[spec.name] = as_tensor(array, spec)
    return tensors


def _check_sample(call: Call, sample: Mapping[str, np.ndarray[Any, Any]]) -> None:
    names = [spec.name for spec in call.specs]
    unknown = [name for name in sample if name not in names]
    if unknown:
        raise DataError(
            f"the sample has {unknown[0]!r}, which is no input",
            code="DK622",
            hint=f"inputs: {', '.join(names)}",
        )
    for spec in call.specs:
        array = sample.get(spec.name)
        shape = spec.shape or ()
        if array is None:
            continue
        fits = array.ndim == len(shape) and all(
            isinstance(dim, str) or dim == size for dim, size in zip(shape, array.shape, strict=True)
        )
        if not fits:
            raise DataError(
                f"the sample's {spec.name!r} has shape {list(array.shape)}",
                code="DK622",
                tensor=spec.name,
                context=[f"expected {spec.describe()}"],
                hint="give the sample as the module takes it, or change --input",
            )


def _output_names(call: Call) -> tuple[str, ...]:
    """Names from the structure of what `forward` returns: `output`, `output_0`..., or keys and field names."""
    args, kwargs = call.arguments({name: tensor.clone() for name, tensor in call.example.items()})
    try:
        with torch.no_grad():
            value = call.module(*args, **kwargs)
    except Exception as problem:  # the user's forward raises what it likes
        where = user_line(problem)
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in call.example.items())
        raise ModelError(
            f"the module itself fails on an example of {shapes}: {reason(problem)}",
            code="DK621",
            file=where.file if where else None,
            context=[where.describe()] if where else [],
            hint="correct --input, bound the sizes it takes with --dim NAME=MIN..MAX, or give a real --sample FILE.npz",
        ) from problem
    leaves = [(path, leaf) for path, leaf in pytree.tree_flatten_with_path(value)[0] if leaf is not None]
    if not leaves or not all(isinstance(leaf, torch.Tensor) for _, leaf in leaves):
        kinds = sorted({type(leaf).__name__ for _, leaf in leaves}) or ["nothing"]
        raise ModelError(
            f"forward returns {', '.join(kinds)}: ONNX outputs are tensors",
            code="DK621",
            hint="return tensors, in a tuple, list or dict",
        )
    names = [_name_of(path) for path, _ in leaves]
    taken = {spec.name for spec in call.specs}
    return tuple(f"{name}_out" if name in taken else name for name in names)


def _name_of(path: Sequence[Any]) -> str:
    if not path:
        return "output"
    keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return "_".join(["output", *keys] if keys[0].isdigit() else keys)
