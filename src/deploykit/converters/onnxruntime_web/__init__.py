"""ONNX Runtime Web: a folder with the model, a page that runs it and a Node script, run in Node and a browser."""

from __future__ import annotations

from deploykit.target import QuantizationScheme, Target

TARGET = Target(
    name="onnxruntime-web",
    title="ONNX Runtime Web",
    suffix="",
    marker="deploykit-web.json",
    format="onnxruntime-web",
    extra=None,
    packages=(),
    distributions=(),
    precisions=("fp32", "fp16", "int8", "int8-dynamic", "int8-weights", "int4-weights", "mixed"),
    versions=("wasm", "webgpu", "webnn", "webgl"),
    options={
        "runtime": "where the page has ONNX Runtime Web from: copy (of the installed npm package, the default), none "
        "(you copy it to OUT/ort/), or the address of a dist folder",
        "sample": "a .npz file or folder with the inputs that the page shows and runs; random:0 when not given",
        "browser": "whether the page is run in a browser: auto (the default: where Chromium is installed), no, require",
    },
    # Its wasm backend has ONNX Runtime's own CPU kernels; relaxed SIMD adds pairs of u8*s8 products like x86 does.
    scheme=QuantizationScheme(
        activation="uint8",
        symmetric_activations=False,
        per_channel=True,
        quantize_bias=True,
        quantize_residual=True,
        reduce_range=True,
    ),
    converter="deploykit.converters.onnxruntime_web.convert:convert_job",
    runtime="deploykit.converters.onnxruntime_web.runtime:load",
    inspect="deploykit.converters.onnxruntime_web.inspect:describe",
    places="deploykit.converters.onnxruntime_web.package:browser_places",
    served="it is for browsers, and any web server hands it out: python -m http.server -d '{path}'; "
    "deploykit serve '{path}/model.onnx' serves the model in it",
    worker="onnxruntime-web",
    takes=("contract",),
    files=("sample",),
    runs_on="deploykit.converters.onnxruntime_web.package:why_not",
    tables={
        "wasm": "ort-web-wasm",
        "webgpu": "ort-web-webgpu",
        "webnn": "ort-web-webnn",
        "webgl": "ort-web-webgl",
    },
)
