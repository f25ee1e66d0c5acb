"""The command line of each version."""

from __future__ import annotations

import pytest

from deploykit.converters.tensorrt.engine import OptionError
from deploykit.converters.tensorrt.trtexec import command

ONE = [{"x": [[1, 3], [4, 3], [8, 3]], "y": [[1], [4], [8]]}]


def test_eleven_has_no_precision_flags_and_ten_asks_for_strong_typing():
    eleven = command((11, 1), ONE, {}, "fp16")
    assert eleven == [
        "trtexec",
        "--onnx=model.onnx",
        "--saveEngine=model.engine",
        "--skipInference",
        "--noTF32",
        "--minShapes=x:1x3,y:1",
        "--optShapes=x:4x3,y:4",
        "--maxShapes=x:8x3,y:8",
    ]
    ten = command((10, 16), ONE, {"tf32": True}, "int8")
    assert "--stronglyTyped" in ten
    assert not {"--fp16", "--int8", "--best", "--noTF32"} & set(ten)


def test_eight_gets_flags_for_the_precision_of_the_model():
    assert {"--int8", "--fp16"} <= set(command((8, 6), [], {}, "int8"))
    assert "--stronglyTyped" not in command((8, 6), [], {}, "fp16")
    assert "--buildOnly" in command((8, 5), [], {}, "fp32")
    with pytest.raises(OptionError, match="bf16"):
        command((8, 6), [], {}, "bf16")


def test_options_by_name():
    given = {"workspace": 512 << 20, "opt_level": 4, "timing_cache": "t.cache", "sparsity": True, "dla_core": 1}
    line = command((10, 1), [], {**given, "hardware_compatibility": "ampere_plus"}, "fp16", plugins=["./p.so"])
    assert {
        "--memPoolSize=workspace:512",
        "--builderOptimizationLevel=4",
        "--timingCacheFile=t.cache",
        "--sparsity=enable",
        "--useDLACore=1",
        "--allowGPUFallback",
        "--staticPlugins=./p.so",
        "--hardwareCompatibilityLevel=ampere+",
    } <= set(line)
    assert "--plugins=./p.so" in command((8, 5), [], {}, "fp32", plugins=["./p.so"])


def test_what_a_version_has_no_flag_for_is_refused():
    with pytest.raises(OptionError, match=r"came with 8\.6"):
        command((8, 5), [], {"opt_level": 1}, "fp32")
    with pytest.raises(OptionError, match="second profile"):
        command((8, 6), [*ONE, *ONE], {}, "fp32")
    several = command((10, 16), [*ONE, *ONE], {}, "fp32")
    assert [text for text in several if text.startswith("--profile")] == ["--profile=0", "--profile=1"]
