"""A deploykit target in a package of its own: tract, Sonos' inference engine in Rust, which reads ONNX and writes NNEF.

deploykit imports this module to list its targets, so it needs the standard library only.
"""

from __future__ import annotations

from deploykit.target import Target

TARGET = Target(
    name="tract",
    title="tract",
    suffix=".nnef",
    format="tract",
    extra=None,
    packages=("tract",),
    distributions=("tract",),
    precisions=("fp32",),
    converter="deploykit_tract.convert:convert_job",
    runtime="deploykit_tract.runtime:load",
    inspect="deploykit_tract.inspect:describe",
    worker="tract",
)
