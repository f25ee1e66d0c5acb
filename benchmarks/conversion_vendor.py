"""The vendor's own conversion of an ONNX file, as a script calls it; `--compare` runs both models on the samples.

python benchmarks/conversion_vendor.py TARGET MODEL DATA OUT [--compare]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np


def onnxruntime(model: Path, out: Path, feeds: list[dict]):
    """The optimised model, saved."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(out)
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run():
        session = ort.InferenceSession(out, providers=["CPUExecutionProvider"])
        return lambda feed: session.run(None, feed)

    return run


def openvino(model: Path, out: Path, feeds: list[dict]):
    """What `ovc` calls."""
    import openvino as ov

    ov.save_model(ov.convert_model(model), out, compress_to_fp16=False)

    def run():
        compiled = ov.Core().compile_model(out, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return lambda feed: list(compiled(feed).values())

    return run


def tensorrt_rtx(model: Path, out: Path, feeds: list[dict]):
    """An engine for the GPUs that deploykit builds for, sizes as in the first sample."""
    import tensorrt_rtx as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        raise SystemExit(str(parser.get_error(0)))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 2
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    config.set_compute_capability(trt.ComputeCapability.SM120, 1)
    config.clear_flag(trt.BuilderFlag.TF32)
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if -1 in tuple(tensor.shape):
            profile.set_shape(tensor.name, *[feeds[0][tensor.name].shape] * 3)
    config.add_optimization_profile(profile)
    out.write_bytes(memoryview(builder.build_serialized_network(network, config)))
    return


def mnn(model: Path, out: Path, feeds: list[dict]):
    """MNN's converter without the script around it, which installs packages."""
    import _tools
    import MNN

    _tools.mnnconvert(["mnnconvert", "-f", "ONNX", "--modelFile", str(model), "--MNNModel", str(out), "--bizCode", "x"])

    def run():
        module = MNN.nn.load_module_from_file(str(out), [], [])
        return lambda feed: [v.read() for v in module.onForward([MNN.expr.const(a, a.shape) for a in feed.values()])]

    return run


def ncnn(model: Path, out: Path, feeds: list[dict]):
    """pnnx, with the sizes of the first sample."""
    import shutil

    import pnnx

    shutil.copy(model, out.with_suffix(".onnx"))
    shapes = ",".join(f"[{','.join(map(str, value.shape))}]" for value in feeds[0].values())
    tool = Path(pnnx.__file__).parent / "bin" / "pnnx"
    command = [str(tool), str(out.with_suffix(".onnx")), f"inputshape={shapes}"]
    subprocess.run(command, check=True, cwd=out.parent, stdout=subprocess.DEVNULL)
    return


def tvm(model: Path, out: Path, feeds: list[dict]):
    """Relax's importer, LLVM, sizes as in the first sample."""
    import onnx
    import tvm as compiler
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    shapes = {name: value.shape for name, value in feeds[0].items()}
    module = from_onnx(onnx.load(model), shape_dict=shapes, keep_params_in_input=False)
    compiler.compile(module, target="llvm").export_library(str(out))

    def run():
        machine = relax.VirtualMachine(compiler.runtime.load_module(str(out)), compiler.cpu())
        return lambda feed: machine["main"](*[compiler.runtime.tensor(value) for value in feed.values()])

    return run


def main() -> None:
    """One conversion, and the comparison where it was asked for and the engine runs here."""
    target, model, data, out = sys.argv[1], *map(Path, sys.argv[2:5])
    feeds = [dict(np.load(file)) for file in sorted(data.glob("*.npz"))]
    run = globals()[target.replace("-", "_")](model, out, feeds)
    if "--compare" in sys.argv and run is not None:
        import onnxruntime as ort

        plain = ort.SessionOptions()
        plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session, call = ort.InferenceSession(model, plain, providers=["CPUExecutionProvider"]), run()
        for feed in feeds:
            session.run(None, feed)
            call(feed)


if __name__ == "__main__":
    main()
