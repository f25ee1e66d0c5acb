"""Class labels: the file, the classifier that it makes, and its values against the ONNX."""

from __future__ import annotations

import json

import numpy as np
import pytest

from deploykit.artifact import TensorSpec
from deploykit.converters.coreml.labels import Classes, read_labels
from deploykit.converters.coreml.runtime import SimulatedRuntime
from deploykit.errors import UsageError, VendorError
from deploykit.reference import Reference

NET = """
<ir_version: 9, opset_import: ["" : 19]>
net (float[batch,4] x) => (float[batch,3] scores, float[batch,3] logits)
<float[4,3] w = {1,-2,3,-4,5,-6,7,-8,9,-1,2,-3}>
{ logits = MatMul (x, w)
  scores = Softmax (logits) }"""
ONE = NET.replace(", float[batch,3] logits", "")
BATCH = {"batch": [1, 1]}


@pytest.fixture
def labels(tmp_path):
    def write(content, name="labels.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def feed():
    return {"x": np.random.default_rng(3).normal(size=(1, 4)).astype(np.float32)}


def raw(package, feeds):
    """The package's own outputs."""
    runtime = SimulatedRuntime(package)
    return runtime._interpreter.run(runtime.door.given(feeds))


@pytest.mark.parametrize(
    ("content", "name", "wanted"),
    [
        ("cat\ndog\nbird\n", "labels.txt", ["cat", "dog", "bird"]),
        ("cat\r\ndog\r\nhot dog", "labels.txt", ["cat", "dog", "hot dog"]),
        (b"\xef\xbb\xbfkatze\nhund\nv\xc3\xb6gel\n", "labels.txt", ["katze", "hund", "vögel"]),
        ('["a", "b", "c"]', "labels.json", ["a", "b", "c"]),
        ('{"2": "c", "0": "a", "1": "b"}', "labels.json", ["a", "b", "c"]),
        ("[7, 8, 9]", "labels.json", [7, 8, 9]),
    ],
)
def test_labels_are_read_in_the_order_of_the_classes(content, name, wanted, labels):
    assert read_labels(labels(content, name)) == wanted


@pytest.mark.parametrize(
    ("content", "name", "why"),
    [
        ("cat\n\nbird\n", "l.txt", "label 1 of l.txt is empty"),
        ("crane\ndog\ncrane\n", "l.txt", "'crane' twice (classes 0 and 2)"),
        ("", "l.txt", "has no labels"),
        (b"\xff\xfe\x00", "l.txt", "cannot read"),
        ("[1, 2", "l.json", "is no JSON"),
        ('{"a": 1}', "l.json", "holds no list"),
        ('["a", 1]', "l.json", "label 1 of l.json is 1"),
        ("[1.5]", "l.json", "label 0 of l.json is 1.5"),
        ("[true]", "l.json", "label 0 of l.json is True"),
    ],
)
def test_what_is_no_list_of_labels_is_refused(content, name, why, labels):
    with pytest.raises(UsageError) as caught:
        read_labels(labels(content, name))
    assert caught.value.code == "DK551"
    assert why in caught.value.message


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read") as caught:
        read_labels(str(tmp_path / "no.txt"))
    assert caught.value.code == "DK551"


@pytest.mark.parametrize(("content", "name"), [("cat\ndog\nbird\n", "l.txt"), ("[7, 8, 9]", "l.json")])
@pytest.mark.parametrize("system", ["iOS16", "iOS26"])
def test_a_classifier_gives_label_and_values(content, name, system, build, save, labels):
    model = save(ONE)
    result, package = build(
        model, dims=BATCH, class_labels=labels(content, name), minimum_deployment_target=system
    )  # fmt: skip
    assert [f["code"] for f in result["findings"]] == ["DK529"]
    expected = Reference(model).predict(feed())["scores"]
    wanted = read_labels(labels(content, name))
    made = raw(package, feed())
    assert made["classLabel"] == wanted[int(expected.argmax())]
    assert list(made["classLabel_probs"]) == wanted
    np.testing.assert_allclose(list(made["classLabel_probs"].values()), expected[0], rtol=1e-5)
    # For deploykit's commands it is the model's output.
    runtime = SimulatedRuntime(package)
    assert runtime.outputs == (TensorSpec("scores", "float32", (1, 3)),)
    np.testing.assert_allclose(runtime.predict(feed())["scores"], expected, rtol=1e-5)
    assert result["outputs"] == [TensorSpec("scores", "float32", (1, 3)).as_dict()]


def test_one_output_of_several_becomes_the_classifiers(build, save, labels):
    model = save(NET)
    names = labels("cat\ndog\nbird\n")
    with pytest.raises(UsageError, match="has 2 outputs") as caught:
        build(model, dims=BATCH, class_labels=names)
    assert "class_output=NAME" in caught.value.hint
    _, package = build(model, dims=BATCH, class_labels=names, class_output="logits")
    expected, made = Reference(model).predict(feed()), SimulatedRuntime(package).predict(feed())
    assert set(made) == {"scores", "logits"}
    for name, array in expected.items():
        np.testing.assert_allclose(made[name], array, rtol=1e-5)


def test_the_specification_is_a_classifiers(build, save, labels):
    import coremltools as ct

    _, package = build(save(ONE), dims=BATCH, class_labels=labels("cat\ndog\nbird\n"))
    description = ct.models.MLModel(str(package), skip_model_load=True).get_spec().description
    assert (description.predictedFeatureName, description.predictedProbabilitiesName) == (
        "classLabel",
        "classLabel_probs",
    )
    kinds = {item.name: item.type.WhichOneof("Type") for item in description.output}
    assert kinds == {"classLabel": "stringType", "classLabel_probs": "dictionaryType"}


REFUSED = {
    "has 3 values, and there are 2 labels": (ONE, BATCH, {}, "a\nb\n"),
    "varies in size": (ONE, {"batch": [1, 4]}, {}, "a\nb\nc\n"),
    "there is no output 'z'": (ONE, BATCH, {"class_output": "z"}, "a\nb\nc\n"),
    "values of classes are floats": (
        'small (float[1,3] x) => (int64[1,3] y) { y = Cast <to=7> (x) }', None, {}, "a\nb\nc\n"
    ),
    "has 6 values, and there are 6 labels": (
        "small (float[2,3] x) => (float[2,3] y) { y = Relu (x) }", None, {}, "a\nb\nc\nd\ne\nf\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_labels_that_fit_no_output_are_refused(why, build, save, labels):
    text, dims, options, content = REFUSED[why]
    header = '<ir_version: 9, opset_import: ["" : 19]>' if text.startswith("small") else ""
    with pytest.raises(UsageError) as caught:
        build(save(header + text), dims=dims, class_labels=labels(content), **options)
    assert caught.value.code == "DK551"
    assert why in caught.value.message


def test_class_output_without_labels_is_refused(build, save):
    with pytest.raises(UsageError, match="those are not given"):
        build(save(ONE), dims=BATCH, class_output="scores")


def test_names_that_are_taken_are_left_alone(build, save, labels):
    text = ONE.replace("x)", "classLabel)").replace("(x, w)", "(classLabel, w)")
    result, package = build(save(text), dims=BATCH, class_labels=labels("a\nb\nc\n"))
    assert result["metrics"]["classifier"]["label"] == "classLabel_"
    assert raw(package, {"classLabel": feed()["x"]})["classLabel_"] in ("a", "b", "c")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"classLabel": "a", "classLabel_probs": {"a": 0.1, "b": 0.9}}, "has the largest value"),
        ({"classLabel": "a", "classLabel_probs": {"a": 0.1, "c": 0.9}}, "not all the same"),
    ],
)
def test_inconsistent_classes_are_an_error(made, why):
    classes = Classes("y", "float32", (1, 2), ("a", "b"))
    with pytest.raises(VendorError, match=why) as caught:
        classes.vector(made)
    assert caught.value.code == "DK533"


