"""TensorRT as recorded: modules with exactly the names that its Python bindings have in a version, and no more.

10.x: NVIDIA/TensorRT, python/src/infer/pyCore.cpp of 10.13 (enums and IBuilderConfig as registered there).
11.x: the same without what docs.nvidia.com/deeplearning/tensorrt/11.4.0/api/migration/tensorrt-10x-to-11x-python-api-
reference.html lists as removed; BuilderFlag as in the 11.x header (docs.rs/trtx-sys, enum BuilderFlag, 21 members).
8.6: 10.x without what came later; EXPLICIT_BATCH is needed, and there is no strong typing and no INT64.
What is built is a made-up plan: a header like the real one, and the settings as JSON.
"""

from __future__ import annotations

import enum
import json
import types

CNN = """
<ir_version: 9, opset_import: ["" : 17]>
cnn (float[batch,1,8,8] image) => (float[batch,3] scores)
<float[2,1,3,3] w = {0.1,-0.2,0.3,0.4,-0.5,0.6,0.7,0.8,-0.9,0.1,0.2,0.3,-0.4,0.5,0.6,-0.7,0.8,0.9},
 float[2] b = {0.1,-0.1}, float[2,3] w2 = {0.1,-0.2,0.3,0.4,0.5,-0.6}>
{
  c = Conv <pads=[1,1,1,1]> (image, w, b)
  r = Relu (c)
  p = GlobalAveragePool (r)
  f = Flatten (p)
  scores = MatMul (f, w2)
}"""
_KEPT_FLAGS = """DEBUG GPU_FALLBACK REFIT DISABLE_TIMING_CACHE TF32 SPARSE_WEIGHTS SAFETY_SCOPE VERSION_COMPATIBLE
EXCLUDE_LEAN_RUNTIME ERROR_ON_TIMING_CACHE_MISS DISABLE_COMPILATION_CACHE STRIP_PLAN REFIT_IDENTICAL WEIGHT_STREAMING
REFIT_INDIVIDUAL STRICT_NANS MONITOR_MEMORY EDITABLE_TIMING_CACHE DISTRIBUTIVE_INDEPENDENCE""".split()  # noqa: SIM905 - a list as it is documented
_WEAK_FLAGS = """FP16 BF16 INT8 FP8 INT4 FP4 OBEY_PRECISION_CONSTRAINTS PREFER_PRECISION_CONSTRAINTS DIRECT_IO
REJECT_EMPTY_ALGORITHMS WEIGHTLESS""".split()  # noqa: SIM905 - a list as it is documented
_FLAGS_8 = """DEBUG GPU_FALLBACK REFIT DISABLE_TIMING_CACHE TF32 SPARSE_WEIGHTS SAFETY_SCOPE FP16 INT8 FP8
OBEY_PRECISION_CONSTRAINTS PREFER_PRECISION_CONSTRAINTS DIRECT_IO REJECT_EMPTY_ALGORITHMS ENABLE_TACTIC_HEURISTIC
VERSION_COMPATIBLE EXCLUDE_LEAN_RUNTIME""".split()  # noqa: SIM905 - a list as it is documented
_CONFIG = """add_optimization_profile builder_optimization_level clear_flag create_timing_cache default_device_type
DLA_core flags get_flag get_memory_pool_limit get_timing_cache hardware_compatibility_level set_flag
set_memory_pool_limit set_timing_cache max_aux_streams num_optimization_profiles""".split()  # noqa: SIM905 - a list as it is documented
_CONFIG_10 = [*_CONFIG, "int8_calibrator", "set_calibration_profile", "quantization_flags", "algorithm_selector"]
VERSIONS = {
    "8.6.1": (_FLAGS_8, _CONFIG_10, ["EXPLICIT_BATCH", "EXPLICIT_PRECISION"], "FLOAT HALF INT8 INT32 BOOL UINT8 FP8"),
    "10.13.3": (
        [*_KEPT_FLAGS, *_WEAK_FLAGS],
        _CONFIG_10,
        ["EXPLICIT_BATCH", "STRONGLY_TYPED", "PREFER_AOT_PYTHON_PLUGINS", "PREFER_JIT_PYTHON_PLUGINS"],
        "FLOAT HALF BF16 INT8 INT32 INT64 BOOL UINT8 FP8 INT4 FP4",
    ),
    "11.4.1": (
        [*_KEPT_FLAGS, "REQUIRE_USER_ALLOCATION", "DIRECT_IO"],
        _CONFIG,
        ["STRONGLY_TYPED", "PREFER_AOT_PYTHON_PLUGINS", "PREFER_JIT_PYTHON_PLUGINS"],
        "FLOAT HALF BF16 INT8 INT32 INT64 BOOL UINT8 FP8 INT4 FP4",
    ),
}


def members(name, names):
    return enum.IntEnum(name, {each: number for number, each in enumerate(names)})


