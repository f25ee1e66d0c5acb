"""Artifact and TensorSpec: what a file is, what it was made from, and its manifest beside it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

from deploykit import io
from deploykit.version import __version__

Execution = Literal["real", "simulated", "none"]
MANIFEST_SUFFIX = ".deploykit.json"
MANIFEST_SCHEMA = "deploykit.manifest/1"


@dataclasses.dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, numpy dtype name (also "bfloat16", "string") and shape of ints and symbols; None: rank unknown."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None

    def describe(self) -> str:
        """As a user would write it: `float32 [batch, 3, 224, 224]`."""
        if self.shape is None:
            return f"{self.dtype} of unknown rank"
        return f"{self.dtype} [{', '.join(str(d) for d in self.shape)}]"

    def as_dict(self) -> dict[str, Any]:
        """JSON form: name, dtype, shape."""
        return {"name": self.name, "dtype": self.dtype, "shape": None if self.shape is None else list(self.shape)}

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> TensorSpec:
        """The spec that `as_dict` wrote."""
        shape = facts["shape"]
        return cls(facts["name"], facts["dtype"], None if shape is None else tuple(shape))


@dataclasses.dataclass(frozen=True, slots=True)
class Artifact:
    """A model file (or folder) with its interface and its origin.

    files: the artifact's files relative to `path.parent`, main file first (`m.xml`, `m.bin`).
    precision: "fp32", "fp16", "int8", "int8-weights", ...
    execution: whether its parity was proven on the real engine, simulated, or not executed here.
    interface: where inputs and outputs differ from those of the model it was made from, and which sizes they take.
    built_for: what alone loads it: {"tensorrt": "10.16.1", "compute_capabilities": ["8.9"]}; empty where others do.
    companions: files and folders beside it that are not part of it (`m.assets`, the tokenizer of `m.onnx`).
    parent_sha256: digest of the artifact it was made from; None for a source.
    """

    path: Path
    format: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    target: str | None = None
    precision: str = "fp32"
    opset: int | None = None
    sha256: str = ""
    size_bytes: int = 0
    parent_sha256: str | None = None
    execution: Execution = "none"
    stage: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    tool_versions: dict[str, str] = dataclasses.field(default_factory=dict)
    files: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    interface: dict[str, Any] = dataclasses.field(default_factory=dict)
    built_for: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, format: str, *, files: tuple[str, ...] = (), **facts: Any) -> Artifact:
        """An artifact for files that exist: digest and size are measured here."""
        names = files or (path.name,)
        members = [path.parent / name for name in names]
        return cls(
            path=path,
            format=format,
            files=names,
            sha256=io.digest(members),
            size_bytes=sum(io.size_of(member) for member in members),
            **facts,
        )

    def as_dict(self) -> dict[str, Any]:
        """The ARTIFACT object of the JSON contract."""
        return {
            "path": str(self.path),
            "format": self.format,
            "target": self.target,
            "precision": self.precision,
            "opset": self.opset,
            "size_bytes": self.size_bytes,
            "sha256": self.sha256,
            "inputs": [spec.as_dict() for spec in self.inputs],
            "outputs": [spec.as_dict() for spec in self.outputs],
            "parent_sha256": self.parent_sha256,
            "execution": self.execution,
        }

    def manifest(self) -> dict[str, Any]:
        """What stands beside the artifact: origin and digests, paths relative, no times, no measurements."""
        return {
            "schema": MANIFEST_SCHEMA,
            "deploykit": __version__,
            **self.as_dict(),
            "path": self.path.name,
            "stage": self.stage,
            "options": self.options,
            "tool_versions": dict(sorted(self.tool_versions.items())),
            **({"interface": self.interface} if self.interface else {}),
            **({"built_for": self.built_for} if self.built_for else {}),
            "files": {name: io.digest([self.path.parent / name]) for name in self.files},
            **(
                {"companions": {name: io.digest([self.path.parent / name]) for name in self.companions}}
                if self.companions
                else {}
            ),
        }

    @property
    def manifest_path(self) -> Path:
        """`model.xml` -> `model.xml.deploykit.json`."""
        return self.path.with_name(self.path.name + MANIFEST_SUFFIX)


def artifact_from_dict(facts: dict[str, Any], path: Path | None = None) -> Artifact:
    """The artifact that `as_dict` or `manifest` described, at `path` when it has moved."""
    # JSON objects are written in sorted order; the main file goes first again.
    main = Path(facts["path"]).name
    files = sorted(facts.get("files") or (), key=lambda name: (name != main, name))
    return Artifact(
        path=path or Path(facts["path"]),
        format=facts["format"],
        inputs=tuple(TensorSpec.from_dict(spec) for spec in facts["inputs"]),
        outputs=tuple(TensorSpec.from_dict(spec) for spec in facts["outputs"]),
        target=facts["target"],
        precision=facts["precision"],
        opset=facts["opset"],
        sha256=facts["sha256"],
        size_bytes=facts["size_bytes"],
        parent_sha256=facts["parent_sha256"],
        execution=facts["execution"],
        stage=facts.get("stage", ""),
        options=facts.get("options", {}),
        tool_versions=facts.get("tool_versions", {}),
        files=tuple(files),
        companions=tuple(facts.get("companions") or ()),
        interface=facts.get("interface") or {},
        built_for=facts.get("built_for") or {},
    )


def write_manifest(artifact: Artifact) -> Path:
    """Writes the manifest beside the artifact (same input, options and versions: same bytes)."""
    text = json.dumps(artifact.manifest(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    artifact.manifest_path.write_text(text, encoding="utf-8")
    return artifact.manifest_path


def read_manifest(path: Path) -> Artifact | None:
    """The artifact that the manifest beside `path` describes, or None without a readable manifest.

    A manifest is a claim: callers that rely on the digest compare it with the file's.
    """
    file = path.with_name(path.name + MANIFEST_SUFFIX)
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        return artifact_from_dict(facts, path) if facts.get("schema") == MANIFEST_SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
