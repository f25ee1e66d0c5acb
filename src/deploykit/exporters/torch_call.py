"""How a module is called for export: example tensors, which dimensions vary, and the names of inputs and outputs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deploykit.artifact import TensorSpec
from deploykit.data.dtypes import dtype_name, numpy_dtype
from deploykit.data.request import dim_ranges
from deploykit.data.specs import DimRange, format_input
from deploykit.errors import DataError, ModelError, UsageError
from deploykit.exporters.diagnosis import reason, user_line
from deploykit.exporters.sample_file import read_arrays
from deploykit.exporters.symbols import ranges_of
from deploykit.exporters.torch_arguments import bind
from deploykit.exporters.torch_flat import Flat, flatten, is_plain, names_of
from deploykit.exporters.torch_inference import input_specs
from deploykit.report import Finding, note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.exporters.request import TorchRequest
    from deploykit.exporters.torch_arguments import Binding
    from deploykit.exporters.torch_source import Loaded
    from deploykit.runtime import Feeds, Outputs

# Sizes that do not look alike, so that two dimensions that are equal in the example are so by the model's own doing.
# Never 1 where it can be helped: torch.export makes a constant of a dimension of size 1.
_EXAMPLE_SIZES = (2, 3, 5, 7, 11, 13)


@dataclasses.dataclass(slots=True)
class Call:
    """One way to call the module: which argument each input fills, and how inputs and outputs are called.

    plain: whether inputs are parameters and the outputs tensors, so that exporters take the module as it is; otherwise
    they take `flat`.
    """

    module: torch.nn.Module
    specs: tuple[TensorSpec, ...]
    binding: Binding
    ranges: dict[str, DimRange]
    example: dict[str, torch.Tensor]
    output_names: tuple[str, ...] = ()
    plain: bool = True
    findings: list[Finding] = dataclasses.field(default_factory=list)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameter of `forward` that each input fills, or fills a place of."""
        return tuple(place[0] for place in self.binding.places)

    @property
    def flat(self) -> torch.nn.Module:
        """The module as a function of the inputs in order, for exporters that take nothing else."""
        return Flat(self.module, self.binding)

    def arguments(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of `forward` for tensors by input name."""
        return self.binding.build([tensors[spec.name] for spec in self.specs])

    def for_export(self, loaded: Loaded) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """What an exporter is given: the module, program or wrapper, with positional and keyword arguments."""
        if not self.plain:
            return self.flat, tuple(self.example[spec.name] for spec in self.specs), {}
        args, kwargs = self.arguments(self.example)
        return loaded.program if loaded.program is not None else loaded.module, args, kwargs

    def call(self, tensors: Mapping[str, torch.Tensor]) -> Any:
        """What `forward` returns; the tensors stay as they are, since a module may write into its input."""
        args, kwargs = self.arguments({name: tensor.clone() for name, tensor in tensors.items()})
        with torch.no_grad():
            return self.module(*args, **kwargs)

    def run(self, feeds: Feeds) -> Outputs:
        """Outputs by name of the module in eager mode."""
        # numpy has bfloat16 only through ml_dtypes, which torch does not know.
        tensors = {spec.name: as_tensor(feeds[spec.name], spec) for spec in self.specs}
        leaves = [leaf for _, leaf in flatten(self.call(tensors))]
        return dict(zip(self.output_names, map(as_array, leaves), strict=True))

    @property
    def symbols(self) -> dict[str, DimRange]:
        """Every symbol of the inputs with its range; from 1 up where none was given."""
        return ranges_of(self.specs, self.ranges)


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
    sample = read_arrays(request["sample"]) if request["sample"] else {}
    program_specs = _program_specs(loaded)
    specs = specs or _specs_of(sample) or program_specs
    findings = []
    if not specs and loaded.scripted:
        specs = input_specs(loaded.module)
        if specs:
            text = f"inputs were read off the operators that take them: {', '.join(map(format_input, specs))}"
            findings = [note("DK690", text, hint="--input when the module takes others")]
    ranges = dim_ranges(request["dims"])
    if program_specs:
        known = {dim for spec in specs for dim in spec.shape or ()}
        ranges = {**{name: bounds for name, bounds in _program_ranges(loaded).items() if name in known}, **ranges}
    binding = bind(loaded, specs, request)
    _check_dims(specs, ranges)
    specs = tuple(dataclasses.replace(spec, shape=_fixed(spec.shape, ranges)) for spec in specs)
    call = Call(loaded.module, specs, binding, ranges, {})
    call.findings = findings
    call.example = _example(call, sample, request["seed"])
    _name_outputs(call, loaded)
    return call


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


def example_sizes(
    symbols: Mapping[str, DimRange], seen: Mapping[str, int], *, avoid: Mapping[str, int] | None = None
) -> dict[str, int]:
    """A size for each symbol: the sample's where it has one above 1, otherwise small, different and in range.

    avoid: sizes that are not taken again where there are others.
    """
    avoid = avoid or {}
    sizes: dict[str, int] = {}
    for name, bounds in symbols.items():
        if seen.get(name, 0) > 1:
            sizes[name] = seen[name]
            continue
        low, high = max(bounds.minimum, 2), bounds.maximum
        wanted = [size for size in bounds.sizes or _EXAMPLE_SIZES if size >= low and (high is None or size <= high)]
        fresh = [size for size in wanted if size not in sizes.values() and size not in avoid.values()]
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
    return _tensors(call, sizes, sample, np.random.default_rng(seed))


def resized(call: Call, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """The example's tensors at other sizes, cut or repeated."""
    sample = {name: as_array(tensor) for name, tensor in call.example.items()}
    return _tensors(call, sizes, sample, np.random.default_rng(0))


def _tensors(
    call: Call, sizes: Mapping[str, int], sample: Mapping[str, np.ndarray[Any, Any]], rng: np.random.Generator
) -> dict[str, torch.Tensor]:
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


def _name_outputs(call: Call, loaded: Loaded) -> None:
    """Names from the structure of what `forward` returns: `output`, `output_0`..., or keys and field names."""
    try:
        value = call.call(call.example)
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
    leaves = list(flatten(value))
    names = names_of([path for path, _ in leaves], {spec.name for spec in call.specs})
    wrong = [
        f"{name} is {type(leaf).__name__}"
        for name, (_, leaf) in zip(names, leaves, strict=True)
        if not isinstance(leaf, torch.Tensor)
    ]
    if wrong or not leaves:
        raise ModelError(
            f"forward returns what is no tensor: {', '.join(wrong[:4]) or 'nothing'}; ONNX outputs are tensors",
            code="DK621",
            hint="return tensors, in a tuple, list, dict or dataclass: torch.tensor(value) for a number",
        )
    call.output_names = names
    call.plain = loaded.program is not None or (call.binding.plain and is_plain(value))
