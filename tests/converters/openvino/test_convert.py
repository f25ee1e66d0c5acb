import contextlib

import numpy as np
import openvino as ov
import pytest

from deploykit.converters.openvino.convert import convert_job
from deploykit.converters.openvino.inspect import describe
from deploykit.errors import GateError, OutputError
from deploykit.isolation import Worker
from deploykit.runtime import open_runtime

NET = """agraph (float[batch,3,8,8] image) => (float[batch,5] logits, float[batch,5] again) {
    [conv] c = Conv <pads = [1,1,1,1]> (image, w)
    [relu] r = Relu (c)
    [mean] m = GlobalAveragePool (r)
    [flat] logits = Flatten (m)
    [same] again = Identity (logits)
}"""


def weights(*shape):
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


@pytest.fixture
def net(onnx_file):
    return onnx_file(NET, w=weights(5, 3, 3, 3))


def convert(model, output, dims=None, profiles=None):
    return convert_job(str(model), str(output), {}, dims or {}, profiles or {}, "fp32")


def ports(path):
    return [str(port.get_partial_shape()) for port in ov.Core().read_model(path).inputs]


def test_names_order_types_and_symbols_are_those_of_the_onnx_file(net, tmp_path):
    made = convert(net, tmp_path / "m.xml")
    assert made["files"] == ["m.xml", "m.bin"]
    assert made["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 3, 8, 8]}]
    runtime = open_runtime(tmp_path / "m.xml")
    assert [spec.as_dict() for spec in runtime.inputs] == made["inputs"]
    assert [spec.as_dict() for spec in runtime.outputs] == made["outputs"]
    assert [spec.name for spec in runtime.outputs] == ["logits", "again"]


def test_outputs_that_are_one_tensor_or_an_input_keep_their_names(onnx_file, tmp_path):
    model = onnx_file(
        """agraph (float[2] x) => (float[2] a, float[2] b, float[2] through) {
            a = Relu (x) b = Relu (x) through = Identity (x)
        }"""
    )
    convert(model, tmp_path / "m.xml")
    x = np.array([-1, 2], np.float32)
    found = open_runtime(tmp_path / "m.xml").predict({"x": x})
    assert {name: array.tolist() for name, array in found.items()} == {"a": [0, 2], "b": [0, 2], "through": [-1, 2]}


def test_bytes_are_the_same_whatever_the_process_did_before(net, int8_conv, tmp_path):
    runs = {"first": [net, int8_conv], "second": [int8_conv, int8_conv, net]}
    for name, models in runs.items():
        worker = Worker("openvino")
        for model in models:
            folder = tmp_path / name / model.stem
            folder.mkdir(parents=True, exist_ok=True)
            arguments = {"model": str(model), "output": str(folder / "m.xml")}
            worker.call(
                "deploykit.converters.openvino.convert:convert_job",
                {**arguments, "options": {}, "dims": {}, "profiles": {}, "precision": "fp32"},
            )
        worker.close()
    for file in sorted((tmp_path / "first").rglob("m.*")):
        assert file.read_bytes() == (tmp_path / "second" / file.relative_to(tmp_path / "first")).read_bytes()


def test_no_path_of_this_machine_is_in_the_file(net, tmp_path):
    convert(net, tmp_path / "m.xml")
    assert str(tmp_path) not in (tmp_path / "m.xml").read_text(encoding="utf-8")


def test_weights_stay_float32_and_float16_stays_float16(net, onnx_file, tmp_path):
    convert(net, tmp_path / "m.xml")
    facts = describe(tmp_path / "m.xml")
    assert facts["precision"] == "fp32"
    assert facts["parameters_by_dtype"]["float32"] >= 5 * 3 * 9
    half = onnx_file(
        "agraph (float16[N,8] x) => (float16[N,6] y) { y = MatMul (x, w) }", "half.onnx", w=weights(8, 6).astype("e")
    )
    convert(half, tmp_path / "h.xml")
    assert describe(tmp_path / "h.xml")["precision"] == "fp16"


def test_inspect_tells_interface_operators_and_sizes(int8_conv, tmp_path):
    convert(int8_conv, tmp_path / "m.xml")
    facts = describe(tmp_path / "m.xml")
    assert facts["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["N", 4, 8, 8]}]
    assert facts["dynamic_dims"] == ["N"]
    assert (facts["precision"], facts["quantized"]) == ("int8", True)
    assert facts["operators"]["Convolution"] == 1
    assert facts["size_bytes"] == sum((tmp_path / name).stat().st_size for name in ("m.xml", "m.bin"))


def test_dimension_bounds_are_written_into_the_ir(net, tmp_path):
    made = convert(net, tmp_path / "m.xml", dims={"batch": [1, 64]})
    assert ports(tmp_path / "m.xml") == ["[1..64,3,8,8]"]
    assert made["inputs"][0]["shape"] == ["batch", 3, 8, 8]


def test_profile_bounds_its_input_and_one_size_fixes_it(net, tmp_path):
    made = convert(net, tmp_path / "m.xml", profiles={"image": [[4, 3, 8, 8]] * 3})
    assert ports(tmp_path / "m.xml") == ["[4,3,8,8]"]
    assert made["inputs"][0]["shape"] == [4, 3, 8, 8]
    assert made["outputs"][0]["shape"] == [4, 5]


def test_bounds_that_fit_nothing_are_reported(net, tmp_path):
    findings = convert(net, tmp_path / "m.xml", dims={"bach": [1, 2]}, profiles={"img": [[1], [1], [1]]})["findings"]
    assert [f["code"] for f in findings] == ["DK204", "DK204"]
    assert "'batch'" in findings[0]["hint"]


def test_refused_node_is_named_with_all_others(onnx_file, tmp_path):
    model = onnx_file("agraph (float[2] x) => (float[2] y) { [first] a = my.ops.Odd (x) [second] y = Plugin_TRT (a) }")
    with pytest.raises(GateError) as caught:
        convert(model, tmp_path / "m.xml")
    assert (caught.value.code, caught.value.node, caught.value.op) == ("DK201", "first", "Odd")
    assert "'second'" in caught.value.context[0]
    assert not list(tmp_path.glob("m.*"))


@contextlib.contextmanager
def largest_file(size):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("rows", [2, 900], ids=["xml does not fit", "bin does not fit"])
def test_full_disk_is_told_as_such_and_names_the_output(onnx_file, tmp_path, rows):
    text = f"agraph (float[N,{rows}] x) => (float[N,9] y) {{ y = MatMul (x, w) }}"
    model = onnx_file(text, w=weights(rows, 9))
    with largest_file(1_000), pytest.raises(OutputError, match=r"no space left for m\.xml") as caught:
        convert(model, tmp_path / "m.xml")
    assert caught.value.code == "DK125"


def test_folder_with_spaces_and_letters_of_any_script(net, tmp_path):
    folder = tmp_path / "модель 模型 é"
    folder.mkdir()
    convert(net, folder / "имя 名.xml")
    assert open_runtime(folder / "имя 名.xml").predict({"image": weights(1, 3, 8, 8)})["logits"].shape == (1, 5)