def make(version, *, dla_cores=0, cache_fits=True, plan=True):
    """A module `tensorrt` of that version. plan: whether the builder gives one."""
    flags, config_names, network_flags, dtypes = VERSIONS[version]
    trt = types.ModuleType("tensorrt")
    trt.__version__ = version
    trt.asked = {}  # what the builder was asked for, by the names of the API
    trt.BuilderFlag = members("BuilderFlag", flags)
    trt.NetworkDefinitionCreationFlag = members("NetworkDefinitionCreationFlag", network_flags)
    trt.DataType = members("DataType", dtypes.split())
    trt.DeviceType = members("DeviceType", ["GPU", "DLA"])
    trt.MemoryPoolType = members("MemoryPoolType", ["WORKSPACE", "DLA_MANAGED_SRAM"])
    levels = [
        "NONE",
        "AMPERE_PLUS",
        *(["SAME_COMPUTE_CAPABILITY"] if version.startswith("1") else []),
    ]
    trt.HardwareCompatibilityLevel = members("HardwareCompatibilityLevel", levels)
    trt.LayerType = members(
        "LayerType", ["CONVOLUTION", "ATTENTION_INPUT"] if version.startswith("1") else ["CONVOLUTION"]
    )
    trt.TensorIOMode = members("TensorIOMode", ["NONE", "INPUT", "OUTPUT"])

    class ILogger:
        Severity = members("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"])

        def __init__(self):
            self.kept = None

    class IOutputAllocator:
        pass

    class Cache:
        def __init__(self, content):
            self.content = content

        def serialize(self):
            return self.content + b"+timed"

    class IBuilderConfig:
        """Only the names of that version can be read or set."""

        def __init__(self):
            object.__setattr__(self, "set", set())
            object.__setattr__(self, "cache", None)

        def __setattr__(self, name, value):
            if name not in config_names:
                raise AttributeError(name)
            trt.asked[name] = value

        def set_flag(self, flag):
            assert flag in trt.BuilderFlag
            self.set.add(flag.name)

        def clear_flag(self, flag):
            self.set.discard(flag.name)

        def set_memory_pool_limit(self, pool, size):
            trt.asked[pool.name] = size

        def create_timing_cache(self, content):
            return Cache(content)

        def set_timing_cache(self, cache, ignore_mismatch):
            object.__setattr__(self, "cache", cache)
            return cache_fits

        def get_timing_cache(self):
            return self.cache

        def add_optimization_profile(self, profile):
            trt.asked.setdefault("profiles", []).append(profile.shapes)

    for name in config_names:
        if not hasattr(IBuilderConfig, name):
            setattr(IBuilderConfig, name, None)

    class Profile:
        def __init__(self):
            self.shapes = {}

        def set_shape(self, name, low, usual, high):
            self.shapes[name] = [list(low), list(usual), list(high)]

    class Network:
        num_layers = 0

        def __init__(self, tensors):
            self.tensors = tensors
            self.num_inputs = len(tensors[0])
            self.num_outputs = len(tensors[1])

        def get_input(self, index):
            return self.tensors[0][index]

        def get_output(self, index):
            return self.tensors[1][index]

    class Builder:
        num_DLA_cores = dla_cores  # noqa: N815 - the API's name

        def __init__(self, log):
            self.log = log

        def create_network(self, flags):
            trt.asked["network_flags"] = flags
            return Network(([], []))

        def create_builder_config(self):
            return IBuilderConfig()

        def create_optimization_profile(self):
            return Profile()

        def build_serialized_network(self, network, config):
            trt.asked["flags"] = sorted(config.set)
            if not plan:
                text = "Error Code 10: Internal Error (operation 'Gemm_4': no tactic)"
                self.log.log(ILogger.Severity.ERROR, text)
                return None
            numbers = bytes([*map(int, version.split(".")), 7])
            header = b"ftrt" + bytes(20) + numbers + bytes(8)
            return header + json.dumps(trt.asked, default=str, sort_keys=True).encode()

    class OnnxParser:
        num_errors = 0

        def __init__(self, network, log):
            self.network = network

        def parse_from_file(self, path):
            import onnx

            graph = onnx.load(path, load_external_data=False).graph
            kinds = {1: "FLOAT", 10: "HALF", 7: "INT64", 6: "INT32", 9: "BOOL"}

            def tensor(value):
                kind = kinds[value.type.tensor_type.elem_type]
                kind = kind if kind in trt.DataType.__members__ else "INT32"  # what 8.6 makes of 64 bits
                return types.SimpleNamespace(name=value.name, dtype=trt.DataType[kind])

            tensors = ([tensor(value) for value in graph.input], [tensor(value) for value in graph.output])
            self.network.__init__(tensors)
            return True

    for kind in (ILogger, IOutputAllocator, IBuilderConfig, Builder, OnnxParser):
        setattr(trt, kind.__name__, kind)
    return trt
