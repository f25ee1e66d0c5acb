"""The oldest system, and the package's author, licence and descriptions."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path

import onnx
import pytest

from deploykit import io
from deploykit.converters.coreml.options import ALIASES, TARGETS, deployment_target, flag
from deploykit.errors import UsageError
from deploykit.target import check_options, get_target

NET = onnx.parser.parse_model("""
<ir_version: 9, opset_import: ["" : 19]>
net (float[1,2] x) => (float[1,2] y) { y = Relu (x) }""")
NET.graph.output[0].name = NET.graph.node[0].output[0] = "y.out"


def metadata(package):
    import coremltools as ct

    return ct.models.MLModel(str(package), skip_model_load=True).get_spec().description


@pytest.mark.parametrize(("name", "version"), [("iOS16", 7), ("iOS17", 8), ("iOS18", 9), ("iOS26", 10)])
def test_every_system_has_its_specification_under_both_names(name, version, build, save):
    model = save(NET)
    result, _ = build(model, minimum_deployment_target=name)
    assert result["metrics"]["specification_version"] == version
    mac = next(alias for alias, ios in ALIASES.items() if ios == name)
    result, _ = build(model, version=mac, output="mac.mlpackage")
    assert result["metrics"]["specification_version"] == version


def test_names_of_systems_are_coremltools_own():
    import coremltools as ct

    for alias, name in ALIASES.items():
        assert ct.target[alias] is ct.target[name]
    assert {*TARGETS, *ALIASES} == {*get_target("coreml").versions}


@pytest.mark.parametrize("text", ["iOS15", "iOS9", "17", "android", "macOS12"])
def test_another_system_is_refused_with_the_known_ones(text):
    with pytest.raises(UsageError, match="none of iOS16, iOS17, iOS18, iOS26, macOS13") as caught:
        deployment_target({"minimum_deployment_target": text})
    assert caught.value.code == "DK527"


def test_the_option_wins_over_the_version_in_any_case():
    assert deployment_target({"minimum_deployment_target": "macos15", "version": "iOS16"}) == "iOS18"
    assert deployment_target({}) == "iOS17"


def test_metadata_is_what_the_user_says_and_nothing_else(build, save):
    options = {
        "author": "A. N. Author", "license": "MIT", "description": "Ein Netz für Tests", "model_version": "1.2",
        "describe.x": "two numbers", "describe.y.out": "the positive ones",
    }  # fmt: skip
    result, package = build(save(NET), **options)
    found = metadata(package)
    said = found.metadata
    assert (said.author, said.license, said.shortDescription, said.versionString) == (
        "A. N. Author", "MIT", "Ein Netz für Tests", "1.2",
    )  # fmt: skip
    texts = {item.name: item.shortDescription for item in (*found.input, *found.output)}
    assert texts == {"x": "two numbers", "y_out": "the positive ones"}
    assert result["metrics"]["metadata"] == {
        "author": "A. N. Author", "license": "MIT", "description": "Ein Netz für Tests", "model_version": "1.2",
        "describe": texts,
    }  # fmt: skip
    result, package = build(save(NET), output="bare.mlpackage")
    assert "metadata" not in result["metrics"]
    said = metadata(package).metadata
    assert (said.author, said.license, said.shortDescription, said.versionString) == ("", "", "", "")


def test_the_same_words_give_the_same_bytes(build, save):
    model = save(NET)
    options = {"author": "A", "license": "L", "describe.x": "t", "image_input": None}
    digests = {io.digest([build(model, output=f"{name}.mlpackage", **options)[1] / "Data"]) for name in "ab"}
    assert len(digests) == 1


def test_a_description_of_nothing_is_refused(build, save):
    with pytest.raises(UsageError, match=r"describe\.z") as caught:
        build(save(NET), **{"describe.z": "?"})
    assert caught.value.code == "DK527"
    assert "x, y.out" in caught.value.hint


def test_a_family_of_options_is_one_of_the_targets():
    target = get_target("coreml")
    check_options(target, {"describe.anything at all": "text"})
    for name in ("describe", "describe.", "author.x", "descripe.x"):
        with pytest.raises(UsageError) as caught:
            check_options(target, {name: "text"})
        assert caught.value.code == "DK803"


def test_flags_are_on_or_off():
    assert flag({"device_check": "False"}, "device_check", default=True) is False
    assert flag({"device_check": True}, "device_check", default=False) is True
    assert flag({}, "device_check", default=True) is True
    with pytest.raises(UsageError, match="neither true nor false"):
        flag({"device_check": "maybe"}, "device_check", default=True)


@pytest.fixture(scope="module")
def node_cases():
    file = Path(__file__).with_name("node_cases.py")
    spec = importlib.util.spec_from_file_location("node_cases", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def at(node_cases, system, listed, found):
    """Outcomes of cases whose program is built with the operators of that system, in memory."""
    import coremltools as ct

    from deploykit.converters.coreml import frontend

    original = frontend.build

    def build(model, inputs, outputs, dims, target, *more):
        return original(model, inputs, outputs, dims, ct.target[system], *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontend, "build", build)
        return [dataclasses.astuple(outcome)[:3] for outcome in node_cases.sweep(listed, found, saved=False)]


@pytest.mark.parametrize("system", ["iOS16", "iOS18", "iOS26"])
def test_a_sample_of_operators_is_as_right_on_every_system(system, node_cases):
    found, listed = node_cases.load()
    sample = listed[::32]
    made = at(node_cases, system, sample, found)
    assert [row for row in made if row[2] not in ("right", "refused")] == []
    assert made == at(node_cases, "iOS17", sample, found)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["iOS16", "iOS18", "iOS26"])
def test_all_operators_are_as_right_on_every_system(system, node_cases):
    found, listed = node_cases.load()
    made = at(node_cases, system, listed, found)
    assert [row for row in made if row[2] not in ("right", "refused")] == []
    assert sum(row[2] == "right" for row in made) >= 800
