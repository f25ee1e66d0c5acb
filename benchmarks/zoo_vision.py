"""Vision networks of the usual families, small and with seeded random weights, for the model table of Core ML."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _seeded(module: nn.Module, *size: int) -> nn.Module:
    """The module with running statistics of three random batches, in evaluation mode."""
    module.train()
    with torch.no_grad():
        for _ in range(3):
            module(torch.randn(*size))
    return module.eval()


def _conv(before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: type = nn.ReLU) -> nn.Module:
    layers = [nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(after)]
    return nn.Sequential(*layers, act())


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a shortcut (He et al., 2016)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            _conv(before, width, 1), _conv(width, width, 3, stride), _conv(width, width * 4, 1, act=nn.Identity)
        )
        same = stride == 1 and before == width * 4
        self.short = nn.Identity() if same else _conv(before, width * 4, 1, stride, act=nn.Identity)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return functional.relu(self.path(x) + self.short(x))


def cnn() -> nn.Module:
    """Convolutions, batch norms, pools and a classifier."""
    torch.manual_seed(0)
    body = [_conv(3, 16), nn.MaxPool2d(2), _conv(16, 32), nn.AvgPool2d(2), _conv(32, 64), nn.AdaptiveAvgPool2d(4)]
    head = [nn.Flatten(), nn.Dropout(0.3), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)]
    return _seeded(nn.Sequential(*body, *head), 2, 3, 32, 32)


def resnet() -> nn.Module:
    """Four stages of bottlenecks, as ResNet-50 has them."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [_conv(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1)]
    before = 16
    for width, count, stride in ((8, 2, 1), (16, 2, 2), (24, 2, 2), (32, 2, 2)):
        for place in range(count):
            layers.append(Bottleneck(before, width, stride if place == 0 else 1))
            before = width * 4
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 20)]
    return _seeded(nn.Sequential(*layers, *head), 2, 3, 64, 64)


class Squeeze(nn.Module):
    """Squeeze and excitation with a hard sigmoid."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        share = functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.up(share))


class Inverted(nn.Module):
    """Expand, depthwise, squeeze, project (MobileNetV3)."""

    def __init__(self, before: int, wide: int, after: int, kernel: int, stride: int, act: type) -> None:
        super().__init__()
        self.adds = stride == 1 and before == after
        self.path = nn.Sequential(
            _conv(before, wide, 1, act=act),
            _conv(wide, wide, kernel, stride, wide, act=act),
            Squeeze(wide),
            _conv(wide, after, 1, act=nn.Identity),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return x + self.path(x) if self.adds else self.path(x)


def mobilenet() -> nn.Module:
    """Inverted residuals with squeeze and excitation, ReLU6 and hard swish, as MobileNetV2 and V3 have them."""
    torch.manual_seed(0)
    body = [
        _conv(3, 16, 3, 2, act=nn.Hardswish),
        Inverted(16, 32, 16, 3, 1, nn.ReLU6),
        Inverted(16, 48, 24, 3, 2, nn.ReLU6),
        Inverted(24, 72, 24, 5, 1, nn.Hardswish),
        Inverted(24, 96, 40, 5, 2, nn.Hardswish),
    ]
    head = [_conv(40, 96, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 20)]
    return _seeded(nn.Sequential(*body, *head), 2, 3, 64, 64)


class Shuffle(nn.Module):
    """A ShuffleNetV2 unit: half of the channels pass, and the channels of both halves alternate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.path = nn.Sequential(
            _conv(half, half, 1), _conv(half, half, 3, 1, half, nn.Identity), _conv(half, half, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        first, second = x.chunk(2, 1)
        joined = torch.cat([first, self.path(second)], 1)
        return joined.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def shufflenet() -> nn.Module:
    """Grouped convolutions and channel shuffles."""
    torch.manual_seed(0)
    body = [_conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1), *(Shuffle(24) for _ in range(3)), _conv(24, 64, 1)]
    return _seeded(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), 2, 3, 64, 64)


