"""Packages as coremltools makes them of PyTorch modules, with the modules' own answers; run in a worker."""

from __future__ import annotations

import logging
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as compress
import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, image):
        x = self.stem(image)
        return self.head(functional.adaptive_avg_pool2d(x + self.body(x), 1).flatten(1))


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.Hardswish(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.ReLU6()]
        squeeze = [nn.Conv2d(16, 24, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 8, 1), nn.Hardsigmoid()]
        self.net = nn.Sequential(*layers, *squeeze)

    def forward(self, image):
        return self.net(image).flatten(1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8)
        self.up, self.soft = nn.ConvTranspose2d(8, 3, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, image):
        found = functional.gelu(self.norm(self.down(image)))
        return torch.cat([self.up(found), image, self.soft(found)], 1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.words(ids) + self.places(torch.arange(ids.shape[1])))


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.randn(1, 1, 32))
        self.layer, self.head = (
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True),
            nn.Linear(32, 5),
        )

    def forward(self, image):
        x = self.cut(image).flatten(2).transpose(1, 2)
        return self.head(self.layer(torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1))[:, 0])


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 50, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        b, n, _ = x.shape
        q, k, v = self.mix(self.norm(x)).view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(x + found.transpose(1, 2).reshape(b, n, 32))


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.long = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
        self.short, self.plain = nn.GRU(32, 8, batch_first=True), nn.RNN(8, 4, batch_first=True)

    def forward(self, frames):
        return self.plain(self.short(self.long(frames)[0])[0])[0]


IMAGE, IDS = torch.randn(2, 3, 32, 32), torch.randint(0, 50, (2, 6))
# coremltools' export front-end has no recurrent layers, its trace front-end no masks that follow a length.
FAMILIES = {
    "residual": (Residual, IMAGE, "both"),
    "separable": (Separable, IMAGE, "both"),
    "unet": (UNet, IMAGE, "both"),
    "encoder": (Encoder, IDS, "export"),
    "patches": (Patches, IMAGE, "export"),
    "causal": (Causal, IDS, "export"),
    "speech": (Speech, torch.randn(2, 5, 8), "trace"),
}


def make(folder: str) -> list[str]:
    """Writes `<family>-<front-end>-<precision>.mlpackage`, and `<family>.npz` with input and output; the names."""
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    root, names = Path(folder), []
    for family, (kind, example, ways) in FAMILIES.items():
        torch.manual_seed(0)
        module = kind().eval()
        with torch.no_grad():
            np.savez(root / f"{family}.npz", input=example.numpy(), output=module(example).numpy())
        for way in ("export", "trace") if ways == "both" else (ways,):
            for precision in ("FLOAT32", "FLOAT16"):
                names.append(f"{family}-{way}-{precision.lower()}.mlpackage")
                _convert(module, example, way, ct.precision[precision]).save(str(root / names[-1]))
    return names


def _convert(module, example, way, precision, target=ct.target.iOS17):
    if way == "export":
        program, more = torch.export.export(module, (example,)).run_decompositions({}), {}
    else:
        kind = np.int32 if example.dtype == torch.int64 else np.float32
        program, more = torch.jit.trace(module, example, check_trace=False), {}
        more = {"inputs": [ct.TensorType(shape=example.shape, dtype=kind)]}
    options = {"minimum_deployment_target": target, "compute_precision": precision, "skip_model_load": True}
    return ct.convert(program, convert_to="mlprogram", **options, **more)


def compressed(folder: str) -> list[str]:
    """Writes `<form>.mlpackage` with small weights, and `<form>-whole.mlpackage` that coremltools decompressed."""
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    root = Path(folder)
    torch.manual_seed(0)
    module = Residual().eval()
    table = {"mode": "uniform", "nbits": 4, "weight_threshold": 0}
    forms = {
        "table": (ct.target.iOS17, compress.OpPalettizerConfig(**table), compress.palettize_weights),
        "tables": (
            ct.target.iOS18,
            compress.OpPalettizerConfig(**table, granularity="per_grouped_channel", group_size=4),
            compress.palettize_weights,
        ),
        "sparse": (
            ct.target.iOS17,
            compress.OpMagnitudePrunerConfig(target_sparsity=0.5, weight_threshold=0),
            compress.prune_weights,
        ),
    }
    for name, (target, config, function) in forms.items():
        package = _convert(module, IMAGE, "export", ct.precision.FLOAT32, target)
        made = function(package, compress.OptimizationConfig(global_config=config))
        made.save(str(root / f"{name}.mlpackage"))
        compress.decompress_weights(made).save(str(root / f"{name}-whole.mlpackage"))
    return list(forms)
