"""The text of docs/sources.md around the table of what was proven (benchmarks/sources.json)."""

import json
from pathlib import Path

HEAD = """\
# Sources of `deploykit export`

`deploykit export SOURCE -o model.onnx` takes the sources below. What is written was compared with the source in its own
framework, at the bounds of every dynamic dimension, at 1, and at values between; otherwise nothing is written.

## PyTorch

A source is `path/file.py:factory`, `package.module:factory`, a TorchScript file or a `.pt2`. Inputs are given with
`--input`, taken from `--sample FILE.npz`, from the exported program, or read off a TorchScript graph (DK690).

An input is called as the parameter of `forward` that it fills, or as a place in it:

| `forward` | `--input` |
|---|---|
| `forward(self, x, mask=None)` | `x:float32[batch,8]`; `mask` keeps its default |
| `forward(self, x, *, bias, **more)` | `x:...`, `bias:...`, and any other name for `more` |
| `forward(self, batch: dict)` | `batch.image:float32[n,3,32,32]`, `batch.inner.bias:float32[8]` |
| `forward(self, state: tuple[Tensor, Tensor])` | `state.0:float32[n,16]`, `state.1:float32[n,16]` |
| `forward(self, past: list[tuple[Tensor, Tensor]])` | `past.0.0:...`, `past.0.1:...` |
| `forward(self, pair: MyNamedTuple, settings: MyDataclass)` | `pair.field:...`, `settings.field:...` |

The annotation says whether numbers mean a list or a tuple; without one they mean a tuple, and names mean a dict. What
an annotated tuple leaves open is None, and so is a required parameter whose annotation allows it. In TorchScript files
`--arg NAME=VALUE` fixes an argument that is no tensor. A symbol that is used twice ties both dimensions.

Outputs keep the keys and fields of what `forward` returns, joined by `_` (`past_0_key`); `output`, or `output_0`,
`output_1`, where there are none.

`--exporter auto` takes the dynamo exporter, and the TorchScript exporter where that fails or an opset below 18 is asked
for. The report says which and why, with the line of your code (DK617); `-v` shows the exporter's own trace.

Found and refused, each with its line: a branch on tensor values that tracing would freeze (DK613), a module that is
random or keeps state (DK685), batch statistics in evaluation mode (DK686), a dimension that was frozen (DK623, DK688).

## Operators of your own

`--custom-ops translations.py` gives PyTorch's exporters the ONNX form of operators that they do not know:

```python
import onnxscript
from onnxscript import opset20 as op

import my_operators  # what registers mine::scale, unless the model's own module does


def scale(x, factor: float):
    return op.Mul(x, op.Constant(value_float=factor))


TRANSLATIONS = {"mine::scale": scale}  # or the operator itself: torch.ops.mine.scale.default
```

For the TorchScript exporter a table `SYMBOLICS = {"mine::scale": function}` has functions `(g, *arguments)`, as
`torch.onnx.register_custom_op_symbolic` takes them. `convert` takes the file as well, and a configuration as
`export: {custom_ops: translations.py}`.

Where the ONNX form is an operator outside the standard, it needs a schema,
`onnxscript.values.Op(Opset("my.domain", 1), "MyOp", onnx.defs.OpSchema("MyOp", "my.domain", 1, ...))`, and the proof
needs the extension library of onnxruntime that runs it: `--custom-ops translations.py --custom-ops libmine.so`. That
library goes to `check`, `convert`, `validate`, `bench` and `serve`.

## Hugging Face folders

Text, image, sound and language models from a folder with `config.json` and weights, offline; `--task` takes another
task than the configuration's. See [huggingface.md](huggingface.md).

## TensorFlow

SavedModel folders (`--signature` names one of several), `.keras`, `.h5` and `.tflite`. Image tensors keep the source's
layout, which is reported; `--layout nchw` changes all of them, `--layout NAME=nchw` one, by a Transpose at the edge of
the graph that is proven with the rest.

## Directly to a target

Where a target takes the framework's own program, `convert` needs no ONNX: see [coreml.md](coreml.md).

## What was proven

Written by `benchmarks/sources.py`. Difference: the largest absolute one against the source framework, onnxruntime
without graph optimisation on the other side. Dimensions: the values that were run. Seconds are those of the machine
that wrote the table, and tell more from less only.

| source | family | exporter | opset | difference | inputs | dimensions | seconds |
|---|---|---|---|---|---|---|---|
"""


def page(data: Path) -> str:
    """The whole page."""
    rows = json.loads(data.read_text(encoding="utf-8"))
    lines = [_line(row) for row in rows if "refused" not in row]
    refused = [row for row in rows if "refused" in row]
    if refused:
        lines += ["", "## Refused", ""]
    for row in refused:
        why = row["refused"]
        context = f" ({'; '.join(why['context'])})" if why["context"] else ""
        lines.append(
            f"- {row['source']}, {row['family']}: {why['code']}, {why['message']}{context}. Way: {why['hint']}."
        )
    return HEAD + "\n".join(lines) + "\n"


def _line(row: dict) -> str:
    proven = "; ".join(f"{name} {', '.join(map(str, sizes))}" for name, sizes in row["proven"].items())
    difference = "" if row["max_abs"] is None else f"{row['max_abs']:.2g}"
    cells = (row["source"], row["family"], row["exporter"], row["opset"], difference, row["samples"], proven)
    return "| " + " | ".join(map(str, cells)) + f" | {row['seconds']:g} |"
