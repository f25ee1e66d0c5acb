"""What really happens when an engine gets a case: converted and, where the engine is here, run (in a worker).

right: it runs and the values are as expected; built: an engine came out that cannot run here; wrong: other values;
refused: a message; unseen: converted, but nothing here computes the values.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import tempfile
from pathlib import Path

import numpy as np
import onnx
import operator_cases

from deploykit.errors import DeploykitError, UnavailableError
from deploykit.runtime import RuntimeOptions

TAKEN = ("right", "built")


def outcome(engine, name):
    """[result, why] of a case by its name."""
    return judged(engine, operator_cases.case(name))


def varied(engine, name):
    """The same for a variation (`operator_variations`); Core ML without a package on disk, ten times faster."""
    import operator_variations

    made = operator_variations.case(name)
    return judged("coreml-memory" if engine == "coreml" else engine, made)


def judged(engine, case):
    """[result, why] of a case."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(case.model, path)
        try:
            made = _ENGINES[engine](path, case)
        except UnavailableError as problem:
            return ["unseen", problem.message]
        except DeploykitError as problem:
            return ["refused", problem.message[:600]]
        except ImportError:
            raise  # that is about this installation
        except Exception as problem:  # whatever a vendor raises is its answer
            return ["refused", f"{type(problem).__name__}: {problem}"[:600]]
    if isinstance(made, str):
        return ["built", ""] if not made else ["refused", made[:600]]
    why = operator_cases.difference(made, case, types="coreml" not in engine)
    return ["wrong", why] if why else ["right", ""]


def _onnxruntime(path, case):
    """Types that numpy lacks go in and come out as their bits."""
    import onnxruntime as ort

    from deploykit.converters.onnxruntime.runtime import load

    plain = operator_cases.whole_bytes(case)
    if plain is not case:
        load(path, RuntimeOptions(threads=1)).close()  # as it is, it has to load, too
        case = plain
        onnx.save(case.model, path)
    session = load(path, RuntimeOptions(threads=1))._session
    names = [argument.name for argument in session.get_outputs()]
    arrays = [*case.feeds.values(), *case.expected.values()]
    if not any(map(operator_cases.beyond_numpy, arrays)):
        return dict(zip(names, session.run(names, case.feeds), strict=True))
    values = {key: _ort_value(ort, array) for key, array in case.feeds.items()}
    made = session.run_with_ort_values(names, values)
    return {key: _ort_array(value, case.expected[key]) for key, value in zip(names, made, strict=True)}


def _ort_value(ort, array):
    if not operator_cases.beyond_numpy(array):
        return ort.OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"))
    bits = {1: np.uint8, 2: np.uint16}[array.dtype.itemsize]
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(array, order="C").view(bits), kind)


def _ort_array(value, expected):
    if not operator_cases.beyond_numpy(expected):
        return value.numpy()
    shape = tuple(value.shape())
    nbytes = math.prod(shape) * expected.dtype.itemsize
    if not nbytes:
        return np.empty(shape, expected.dtype)
    raw = (ctypes.c_uint8 * nbytes).from_address(value.data_ptr())
    return np.frombuffer(raw, np.uint8).copy().view(expected.dtype).reshape(shape)


def _openvino(path, case):
    from deploykit.converters.openvino.convert import convert_job
    from deploykit.converters.openvino.runtime import load

    written = path.with_suffix(".xml")
    result = convert_job(str(path), str(written), {}, {}, {}, "fp32")
    refused = _errors(result)
    if refused:
        return refused
    runtime = load(written, RuntimeOptions(threads=1))
    made = runtime.predict(case.feeds)
    runtime.close()
    return made


def _tensorrt_rtx(path, case):
    from deploykit.converters.tensorrt_rtx.convert import convert_job

    # Open dimensions, where a case has them, need bounds; what is fed lies within these.
    profiles = {
        value.name: [list(case.feeds[value.name].shape)] * 3
        for value in case.model.graph.input
        if any(dim.dim_param for dim in value.type.tensor_type.shape.dim)
    }
    return _errors(convert_job(str(path), str(path.with_suffix(".engine")), {"sm": "89"}, {}, profiles, "fp32"))


def _coreml(path, case):
    import logging

    from deploykit.converters.coreml.convert import convert_job
    from deploykit.converters.coreml.runtime import SimulatedRuntime

    logging.disable(logging.WARNING)
    package = path.with_suffix(".mlpackage")
    refused = _errors(convert_job(str(path), str(package), {}, {}, {}, "fp32"))
    return refused or SimulatedRuntime(package).predict(case.feeds)


def _coreml_in_memory(path, case):
    import coremltools as ct

    from deploykit import graph
    from deploykit.converters.coreml.frontend import build
    from deploykit.converters.coreml.simulator import Interpreter
    from deploykit.converters.coreml.support import interface_problems

    loaded = graph.infer_shapes(graph.load(path))
    inputs, outputs = graph.interface(loaded)
    problems = interface_problems(inputs, outputs)
    if problems:
        return problems[0].message
    built = build(loaded, inputs, outputs, {}, ct.target.iOS17)
    if built.program is None:
        return "; ".join(row.verdict.reason for row in built.refused)
    given = {built.names[name]: array for name, array in case.feeds.items()}
    made = Interpreter(built.program.functions["main"], "case").run(given)
    return {spec.name: made[built.names[spec.name]] for spec in outputs}


def _errors(result):
    return "; ".join(f["message"] for f in result["findings"] if f["severity"] == "error")


_ENGINES = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "tensorrt-rtx": _tensorrt_rtx,
    "coreml": _coreml,
    "coreml-memory": _coreml_in_memory,
}


@contextlib.contextmanager
def saved(case):
    """A path to the case's model for as long as it is looked at."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(case.model, path)
        yield path
