"""Converts cases with one of the two other converters, in their environment: a JSON line in, a JSON line out.

`{"rival": ..., "model": path, "package": path}` -> `{"result": "made" | "refused" | "crashed", "why": ...}`. Refused is
an error of the converter's own kind, crashed any other exception.
"""

from __future__ import annotations

import json
import logging
import os
import sys

import onnx


def onnx2coreml(model: onnx.ModelProto, package: str) -> None:
    """As its command line does, in fp32 and for iOS17."""
    import onnx2coreml as rival

    rival.convert(model, minimum_deployment_target="iOS17", compute_precision="fp32").save(package)


def onnxsim(model: onnx.ModelProto, package: str) -> None:
    """Simplified first, as its command line does; a model that it cannot simplify goes in as it is."""
    import coremltools
    import onnxsim as rival

    try:
        model, _ = rival.simplify(model)
    except Exception as problem:  # what it cannot simplify it may still convert
        logging.getLogger(__name__).debug("not simplified: %s", problem)
    rival.export_coreml(
        model, package, minimum_deployment_target="iOS17", compute_precision=coremltools.precision.FLOAT32
    )


def own_error(rival: str, problem: Exception) -> bool:
    """Whether the converter raised it on purpose."""
    if rival == "onnx2coreml":
        from onnx2coreml import Onnx2CoreMLError

        return isinstance(problem, Onnx2CoreMLError)
    return isinstance(problem, RuntimeError)  # the only class that it raises


def answer(request: dict[str, str]) -> dict[str, str]:
    """Converts one case."""
    convert = {"onnx2coreml": onnx2coreml, "onnxsim": onnxsim}[request["rival"]]
    try:
        convert(onnx.load(request["model"]), request["package"])
    except Exception as problem:
        result = "refused" if own_error(request["rival"], problem) else "crashed"
        return {"result": result, "why": f"{type(problem).__name__}: {problem}"[:500]}
    return {"result": "made", "why": ""}


def main() -> None:
    """Answers until its input ends; what the converters print goes to stderr."""
    logging.disable(logging.CRITICAL)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
