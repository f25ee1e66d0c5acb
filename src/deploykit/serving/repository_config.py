"""`config.pbtxt` of a model repository, read: what Triton's users have written about their models.

Fields: github.com/triton-inference-server/common, protobuf/model_config.proto. The message classes are tritonclient's.
What asks for another kind of server (ensembles, sequences, other engines) is refused rather than overlooked.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit.errors import InvalidFileError, ModelError
from deploykit.serving.batching import BatchPolicy
from deploykit.serving.datatypes import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec


@dataclasses.dataclass(frozen=True, slots=True)
class Tensor:
    """One declared tensor; dims with -1 for any size, the batch not among them."""

    name: str
    datatype: str
    dims: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """What a repository says about a model.

    max_batch_size: rows of a request, 0 where the model has no batch. batching: None where requests are not to be put
    together. instances: None chooses. versions: numbers, or how many of the newest; None: the newest.
    """

    max_batch_size: int = 0
    batching: BatchPolicy | None = None
    instances: int | None = None
    versions: tuple[int, ...] | int = 1
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()

    def chosen(self, available: Sequence[int]) -> list[int]:
        """The versions to serve, of those in the folder."""
        if isinstance(self.versions, int):
            return sorted(available)[-self.versions :]
        return sorted(set(available) & set(self.versions))


ALL_VERSIONS = 1 << 30
_UNKNOWN = ("ensemble_scheduling", "sequence_batching")


def read_config(file: Path) -> RepositoryConfig:
    """The configuration in a file.

    Raises InvalidFileError (DK726) for a file that is no configuration, or one that asks for what this server is not.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        message: Any = text_format.Parse(file.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError, OSError) as problem:
        raise InvalidFileError(f"{file} is no model configuration: {problem}", code="DK726", file=file) from problem
    for name in _UNKNOWN:
        if message.HasField(name):
            raise InvalidFileError(
                f"{file} asks for {name}, which this server does not do",
                code="DK726",
                file=file,
                hint="serve the model by itself, without that field",
            )
    batching = None
    if message.HasField("dynamic_batching"):
        wanted = message.dynamic_batching
        batching = BatchPolicy(
            max(1, message.max_batch_size),
            wanted.max_queue_delay_microseconds / 1e6,
            tuple(sorted(size for size in wanted.preferred_batch_size if size > 0)),
        )
    counts = [max(1, group.count) for group in message.instance_group]
    return RepositoryConfig(
        max_batch_size=max(0, message.max_batch_size),
        batching=batching,
        instances=sum(counts) if counts else None,
        versions=_versions(message),
        inputs=tuple(map(_tensor, message.input)),
        outputs=tuple(map(_tensor, message.output)),
    )


def _versions(message: Any) -> tuple[int, ...] | int:
    if not message.HasField("version_policy"):
        return 1
    policy = message.version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return ALL_VERSIONS
    if kind == "specific":
        return tuple(policy.specific.versions)
    return max(1, int(policy.latest.num_versions))


def _tensor(row: Any) -> Tensor:
    from tritonclient.grpc import model_config_pb2

    kind = model_config_pb2.DataType.Name(row.data_type).removeprefix("TYPE_")
    dims = tuple(row.reshape.shape) if row.HasField("reshape") else tuple(row.dims)
    return Tensor(row.name, "BYTES" if kind == "STRING" else kind, dims)


def check_tensors(config: RepositoryConfig, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raises ModelError (DK727) where the configuration declares a tensor that the model has not, or has otherwise."""
    for kind, declared, specs in (("input", config.inputs, inputs), ("output", config.outputs, outputs)):
        known = {spec.name: spec for spec in specs}
        for tensor in declared:
            spec = known.get(tensor.name)
            if spec is None:
                _refuse(f"{kind} {tensor.name!r}, and the model has {', '.join(map(repr, known))}")
            elif DATATYPES[spec.dtype] != tensor.datatype:
                _refuse(f"{kind} {tensor.name!r} as {tensor.datatype}, and the model has {DATATYPES[spec.dtype]}")
            elif not _fits(tensor.dims, spec, batched=config.max_batch_size > 0):
                _refuse(f"{kind} {tensor.name!r} with dims {list(tensor.dims)}, and the model has {spec.describe()}")


def _fits(dims: Sequence[int], spec: TensorSpec, *, batched: bool) -> bool:
    if spec.shape is None:
        return True
    shape = spec.shape[1:] if batched else spec.shape
    return len(dims) == len(shape) and all(
        isinstance(have, str) or said in (-1, have) for said, have in zip(dims, shape, strict=True)
    )


def _refuse(what: str) -> None:
    raise ModelError(
        f"config.pbtxt declares {what}",
        code="DK727",
        hint="with max_batch_size above 0, dims leave the batch dimension out",
    )
