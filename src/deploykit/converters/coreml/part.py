"""A part of an ML Program as a package of its own: its operations as they stand in the file, and only its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import coremltools as ct
from coremltools.libmilstoragepython import _BlobStorageReader as BlobReader
from coremltools.libmilstoragepython import _BlobStorageWriter as BlobWriter
from coremltools.proto import FeatureTypes_pb2, MIL_pb2

from deploykit import io
from deploykit.converters.coreml.package import normalize
from deploykit.converters.coreml.runtime import write_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

# Types that the interface of a package has: MIL's number, the interface's number.
_DOOR = {
    MIL_pb2.DataType.FLOAT32: FeatureTypes_pb2.ArrayFeatureType.FLOAT32,
    MIL_pb2.DataType.FLOAT16: FeatureTypes_pb2.ArrayFeatureType.FLOAT16,
    MIL_pb2.DataType.INT32: FeatureTypes_pb2.ArrayFeatureType.INT32,
}
# How the storage library calls the types whose values it hands over as they are; smaller ones are packed.
_STORED = {
    MIL_pb2.DataType.FLOAT32: "float",
    MIL_pb2.DataType.FLOAT16: "fp16",
    **{
        getattr(MIL_pb2.DataType, name.upper()): name
        for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32")
    },
}


def save_package_part(
    source: Path,
    path: Path,
    names: Sequence[str],
    given: Mapping[str, Array],
    outputs: Mapping[str, Array],
    called: Mapping[str, str],
) -> bool:
    """Writes the package at `path`: what makes the named variables of the given ones.

    given, outputs: arrays of the types and shapes of the new inputs and outputs. called: the names that deploykit knows
    them by. Returns False, and writes nothing, where the interface of a package cannot hold one of them.
    """
    spec = ct.models.MLModel(str(source), skip_model_load=True).get_spec()
    function = spec.mlProgram.functions["main"]
    block = function.block_specializations[function.opset]
    made = {output.name: output for operation in block.operations for output in operation.outputs}
    operations, reached = _walk(block, names, given)
    doors = [*(name for name in given if name in reached), *names]
    if any(not _has_door(made[name]) or not {**given, **outputs}[name].ndim for name in doors):
        return False
    kept = [value for value in function.inputs if value.name in reached]
    features = {feature.name: feature for feature in spec.description.input}
    described = [features[value.name] for value in kept]
    for name in (name for name in given if name in reached):
        kept.append(MIL_pb2.NamedValueType(name=name, type=_typed(made[name], given[name])))
        described.append(_feature(made[name], given[name]))
    results = [_feature(made[name], outputs[name]) for name in names]
    _replace(function.inputs, kept)
    _replace(block.operations, operations)
    _replace(spec.description.input, described)
    _replace(spec.description.output, results)
    del block.outputs[:]
    block.outputs.extend(names)
    spec.description.metadata.userDefined.clear()
    order = [*(value.name for value in kept), *names]
    write_names(spec, {called.get(name, name): name for name in order}, [called.get(name, name) for name in order])
    with io.scratch_folder(path.parent) as folder:
        weights = _own_weights(block, source / "Data" / "com.apple.CoreML" / "weights", Path(folder))
        ct.models.MLModel(spec, weights_dir=str(weights), skip_model_load=True).save(str(path))
    normalize(path, spec)
    return True


def _walk(block: Any, names: Sequence[str], given: Mapping[str, Array]) -> tuple[list[Any], set[str]]:
    """Copies of the operations that make the names, in order; and every name at which the walk back ended."""
    maker = {output.name: place for place, operation in enumerate(block.operations) for output in operation.outputs}
    needed: set[int] = set()
    ends: set[str] = set()
    pending = [(name, True) for name in names]
    while pending:
        name, wanted = pending.pop()
        place = maker.get(name)
        if place is None or (name in given and not wanted):
            ends.add(name)
        elif place not in needed:
            needed.add(place)
            pending += [(read, False) for read in _read(block.operations[place])]
    copies = []
    for place in sorted(needed):
        copy = MIL_pb2.Operation()
        copy.CopyFrom(block.operations[place])
        copies.append(copy)
    return copies, ends


def _read(operation: Any) -> Iterator[str]:
    """Names that an operation reads, those inside its blocks among them."""
    for argument in operation.inputs.values():
        for binding in argument.arguments:
            if binding.WhichOneof("binding") == "name":
                yield binding.name
    for block in operation.blocks:
        yield from block.outputs
        for inner in block.operations:
            yield from _read(inner)


def _has_door(value: Any) -> bool:
    return value.type.WhichOneof("type") == "tensorType" and value.type.tensorType.dataType in _DOOR


def _typed(value: Any, array: Array) -> Any:
    """The type of a variable, with the sizes that the array has."""
    made = MIL_pb2.ValueType()
    made.tensorType.dataType = value.type.tensorType.dataType
    made.tensorType.rank = array.ndim
    for size in array.shape:
        made.tensorType.dimensions.add().constant.size = size
    return made


def _feature(value: Any, array: Array) -> Any:
    from coremltools.proto import Model_pb2

    feature = Model_pb2.FeatureDescription(name=value.name)
    feature.type.multiArrayType.dataType = _DOOR[value.type.tensorType.dataType]
    feature.type.multiArrayType.shape.extend(array.shape)
    return feature


def _replace(field: Any, values: Sequence[Any]) -> None:
    copies = []
    for value in values:
        copy = type(value)()
        copy.CopyFrom(value)
        copies.append(copy)
    del field[:]
    field.extend(copies)


def _own_weights(block: Any, stored: Path, folder: Path) -> Path:
    """A folder with the weights that the block reads; the whole one where a type of them is packed."""
    values = list(_file_values(block))
    kinds = [value.type.tensorType.dataType for value in values]
    if any(kind not in _STORED for kind in kinds):
        return stored
    target = folder / "weights"
    target.mkdir()
    if not values:
        return target
    readers = {name: BlobReader(str(stored / Path(name).name)) for name in {v.blobFileValue.fileName for v in values}}
    writer = BlobWriter(str(target / "weight.bin"))
    for value, kind in zip(values, kinds, strict=True):
        place = value.blobFileValue
        array = getattr(readers[place.fileName], f"read_{_STORED[kind]}_data")(place.offset)
        value.blobFileValue.offset = getattr(writer, f"write_{_STORED[kind]}_data")(array)
        value.blobFileValue.fileName = "@model_path/weights/weight.bin"
    return target


def _file_values(block: Any) -> Iterator[Any]:
    """Values that lie in a file, in attributes and arguments, inner blocks too."""
    for operation in block.operations:
        for value in operation.attributes.values():
            if value.WhichOneof("value") == "blobFileValue":
                yield value
        for argument in operation.inputs.values():
            for binding in argument.arguments:
                if binding.WhichOneof("binding") == "value" and binding.value.WhichOneof("value") == "blobFileValue":
                    yield binding.value
        for inner in operation.blocks:
            yield from _file_values(inner)
