"""`config.pbtxt`: what a model repository says about a model, in protobuf's text format.

Fields and rules: github.com/triton-inference-server/common, protobuf/model_config.proto; server docs,
user_guide/model_configuration.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.serving.datatypes import DATATYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deploykit.artifact import TensorSpec

# Lines that choose the engine, by artifact format.
ENGINES: dict[str, tuple[str, ...]] = {
    "onnx": ('platform: "onnxruntime_onnx"', 'backend: "onnxruntime"'),
    "openvino": ('backend: "openvino"',),
}


def batch_symbol(specs: Iterable[TensorSpec]) -> str | None:
    """The symbol that is the first dimension of every input and output: the batch; None when there is none."""
    firsts = {spec.shape[0] if spec.shape else None for spec in specs}
    only = next(iter(firsts)) if len(firsts) == 1 else None
    return only if isinstance(only, str) else None


def config_text(
    name: str, format: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], max_batch_size: int
) -> str:
    """The configuration; with a max_batch_size above 0 the first dimension is the server's and is left away.

    Every tensor needs a shape of known rank and a datatype of the protocol.
    """
    lines = [f"name: {_quoted(name)}", *ENGINES[format], f"max_batch_size: {max_batch_size}"]
    for kind, specs in (("input", inputs), ("output", outputs)):
        for spec in specs:
            lines += [f"{kind} {{", *_tensor(spec, batched=max_batch_size > 0), "}"]
    return "\n".join(lines) + "\n"


def _tensor(spec: TensorSpec, *, batched: bool) -> list[str]:
    shape = [-1 if isinstance(size, str) else size for size in spec.shape or ()][1 if batched else 0 :]
    datatype = DATATYPES[spec.dtype]
    lines = [
        f"  name: {_quoted(spec.name)}",
        f"  data_type: TYPE_{'STRING' if datatype == 'BYTES' else datatype}",
        f"  dims: [ {', '.join(map(str, shape or [1]))} ]",
    ]
    # The format has no tensor without dimensions: it is declared as one element, and reshaped.
    return lines if shape else [*lines, "  reshape { shape: [ ] }"]


def _quoted(text: str) -> str:
    """A string literal of the text format: bytes beyond ASCII and control characters in octal."""
    escaped = {ord('"'): '\\"', ord("\\"): "\\\\"}
    return '"' + "".join(escaped.get(b, chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode()) + '"'