class Residual(nn.Module):
    """GroupNorm, SiLU and convolutions, as diffusion U-Nets have them."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(4, before), nn.GroupNorm(8, after)
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, 1, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.short = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        y = self.conv1(functional.silu(self.first(x)))
        return self.conv2(functional.silu(self.second(y))) + self.short(x)


class PixelAttention(nn.Module):
    """Attention over the pixels of a plane."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(4, width), heads
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        batch, width, high, wide = x.shape
        parts = self.qkv(self.norm(x)).flatten(2).view(batch, 3, self.heads, width // self.heads, -1)
        q, k, v = parts.transpose(-1, -2).unbind(1)
        y = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(batch, width, high, wide))


class UNet(nn.Module):
    """Two levels down and up with GroupNorm, attention in the middle, and skip connections."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.down1, self.down2 = nn.Conv2d(3, 16, 3, 1, 1), Residual(16, 16), Residual(16, 32)
        self.small1, self.small2 = nn.Conv2d(16, 16, 3, 2, 1), nn.Conv2d(32, 32, 3, 2, 1)
        self.middle = nn.Sequential(Residual(32, 32), PixelAttention(32), Residual(32, 32))
        self.large = nn.ConvTranspose2d(32, 32, 2, 2)
        self.up2, self.up1 = Residual(64, 16), Residual(32, 16)
        self.norm, self.out = nn.GroupNorm(4, 16), nn.Conv2d(16, 3, 3, 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:  # noqa: D102
        first = self.down1(self.stem(image))
        second = self.down2(self.small1(first))
        y = self.large(self.middle(self.small2(second)))
        y = self.up2(torch.cat([y, second], 1))
        y = functional.interpolate(y, scale_factor=2.0, mode="nearest")
        y = self.up1(torch.cat([y, first], 1))
        return self.out(functional.silu(self.norm(y)))


def unet() -> nn.Module:
    """The U-Net."""
    return UNet().eval()


class Segmenter(nn.Module):
    """DeepLab: dilated convolutions at several rates, a pooled branch, a bilinear resize to the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(3, 16, 3, 2), _conv(16, 32, 3, 2))
        self.rates = nn.ModuleList(nn.Conv2d(32, 16, 3, padding=rate, dilation=rate) for rate in (1, 2, 4))
        self.pooled, self.head = nn.Conv2d(32, 16, 1), nn.Conv2d(64, 5, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:  # noqa: D102
        x = self.body(image)
        plane = self.pooled(x.mean((2, 3), keepdim=True)).expand(-1, -1, x.shape[2], x.shape[3])
        y = self.head(torch.cat([*(rate(x) for rate in self.rates), plane], 1))
        return functional.interpolate(y, size=image.shape[2:], mode="bilinear", align_corners=False)


def segmenter() -> nn.Module:
    """The DeepLab."""
    torch.manual_seed(0)
    return _seeded(Segmenter(), 2, 3, 64, 64)


class SuperResolution(nn.Module):
    """Convolutions and a pixel shuffle, on top of a bicubic resize."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 16, 5, 1, 2), nn.PReLU(16), nn.Conv2d(16, 12, 3, 1, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:  # noqa: D102
        large = functional.interpolate(image, scale_factor=2.0, mode="bicubic", align_corners=False)
        return functional.pixel_shuffle(self.body(image), 2) + large


def super_resolution() -> nn.Module:
    """The upscaler."""
    return SuperResolution().eval()


class GridWarp(nn.Module):
    """A spatial transformer: an affine grid that the image decides on, and samples there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.look = nn.Sequential(nn.Conv2d(3, 8, 5, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.theta = nn.Linear(8, 6)

    def forward(self, image: torch.Tensor) -> torch.Tensor:  # noqa: D102
        theta = self.theta(self.look(image)).view(-1, 2, 3) * 0.1 + torch.eye(2, 3)
        grid = functional.affine_grid(theta, list(image.shape), align_corners=False)
        return functional.grid_sample(image, grid, align_corners=False)


def grid_warp() -> nn.Module:
    """The spatial transformer."""
    return GridWarp().eval()
