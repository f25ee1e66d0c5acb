"""The model zoo: families of networks, the sizes of their inputs, and what of them may vary."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
EXPORTERS = ("dynamo", "torchscript")
# Sizes that vary -> (smallest, largest) in the dynamic variants; the static ones have the size of each `Row`.
BOUNDS = {
    "batch": (1, 4), "length": (4, 32), "past": (1, 16), "total": (5, 48), "frames": (16, 64), "samples": (160, 640),
    "high": (32, 96), "wide": (32, 96), "hundreds": (400, 1600),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Row:
    """A model. source: file and factory. inputs: specs with symbols. sizes: of what does not vary.

    limits: bounds that differ from `BOUNDS`. custom: file of translations. unrolled: sizes that PyTorch's dynamo
    exporter writes out step by step, so that they cannot vary there. asked: whether the family had to be there.
    """

    title: str
    source: str
    inputs: tuple[str, ...]
    sizes: dict[str, int]
    limits: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    custom: str | None = None
    unrolled: tuple[str, ...] = ()
    asked: bool = True

    def bounds(self, exporter, dynamic):
        """{symbol: [smallest, largest]} of what varies in a variant."""
        if not dynamic:
            return {}
        used = {name for spec in self.inputs for name in re.findall(r"[a-z]+", spec.partition("[")[2])}
        kept = used - set(self.unrolled if exporter == "dynamo" else ())
        return {name: list(self.limits.get(name, BOUNDS[name])) for name in sorted(kept)}

    def specs(self, bounds):
        """Input specs of a variant: what does not vary has its own size."""

        def size(match):
            return match[0] if match[0] in bounds else str(self.sizes[match[0]])

        parts = [spec.partition("[") for spec in self.inputs]
        return [f"{head}[{re.sub(r'[a-z]+', size, tail)}" for head, _, tail in parts]


def _image(title, source, size, *, spatial=False, **more):
    sizes = {"batch": 1, "high": size, "wide": size}
    shape = "batch,3,high,wide" if spatial else f"batch,3,{size},{size}"
    return Row(title, source, (f"image:float32[{shape}]",), sizes, **more)


def _text(title, source, **more):
    inputs = ("input_ids:int64[batch,length]", "attention_mask:int64[batch,length]")
    return Row(title, source, inputs, {"batch": 1, "length": 12}, **more)


def _cached(title, source, **more):
    cache = tuple(f"{kind}{layer}:float32[batch,2,past,8]" for layer in (0, 1) for kind in ("key", "value"))
    inputs = ("input_ids:int64[batch,length]", "attention_mask:int64[batch,total]", *cache)
    return Row(title, source, inputs, {"batch": 1, "length": 3, "past": 5, "total": 8}, **more)


_VISION, _TRANSFORMERS, _SPEECH, _YOLO = "zoo_vision", "zoo_transformers", "zoo_speech", "zoo_yolo"
ZOO = {
    "cnn": _image("CNN", f"{_VISION}:cnn", 32),
    "resnet": _image("ResNet", f"{_VISION}:resnet", 64, spatial=True),
    "mobilenet": _image("MobileNet", f"{_VISION}:mobilenet", 64, spatial=True),
    "unet": _image("U-Net with GroupNorm", f"{_VISION}:unet", 32, spatial=True),
    "yolo": _image("YOLO with NMS", f"{_YOLO}:yolo", 64, custom="zoo_translations.py"),
    "bert": _text("BERT", f"{_TRANSFORMERS}:bert"),
    "vit": _image("ViT", f"{_TRANSFORMERS}:vit", 32),
    "convnext": _image("ConvNeXt", f"{_TRANSFORMERS}:convnext", 64, spatial=True),
    "swin": _image("Swin", f"{_TRANSFORMERS}:swin", 64),
    "gpt2": _text("GPT-2", f"{_TRANSFORMERS}:gpt2"),
    "llama": _cached("Llama with cache", f"{_TRANSFORMERS}:llama"),
    "lstm": Row("LSTM speech recognizer", f"{_SPEECH}:lstm_recognizer", ("features:float32[batch,frames,40]",),
                {"batch": 1, "frames": 32}, unrolled=("frames",)),
    "gru": Row("GRU noise suppressor", f"{_SPEECH}:gru_denoiser", ("spectrum:float32[batch,frames,33]",),
               {"batch": 1, "frames": 20}, unrolled=("frames",)),
    "shufflenet": _image("ShuffleNet", f"{_VISION}:shufflenet", 64, spatial=True, asked=False),
    "segmenter": _image("DeepLab", f"{_VISION}:segmenter", 64, spatial=True, asked=False),
    "super_resolution": _image("upscaler, pixel shuffle", f"{_VISION}:super_resolution", 24, asked=False),
    "grid_warp": _image("spatial transformer", f"{_VISION}:grid_warp", 32, asked=False),
    "yolo_raw": _image("YOLO without NMS", f"{_YOLO}:yolo_raw", 64, custom="zoo_translations.py", asked=False),
    "distilbert": _text("DistilBERT", f"{_TRANSFORMERS}:distilbert", asked=False),
    "roberta": _text("RoBERTa", f"{_TRANSFORMERS}:roberta", asked=False),
    "deberta": _text("DeBERTa-v2", f"{_TRANSFORMERS}:deberta", asked=False),
    "t5": _text("T5 encoder", f"{_TRANSFORMERS}:t5_encoder", asked=False),
    "segformer": _image("SegFormer", f"{_TRANSFORMERS}:segformer", 64, spatial=True, unrolled=("high", "wide"),
                        asked=False),
    "mobilevit": _image("MobileViT", f"{_TRANSFORMERS}:mobilevit", 64, asked=False),
    "dinov2": _image("DINOv2", f"{_TRANSFORMERS}:dinov2", 56, asked=False),
    "qwen3": _cached("Qwen3 with cache", f"{_TRANSFORMERS}:qwen3", asked=False),
    "whisper": Row("Whisper encoder", f"{_TRANSFORMERS}:whisper_encoder", ("audio:float32[batch,16,100]",),
                   {"batch": 1}, asked=False),
    "wav2vec2": Row("wav2vec 2.0", f"{_TRANSFORMERS}:wav2vec2", ("audio:float32[batch,hundreds]",),
                    {"batch": 1, "hundreds": 800}, asked=False),
    "detector": Row("voice detector with state", f"{_SPEECH}:stateful_detector",
                    ("chunk:float32[batch,samples]", "h:float32[1,batch,16]", "c:float32[1,batch,16]"),
                    {"batch": 1, "samples": 320}, unrolled=("samples",), asked=False),
    "separator": Row("Conv-TasNet", f"{_SPEECH}:separator", ("audio:float32[batch,samples]",),
                     {"batch": 1, "samples": 320}, asked=False),
}  # fmt: skip


def export(name, exporter, dynamic, output):
    """The report of exporting one variant, compared with PyTorch by deploykit itself."""
    import deploykit

    row = ZOO[name]
    bounds = row.bounds(exporter, dynamic)
    file, _, factory = row.source.partition(":")
    return deploykit.export(
        f"{HERE / file}.py:{factory}",
        output=output,
        inputs=row.specs(bounds),
        dims=[f"{symbol}={low}..{high}" for symbol, (low, high) in bounds.items()],
        exporter=exporter,
        custom_ops=str(HERE / row.custom) if row.custom else None,
        force=True,
    )


def feeds(name, bounds, place=0):
    """Random arrays for one variant, at the place-th of three sizes within the bounds."""
    row = ZOO[name]
    rng = np.random.default_rng(place)
    sizes = dict(row.sizes)
    for symbol, (low, high) in bounds.items():
        size = (low, (low + high) // 2, high)[place]
        sizes[symbol] = size // 32 * 32 if symbol in ("high", "wide") else size
    if "total" in bounds:
        sizes["total"] = sizes["past"] + sizes["length"]
    made = {}
    for spec in row.inputs:
        tensor, _, rest = spec.partition(":")
        dtype, _, shape = rest.partition("[")
        lengths = [sizes.get(part) or int(part) for part in shape.rstrip("]").split(",")]
        if tensor == "attention_mask":
            array = np.ones(lengths, np.int64)
            array[0, : lengths[1] // 4] = 0 if "past" in sizes else 1  # padding on the left of a cache,
            array[0, -(lengths[1] // 4) :] = 1 if "past" in sizes else 0  # on the right of a text
            made[tensor] = array
        elif dtype == "int64":
            made[tensor] = rng.integers(2, 100, lengths)
        else:
            made[tensor] = rng.normal(size=lengths).astype(np.float32)
    return made


def torch_outputs(name, given):
    """What the module itself gives, in order; with float32 and no gradients."""
    import importlib

    import torch

    file, _, factory = ZOO[name].source.partition(":")
    sys.path.insert(0, str(HERE))
    try:
        module = getattr(importlib.import_module(file), factory)()
    finally:
        sys.path.remove(str(HERE))
    with torch.no_grad():
        made = module(*(torch.from_numpy(array) for array in given.values()))
    return [tensor.numpy() for tensor in (made if isinstance(made, tuple) else (made,))]


def variants(names=()):
    """(name, exporter, dynamic) of the models named, of all when none is."""
    return [(n, e, d) for n in ZOO if not names or n in names for e in EXPORTERS for d in (False, True)]


def stem(name, exporter, dynamic):
    """The file name of a variant."""
    return f"{name}-{exporter}-{'dynamic' if dynamic else 'static'}"


def make(folder, names=()):
    """Writes the ONNX of every variant that is not there yet; beside it feeds and what PyTorch gives, or a refusal."""
    from deploykit.errors import DeploykitError
    from deploykit.isolation import workers

    with workers():
        for variant in variants(names):
            target = folder / f"{stem(*variant)}.onnx"
            if target.exists():
                continue
            try:
                report = export(*variant, target)
                problem = report.error.message if report.error else None
                if problem is None and report.exit_code:
                    problem = next(f.message for f in report.findings if f.severity == "error")
            except DeploykitError as refusal:
                problem = refusal.message
            if problem is not None:
                target.with_suffix(".txt").write_text(problem, encoding="utf-8")
                continue
            name, exporter, dynamic = variant
            bounds = ZOO[name].bounds(exporter, dynamic)
            for place in range(3 if dynamic else 1):
                given = feeds(name, bounds, place)
                made = torch_outputs(name, given)
                for kind, arrays in (("feeds", given), ("torch", {str(at): array for at, array in enumerate(made)})):
                    held = folder / f"{stem(*variant)}.{kind}"
                    held.mkdir(exist_ok=True)
                    np.savez(held / f"{place}.npz", **arrays)


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2:])
