"""Quantizes one model with onnxruntime or NNCF, in the peers' environment (see quantization_peers_setup).

python quantization_peers.py RECIPE FLOAT.onnx CALIB OUT.onnx [--metric M] [--transformer] [--max-drop X]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OPSET = 17  # NNCF wants 13 or more; published models are older


def feeds(folder: Path) -> Iterator[tuple[dict[str, np.ndarray], Any]]:
    """The feeds of a folder with their labels."""
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            arrays = dict(file)
        label = arrays.pop("y", None)
        yield arrays, None if label is None else label[()]


def raised(path: Path, out: Path) -> None:
    """The model at opset 17 where it is older."""
    model = onnx.load(path)
    if next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")) < 13:
        model = onnx.version_converter.convert_version(model, OPSET)
    onnx.save(model, out)


def prepared(path: Path, folder: Path) -> Path:
    """After onnxruntime's own pre-processing, as its documentation asks; without what of it fails."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    source, out = folder / "raised.onnx", folder / "prepared.onnx"
    raised(path, source)
    for skip in ({}, {"skip_symbolic_shape": True}, {"skip_symbolic_shape": True, "skip_onnx_shape": True}):
        try:
            quant_pre_process(str(source), str(out), **skip)
        except Exception as problem:
            print(f"pre-processing with {skip or 'everything'} failed: {problem}"[:300])
        else:
            return out
    return source


def padded(given: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """The feeds with zeros behind, so that each input has one shape."""
    shapes = {name: np.max([feed[name].shape for feed in given], axis=0) for name in given[0]}
    return [
        {
            name: v if not v.ndim else np.pad(v, [(0, int(n - m)) for n, m in zip(shapes[name], v.shape, strict=True)])
            for name, v in feed.items()
        }
        for feed in given
    ]


def ort_static(arguments: argparse.Namespace, method: str, activations: str) -> None:
    """quantize_static as Q/DQ, weights int8 per channel."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self, given: Iterable[dict[str, np.ndarray]]) -> None:
            self._given = iter(given)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._given, None)

    symmetric = activations == "s8"
    with tempfile.TemporaryDirectory() as scratch:
        source = prepared(arguments.float, Path(scratch))
        inputs = {value.name for value in onnx.load(source).graph.input}
        given = [{k: v for k, v in arrays.items() if k in inputs} for arrays, _ in feeds(arguments.calib)]
        if method != "MinMax":
            given = padded(given)  # its histograms take samples of one shape only
        quantize_static(
            str(source),
            str(arguments.out),
            Reader(given),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod[method],
            extra_options={"ActivationSymmetric": symmetric},
        )


def ort_dynamic(arguments: argparse.Namespace) -> None:
    """quantize_dynamic, weights int8 per channel."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as scratch:
        source = prepared(arguments.float, Path(scratch))
        quantize_dynamic(str(source), str(arguments.out), per_channel=True, weight_type=QuantType.QInt8)


def nncf_ptq(arguments: argparse.Namespace, *, control: bool) -> None:
    """nncf.quantize, or quantize_with_accuracy_control on the labels of the calibration data."""
    import nncf

    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "raised.onnx"
        raised(arguments.float, source)
        model = onnx.load(source)
    inputs = {value.name for value in model.graph.input}
    pairs = [({k: v for k, v in arrays.items() if k in inputs}, label) for arrays, label in feeds(arguments.calib)]
    model_type = nncf.ModelType.TRANSFORMER if arguments.transformer else None
    calibration = nncf.Dataset(pairs, lambda pair: pair[0])
    options: dict[str, Any] = {"subset_size": len(pairs), "model_type": model_type}
    if not control:
        onnx.save(nncf.quantize(model, calibration, **options), arguments.out)
        return
    import onnxruntime as ort

    from deploykit.evaluation import make_metric

    sign = 1 if make_metric(arguments.metric, [arguments.float]).higher_is_better else -1

    def validate(candidate: onnx.ModelProto, data: Iterable[Any]) -> tuple[float, None]:
        compiled = ort.InferenceSession(candidate.SerializeToString(), providers=["CPUExecutionProvider"])
        metric = make_metric(arguments.metric, [arguments.float])
        names = [output.name for output in compiled.get_outputs()]
        for arrays, label in data:
            metric.add(dict(zip(names, compiled.run(None, arrays), strict=True)), label)
        return sign * metric.value(), None

    made = nncf.quantize_with_accuracy_control(
        model,
        calibration,
        nncf.Dataset([pair for pair in pairs if known(pair[1])], lambda pair: pair),
        validation_fn=validate,
        max_drop=arguments.max_drop,
        drop_type=nncf.DropType.ABSOLUTE,
        **options,
    )
    onnx.save(made, arguments.out)


def known(label: Any) -> bool:
    """Whether a sample can be scored by itself."""
    array = np.asarray(label)
    return array.dtype.kind not in "iu" or bool((array >= 0).any())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    for name in ("float", "calib", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--metric")
    parser.add_argument("--max-drop", type=float, default=0.5)
    parser.add_argument("--transformer", action="store_true")
    arguments = parser.parse_args()
    kind, *rest = arguments.recipe.split()
    if kind == "dynamic":
        ort_dynamic(arguments)
    elif kind == "nncf":
        nncf_ptq(arguments, control=rest == ["control"])
    else:
        ort_static(arguments, kind, *rest)


if __name__ == "__main__":
    main()
