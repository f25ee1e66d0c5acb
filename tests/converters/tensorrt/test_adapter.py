"""One adapter for every generation, against API shapes as recorded and against the real TensorRT for RTX."""

from __future__ import annotations

import json

import pytest
from fake_tensorrt import VERSIONS, make

from deploykit.converters.tensorrt import engine
from deploykit.converters.tensorrt.convert import built_by
from deploykit.errors import UsageError, VendorError

PROFILES = [{"image": [[1, 1, 8, 8], [8, 1, 8, 8], [64, 1, 8, 8]]}]


def asked(trt, model, options=None, precision="fp32", profiles=PROFILES):
    """What the builder of the module was asked for."""
    built = engine.build(trt, engine.logger(trt), str(model), options or {}, profiles, precision)
    return json.loads(bytes(built.plan)[36:]), built


def test_generations_are_told_apart_by_what_they_have():
    found = {version: engine.features(make(version)) for version in VERSIONS}
    assert [found[v]["weak_typing"] for v in VERSIONS] == [True, True, False]
    assert [found[v]["typed_flag"] for v in VERSIONS] == [False, True, False]
    assert [found[v]["batch_flag"] for v in VERSIONS] == [True, True, False]
    assert [found[v]["int64"] for v in VERSIONS] == [False, True, True]
    assert all(f["optimization_level"] and f["timing_cache"] and f["sparsity"] for f in found.values())
    assert not any(f["compute_capabilities"] for f in found.values())


def test_networks_are_strongly_typed_wherever_that_is_possible():
    explicit, typed = 1 << 0, 1 << 1
    assert engine.network_flags(make("8.6.1")) == (explicit, "weakly")
    assert engine.network_flags(make("10.13.3")) == (explicit | typed, "strongly")
    assert engine.network_flags(make("11.4.1")) == (0, "strongly")


@pytest.mark.parametrize(
    ("version", "precision", "flags"),
    [
        ("8.6.1", "fp32", []),
        ("8.6.1", "fp16", ["FP16", "OBEY_PRECISION_CONSTRAINTS"]),
        ("8.6.1", "int8", ["FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS"]),
        ("10.13.3", "int8", []),
        ("11.4.1", "fp16", []),
    ],
)
def test_precision_flags_are_set_only_where_types_alone_do_not_say_it(save, version, precision, flags):
    found, built = asked(make(version), save(), precision=precision)
    assert found["flags"] == flags
    assert built.typed == ("weakly" if version == "8.6.1" else "strongly")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_option_reaches_the_builder(save, tmp_path, version):
    cache = tmp_path / "layers.cache"
    cache.write_bytes(b"old")
    options = {"workspace": 1 << 30, "opt_level": 5, "sparsity": True, "tf32": True, "timing_cache": str(cache)}
    options |= {"version_compatible": True, "hardware_compatibility": "ampere_plus", "dla_core": 1}
    two = [*PROFILES, {"image": [[65, 1, 8, 8], [80, 1, 8, 8], [128, 1, 8, 8]]}]
    found, built = asked(make(version, dla_cores=2), save(), options, profiles=two)
    assert found["WORKSPACE"] == 1 << 30
    assert found["builder_optimization_level"] == 5
    assert found["DLA_core"] == 1
    assert found["profiles"] == two
    assert {"SPARSE_WEIGHTS", "TF32", "VERSION_COMPATIBLE", "GPU_FALLBACK"} <= set(found["flags"])
    assert built.cache == b"old+timed"
    assert set(built.seconds) == {"parse", "build"}


@pytest.mark.parametrize(
    ("version", "option", "told"),
    [
        ("8.6.1", {"hardware_compatibility": "same_compute_capability"}, "SAME_COMPUTE_CAPABILITY"),
        ("11.4.1", {"dla_core": 0}, "DLA core 0"),
    ],
)
def test_an_option_that_the_version_lacks_is_refused(save, version, option, told):
    with pytest.raises(engine.OptionError, match=told):
        asked(make(version), save(), option)


def test_a_timing_cache_of_another_gpu_is_refused(save, tmp_path):
    with pytest.raises(engine.OptionError, match="another GPU or version"):
        asked(make("10.13.3", cache_fits=False), save(), {"timing_cache": str(tmp_path / "other.cache")})


def convert(trt, model, output, **options):
    return built_by(trt, str(model), str(output), options, {"batch": [1, 64]}, [], "fp32")


def test_the_converter_writes_engine_cache_and_what_it_was_built_for(save, tmp_path):
    cache = tmp_path / "t.cache"
    result = convert(make("10.13.3"), save(), tmp_path / "m.engine", timing_cache=str(cache), version="10.16")
    assert (tmp_path / "m.engine").read_bytes()[:4] == b"ftrt"
    assert cache.read_bytes() == b"+timed"
    assert result["built_for"]["tensorrt"] == "10.13.3"
    assert result["metrics"]["profiles"] == [{"image": "1x1x8x8:8x1x8x8:64x1x8x8"}]
    assert [(f["code"], f["severity"]) for f in result["findings"]] == [("DK524", "note")]


def test_a_type_that_a_generation_changes_is_no_silent_change(save, tmp_path):
    text = """<ir_version: 9, opset_import: ["": 17]>
    ids (int64[1,4] x) => (int64[1,4] y) { y = Identity (x) }"""
    result = convert(make("8.6.1"), save(text), tmp_path / "m.engine")
    errors = [f for f in result["findings"] if f["severity"] == "error"]
    assert {(f["code"], f["tensor"]) for f in errors} == {("DK529", "x"), ("DK529", "y")}
    assert not (tmp_path / "m.engine").exists()
    kept = convert(make("10.13.3"), save(text), tmp_path / "m.engine")["findings"]
    assert "DK529" not in {f["code"] for f in kept}


def test_a_failed_build_names_the_layer_and_a_lacking_option_is_ours(save, tmp_path):
    with pytest.raises(VendorError) as failed:
        convert(make("11.4.1", plan=False), save(), tmp_path / "m.engine")
    assert (failed.value.code, failed.value.node) == ("DK525", "Gemm_4")
    with pytest.raises(UsageError) as lacks:
        convert(make("11.4.1"), save(), tmp_path / "m.engine", dla_core="0")
    assert lacks.value.code == "DK592"


def test_the_same_converter_builds_a_real_engine_with_the_module_that_is_here(save, tmp_path):
    """Its API is 11's: what is written for the classic package runs on it unchanged."""
    trt = pytest.importorskip("tensorrt_rtx")
    model, output = str(save()), tmp_path / "m.engine"
    sets = [{"image": [[1, 1, 8, 8], [2, 1, 8, 8], [4, 1, 8, 8]]}]
    result = built_by(trt, model, str(output), {"workspace": "64MiB"}, {}, sets, "fp32", capabilities=["SM89"])
    assert [f for f in result["findings"] if f["severity"] == "error"] == []
    assert output.read_bytes()[:4] == b"vtrt"
    assert result["metrics"]["typed"] == "strongly"
    assert not result["metrics"]["features"]["weak_typing"]
    with pytest.raises(UsageError) as refused:
        built_by(
            trt, model, str(output), {"timing_cache": str(tmp_path / "c")}, {}, sets, "fp32", capabilities=["SM89"]
        )
    assert refused.value.code == "DK592"
