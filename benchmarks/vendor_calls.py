"""The vendor calls behind the digits pipeline, bare: one a process, as a script would make them.

Use: python benchmarks/vendor_calls.py NAME DIGITS_FOLDER WORK_FOLDER SECONDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def export(digits: Path, work: Path) -> None:
    """PyTorch to ONNX, and one comparison with the module."""
    import onnxruntime
    import torch
    from safetensors.torch import load_file

    sys.path.insert(0, str(digits))
    from model import DigitsCNN

    model = DigitsCNN()
    model.load_state_dict(load_file(digits / "weights.safetensors"))
    model.eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    example = torch.zeros(2, 1, 8, 8)
    path = work / "model.onnx"
    torch.onnx.export(
        model,
        (example,),
        path,
        dynamo=True,
        dynamic_shapes={"image": {0: batch}},
        input_names=["image"],
        external_data=False,
    )
    onnxruntime.InferenceSession(path).run(None, {"image": example.numpy()})


def simplify(work: Path, engine: str) -> None:
    """One simplifying engine over the exported model."""
    import onnx

    model = onnx.load(work / "model.onnx")
    if engine == "onnxsim":
        import onnxsim

        onnxsim.simplify(model)
    elif engine == "onnxslim":
        import onnxslim

        onnxslim.slim(model)
    else:
        import onnxscript.optimizer

        onnxscript.optimizer.optimize(model)


def half(work: Path) -> None:
    """FP16 by onnxruntime's own pass."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(work / "model.onnx")), work / "fp16.onnx")


def static(digits: Path, work: Path, *, symmetric: bool) -> None:
    """Static INT8 by onnxruntime's quantizer, entropy calibration over the calibration images."""
    from onnxruntime import quantization as q

    class Images(q.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.items = iter(np.load(digits / "calib.npz")["image"][:, None])

        def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
            image = next(self.items, None)
            return None if image is None else {"image": image}

    q.quantize_static(
        work / "model.onnx",
        work / ("int8-symmetric.onnx" if symmetric else "int8.onnx"),
        Images(),
        quant_format=q.QuantFormat.QDQ,
        per_channel=True,
        activation_type=q.QuantType.QInt8 if symmetric else q.QuantType.QUInt8,
        weight_type=q.QuantType.QInt8,
        calibrate_method=q.CalibrationMethod.Entropy,
        extra_options={"ActivationSymmetric": symmetric, "QuantizeBias": not symmetric},
    )


def onnx_of(work: Path, precision: str) -> Path:
    """The ONNX file that a conversion of that precision takes."""
    return work / {"fp32": "model.onnx", "fp16": "fp16.onnx", "int8": "int8.onnx"}.get(precision, "int8-symmetric.onnx")


def onnxruntime_runs(digits: Path, path: Path, seconds: float) -> None:
    """Accuracy over the test images and a timed second, on onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    dtype = np.float16 if "float16" in session.get_inputs()[0].type else np.float32
    measure(
        lambda image: session.run(None, {"image": image}), np.load(digits / "test.npz")["image"].astype(dtype), seconds
    )


def openvino_runs(digits: Path, work: Path, precision: str, seconds: float) -> None:
    """Conversion, accuracy over the test images and a timed second, on OpenVINO."""
    import openvino

    path = work / f"{precision}.xml"
    openvino.save_model(openvino.convert_model(onnx_of(work, precision)), path, compress_to_fp16=False)
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    dtype = np.float16 if precision == "fp16" else np.float32
    measure(lambda image: compiled([image]), np.load(digits / "test.npz")["image"].astype(dtype), seconds)


def measure(call: Any, images: np.ndarray[Any, Any], seconds: float) -> None:
    """One pass over all images, one at a time, then calls until the seconds are over."""
    for image in images[:, None]:
        call(image)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call(images[:1])


def tensorrt_rtx(work: Path, precision: str) -> None:
    """An engine for sm89 and sm120."""
    import tensorrt_rtx as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    path = onnx_of(work, "fp16" if precision == "fp16" else "symmetric")
    if not parser.parse(path.read_bytes()):
        raise SystemExit(str(parser.get_error(0)))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 2
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    config.set_compute_capability(trt.ComputeCapability.SM120, 1)
    profile = builder.create_optimization_profile()
    profile.set_shape("image", (1, 1, 8, 8), (8, 1, 8, 8), (64, 1, 8, 8))
    config.add_optimization_profile(profile)
    (work / f"{precision}.engine").write_bytes(memoryview(builder.build_serialized_network(network, config)))


def coreml(work: Path, precision: str, *, alone: bool) -> None:
    """The call that makes an ML Program: the MIL program of the chain's package, converted and saved again.

    alone: with torch and TensorFlow hidden, which `import coremltools` otherwise loads.
    """
    if alone:
        for name in ("torch", "tensorflow", "sklearn", "xgboost"):
            sys.modules[name] = None  # type: ignore[assignment]
    import coremltools
    from coremltools.converters.mil.frontend.milproto.load import load

    folder = work / "out" / "coreml" / precision / "DigitsCNN.mlpackage"
    model = coremltools.models.MLModel(str(folder), skip_model_load=True)
    program = load(model.get_spec(), model.get_spec().specificationVersion, model.weights_dir)
    coremltools.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=coremltools.target.iOS17,
        compute_precision=coremltools.precision.FLOAT32,  # the program has its types
        skip_model_load=True,
    ).save(str(work / f"{precision}.mlpackage"))


def main() -> None:
    """Runs the call that is named."""
    name, digits, work, seconds = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    if name == "export":
        export(digits, work)
    elif name.startswith("onnxs"):
        simplify(work, name)
    elif name == "fp16":
        half(work)
    elif name in ("int8-uint8", "int8-symmetric"):
        static(digits, work, symmetric=name.endswith("symmetric"))
    elif name.startswith("onnxruntime-"):
        onnxruntime_runs(digits, onnx_of(work, name.removeprefix("onnxruntime-")), seconds)
    elif name.startswith("openvino-"):
        openvino_runs(digits, work, name.removeprefix("openvino-"), seconds)
    elif name.startswith("tensorrt-rtx-"):
        tensorrt_rtx(work, name.removeprefix("tensorrt-rtx-"))
    else:
        precision = name.removeprefix("coreml-")
        coreml(work, precision.removesuffix("-alone"), alone=precision.endswith("-alone"))


if __name__ == "__main__":
    main()