def test_equal_values_may_have_either_label():
    classes = Classes("y", "float32", (1, 2), ("a", "b"))
    for label in "ab":
        made = {"classLabel": label, "classLabel_probs": {"a": 0.5, "b": 0.5}}
        np.testing.assert_array_equal(classes.vector(made), [[0.5, 0.5]])


def test_a_classifier_made_elsewhere_is_a_vector_under_its_own_name(tmp_path):
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 3))], opset_version=ct.target.iOS17)
    def program(x):
        return mb.softmax(x=x, axis=-1, name="y")

    package = tmp_path / "foreign.mlpackage"
    ct.convert(program, source="milinternal", convert_to="mlprogram", skip_model_load=True,
               classifier_config=ct.ClassifierConfig(["a", "b", "c"]), minimum_deployment_target=ct.target.iOS17,
               compute_precision=ct.precision.FLOAT32).save(str(package))  # fmt: skip
    runtime = SimulatedRuntime(package)
    assert runtime.outputs == (TensorSpec("classLabel_probs", "float32", (3,)),)
    x = np.array([[1, 3, 2]], np.float32)
    wanted = np.exp(x[0]) / np.exp(x[0]).sum()
    np.testing.assert_allclose(runtime.predict({"x": x})["classLabel_probs"], wanted, rtol=1e-6)


def test_the_manifest_of_the_package_holds_the_labels_digest_not_their_place(save, labels, tmp_path):
    import deploykit
    from deploykit.io import file_sha256

    names = labels("cat\ndog\nbird\n")
    package = tmp_path / "m.mlpackage"
    report = deploykit.convert(
        save(ONE), to="coreml", output=package, dims=["batch=1"], options={"class_labels": names, "device_check": False}
    )
    assert not report.failed
    assert report.metrics["parity"]["parent"]["outputs"][0]["name"] == "scores"
    written = json.loads((tmp_path / "m.mlpackage.deploykit.json").read_text())
    assert written["options"]["options"]["class_labels"] == {"sha256": file_sha256(tmp_path / "labels.txt")}
    assert str(tmp_path) not in json.dumps(written)
    assert not (tmp_path / "m.check").exists()


@pytest.mark.parametrize(("most", "codes"), [(1, ["DK529"]), (4, ["DK529", "DK551"])])
def test_a_size_that_no_input_has_is_asked_of_the_program(most, codes, build, save, labels):
    text = ONE.replace("float[batch,3] scores", "float[other,3] scores")
    result, _ = build(save(text), dims={"batch": [1, most]}, class_labels=labels("a\nb\nc\n"))
    assert [finding["code"] for finding in result["findings"]] == codes
