"""A GPU as host memory, and the run-time half of the API: what an engine computes is what ONNX Runtime computes."""

from __future__ import annotations

import ctypes
import json
import types

import numpy as np


class FakeDriver:
    """Has the methods of `device.Driver`; device addresses are those of buffers here."""

    def __init__(self, name="Fake GPU", capability="8.9"):
        self.device = types.SimpleNamespace(name=name, capability=capability)
        self.buffers = {}

    def devices(self):
        return [self.device]

    def activate(self):
        pass

    def allocate(self, size):
        buffer = ctypes.create_string_buffer(max(size, 1))
        address = ctypes.addressof(buffer)
        self.buffers[address] = buffer
        return address

    def free(self, pointer):
        del self.buffers[pointer]

    def to_device(self, pointer, address, size):
        assert size <= len(self.buffers[pointer])
        ctypes.memmove(pointer, address, size)

    def to_host(self, address, pointer, size):
        assert size <= len(self.buffers[pointer])
        ctypes.memmove(address, pointer, size)

    def stream(self):
        return 1

    def wait(self, stream):
        pass


def add_runtime(trt, model, *, off=0.0, loads=True):
    """Gives the module a `Runtime` whose engines compute the ONNX model, `off` added to every float output."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    inputs = {each.name: each for each in session.get_inputs()}
    names = [*inputs, *(each.name for each in session.get_outputs())]
    kinds = {"tensor(float)": "FLOAT", "tensor(int64)": "INT64", "tensor(int32)": "INT32", "tensor(float16)": "HALF"}
    values = {each.name: each for each in (*session.get_inputs(), *session.get_outputs())}

    def shape(name):
        return tuple(size if isinstance(size, int) else -1 for size in values[name].shape)

    class Context:
        def __init__(self, engine):
            self.engine, self.places, self.shapes, self.allocators, self.profile = engine, {}, {}, {}, 0

        def set_optimization_profile_async(self, number, stream):
            self.profile = number
            trt.asked.setdefault("switched", []).append(number)

        def set_input_shape(self, name, size):
            low, _, high = self.engine.get_tensor_profile_shape(name, self.profile)
            assert all(a <= n <= b for a, n, b in zip(low, size, high, strict=True))
            self.shapes[name] = size

        def set_tensor_address(self, name, place):
            self.places[name] = place

        def set_output_allocator(self, name, allocator):
            self.allocators[name] = allocator

        def execute_async_v3(self, stream):
            feeds = {}
            for name, each in inputs.items():
                kind = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32"}[each.type]
                array = np.empty(self.shapes[name], kind)
                ctypes.memmove(array.ctypes.data, self.places[name], array.nbytes)
                feeds[name] = array
            found = zip((each.name for each in session.get_outputs()), session.run(None, feeds), strict=True)
            for name, value in found:
                array = np.ascontiguousarray(value + off if value.dtype.kind == "f" else value, value.dtype)
                allocator = self.allocators[name]
                place = allocator.reallocate_output(name, 0, array.nbytes, 256)
                ctypes.memmove(place, array.ctypes.data, array.nbytes)
                allocator.notify_shape(name, array.shape)
            return True

    class Engine:
        def __init__(self, facts):
            self.profiles = facts.get("profiles") or []
            self.num_optimization_profiles = max(1, len(self.profiles))
            self.num_io_tensors = len(names)

        def get_tensor_name(self, index):
            return names[index]

        def get_tensor_mode(self, name):
            return trt.TensorIOMode.INPUT if name in inputs else trt.TensorIOMode.OUTPUT

        def get_tensor_dtype(self, name):
            return trt.DataType[kinds[values[name].type]]

        def get_tensor_shape(self, name):
            return shape(name)

        def get_tensor_profile_shape(self, name, number):
            fixed = [list(shape(name))] * 3
            return self.profiles[number].get(name, fixed) if self.profiles else fixed

        def create_execution_context(self):
            return Context(self)

    class Runtime:
        def __init__(self, log):
            self.log = log

        def deserialize_cuda_engine(self, plan):
            if not loads:
                self.log.log(trt.ILogger.Severity.ERROR, "Serialization assertion failed")
                return None
            return Engine(json.loads(plan[36:]))

    trt.Runtime = Runtime
    return trt
