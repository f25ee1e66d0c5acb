"""TensorFlow SavedModel: folders that TensorFlow and TF Serving load, made of ONNX by onnx2tf."""

from __future__ import annotations

from deploykit.target import Target

TARGET = Target(
    name="savedmodel",
    title="TensorFlow SavedModel",
    suffix="",
    format="savedmodel",
    marker="saved_model.pb",
    extra="tensorflow",
    packages=("tensorflow",),
    distributions=("tensorflow-cpu",),
    # Its CPU kernels for float16 are slower than those for float32, and onnx2tf writes none.
    precisions=("fp32",),
    converter="deploykit.converters.savedmodel.convert:convert_job",
    runtime="deploykit.converters.savedmodel.runtime:load",
    inspect="deploykit.converters.savedmodel.inspect:describe",
    worker="savedmodel",
    environment="onnx2tf",
    renames=True,
    tables={"": "litert-onnx2tf"},
)
