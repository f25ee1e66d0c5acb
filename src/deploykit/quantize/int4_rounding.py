"""Which 4-bit integers a weight becomes: chosen by method, with the activations of calibration data where there are."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit import lazy
from deploykit.errors import UsageError
from deploykit.progress import OnProgress, Progress
from deploykit.quantize.blocks import BlockWeight, in_blocks, round_to_nearest
from deploykit.quantize.gptq import Gptq
from deploykit.quantize.hessians import LARGEST, Tap, stream
from deploykit.quantize.measuring import MemoryWatch
from deploykit.quantize.prepare import is_constant
from deploykit.quantize.slices import reading
from deploykit.report import Finding, note, warning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from deploykit.quantize.int4_sites import Form, Site
    from deploykit.quantize.settings import Settings

Array = np.ndarray[Any, Any]
Key = tuple[object, ...]
# Fewer activation vectors than this share of the columns leave directions that nothing is known of.
ENOUGH_VECTORS = 1.0


class Rounding:
    """Rounds the weights of one model; afterwards says how, on how much data, and what there is to know about it."""

    def __init__(self, model: ir.Model, source: Path, settings: Settings, form: Form) -> None:
        """Raises UsageError (DK391) for gptq without data, or hqq for a target without float zero points."""
        asked: str = settings.method
        if asked == "auto":
            asked = "gptq" if settings.calibrates else "rtn"
        if asked == "gptq" and not settings.calibrates:
            raise UsageError(
                "--method gptq rounds by the activations of calibration data, and there is none",
                code="DK391",
                hint="--calib DATA, or --method rtn, which needs none",
            )
        if asked == "hqq" and not form.contributed:
            raise UsageError(
                f"--method hqq has zero points between integers, which {settings.target} does not take",
                code="DK391",
                hint="--method gptq with --calib DATA, or --method rtn",
            )
        self.method = asked
        self.metrics: dict[str, Any] | None = None
        self.findings: list[Finding] = []
        self.tally: dict[str, int] = {}
        self._model = model
        self._source = source
        self._settings = settings
        self._symmetric = form.symmetric

    def round(self, sites: Mapping[Key, Sequence[Site]], on_progress: OnProgress) -> dict[Key, BlockWeight]:
        """Every matrix by its key; one that GPTQ has no activations for is rounded to nearest."""
        made: dict[Key, BlockWeight] = {}
        if self.method == "gptq":
            self._calibrated(sites, made, on_progress)
        for number, (key, readers) in enumerate(sites.items()):
            if key in made:
                continue
            if self.method == "hqq" and readers[0].place.node.op_type in {"MatMul", "Gemm"}:
                made[key] = self._rounded(
                    readers[0], lambda matrix, block=readers[0].block: half_quadratic(matrix, block), "hqq"
                )
            else:
                made[key] = self._to_nearest(readers[0])
            on_progress(Progress("rounding weights", readers[0].place.node.name or "", number + 1, len(sites)))
        if self.method == "hqq" and self.tally.get("hqq"):
            text = "zero points lie between integers: onnxruntime has no fast kernel for that, most so at batch 1"
            self.findings.append(note("DK394", text, hint="--method gptq with --calib DATA keeps them whole"))
        return made

    def _to_nearest(self, site: Site) -> BlockWeight:
        return self._rounded(
            site, lambda matrix: round_to_nearest(matrix, site.block, symmetric=self._symmetric), "rtn"
        )

    def _by_gptq(self, site: Site, solver: Gptq) -> BlockWeight:
        return self._rounded(
            site, lambda matrix: solver.quantize(matrix, site.block, symmetric=self._symmetric), "gptq"
        )

    def _rounded(self, site: Site, rounds: Any, by: str) -> BlockWeight:
        with reading(site.weight) as data:
            matrix = data.T if site.transposed else data.reshape(data.shape[0], -1)
            made: BlockWeight = rounds(matrix)
        self.tally[by] = self.tally.get(by, 0) + 1
        return made

    def _calibrated(
        self, sites: Mapping[Key, Sequence[Site]], made: dict[Key, BlockWeight], on_progress: OnProgress
    ) -> None:
        """Weights by what they multiply: one Hessian serves all that read the same activation."""
        readers: dict[Tap, list[Key]] = {}
        for key, group in sites.items():
            # A weight that several activations meet is rounded for the first one.
            tap = next((found for site in group if (found := tap_of(site)) is not None), None)
            if tap is not None:
                readers.setdefault(tap, []).append(key)
        if not readers:
            return
        started, samples = time.perf_counter(), 0
        watch = MemoryWatch(on_progress)
        thin: list[tuple[str, int, int]] = []
        for streamed in stream(self._model, list(readers), self._source, self._settings, watch):
            samples = streamed.samples
            for tap in list(streamed.matrices):
                vectors = streamed.vectors[tap]
                if vectors < ENOUGH_VECTORS * tap.columns:
                    thin.append((tap.name, vectors, tap.columns))
                solver = Gptq(streamed.matrices.pop(tap))
                for key in readers[tap]:
                    site = sites[key][0]
                    watch(Progress("rounding weights", site.place.node.name or "", len(made), len(sites)))
                    made[key] = self._by_gptq(site, solver)
        if thin:
            worst = max(thin, key=lambda item: item[2] / max(item[1], 1))
            text = f"{len(thin)} of {len(readers)} activations gave fewer vectors than they have columns: {worst[0]!r} "
            self.findings.append(
                warning(
                    "DK393",
                    f"{text}{worst[1]} for {worst[2]}: what calibrates them is too little to know their directions",
                    tensor=worst[0],
                    hint="more or longer samples for --calib",
                )
            )
        self.metrics = {
            "samples": samples,
            "method": "gptq",
            "seconds": round(time.perf_counter() - started, 4),
            "peak_rss_mb": round(watch.peak_mb, 1),
            "reused": False,
        }


def tap_of(site: Site) -> Tap | None:
    """The activation that a weight multiplies, where a session can show it; None in bodies and for tables."""
    node = site.place.node
    activation = node.inputs[0]
    if node.op_type == "Gather" or site.place.around or activation is None or is_constant(activation):
        return None
    assert site.weight.const_value is not None
    shape = site.weight.const_value.shape.numpy()
    tap = Tap(activation.name or "", int(shape[0 if site.transposed else 1]), _summed(node))
    return tap if tap.nbytes <= LARGEST else None


def _summed(node: ir.Node) -> int:
    if node.op_type == "Conv":
        return 1
    return 0 if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) != 0 else -1


def half_quadratic(weight: Array, block: int) -> BlockWeight:
    """A matrix by half-quadratic quantization, as onnxruntime has it; its zero points are no integers.

    H. Badri, A. Shaji, Half-Quadratic Quantization of Large Machine Learning Models, 2023: least |w - q|^0.7.
    Raises MissingDependencyError where PyTorch is not installed.
    """
    if not lazy.installed("torch"):
        raise lazy.missing("torch", "torch", "half-quadratic quantization")
    import torch
    from onnxruntime.quantization.matmul_nbits_quantizer import HQQWeightOnlyQuantizer

    padded = in_blocks(np.asarray(weight, np.float32), block).reshape(weight.shape[0], -1)
    codes, scale, zero = HQQWeightOnlyQuantizer(None).quantize_internal(
        torch.from_numpy(np.ascontiguousarray(padded)), bits=4, group_size=block
    )
    return BlockWeight(codes.numpy().astype(np.uint8), scale.numpy(), zero.numpy(), weight.shape[1], block)
