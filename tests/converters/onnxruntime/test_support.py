import numpy as np

from deploykit.converters.onnxruntime.support import support_job

OPSET_22 = '<ir_version: 10, opset_import: ["": 22]>\n'


def ask(path):
    answer = support_job(str(path), {"version": "cpu"}, {}, {})
    return answer, {row["node"]: row for row in answer["nodes"]}


def test_model_that_loads_is_supported_in_every_node(shared_model):
    answer, rows = ask(shared_model("silero_vad/silero_vad.onnx"))
    assert {row["verdict"] for row in rows.values()} == {"supported"}
    assert len(rows) == len(answer["nodes"]) == 689  # bodies of the If nodes included, every name its own
    assert answer["partitions"] == 1
    assert answer["source"].startswith("ONNX Runtime 1.")


def test_every_unknown_operator_is_named_and_the_others_are_not(onnx_file):
    path = onnx_file(
        """agraph (float[2] x) => (float[2] y) {
            [relu] a = Relu (x)
            [first] b = my.ops.Odd (a)
            k = Constant <value = float[2] {1, 2}> ()
            [second] c = Plugin_TRT (b)
            [sum] y = Add (c, k)
        }"""
    )
    answer, rows = ask(path)
    refused = {name: row for name, row in rows.items() if row["verdict"] == "unsupported"}
    assert set(refused) == {"first", "second"}
    assert "my.ops.Odd" in refused["first"]["reason"]
    assert all(row["remedy"] for row in refused.values())
    assert answer["partitions"] is None


def test_revision_newer_than_the_kernels_is_refused_with_the_opset_that_works(onnx_file):
    text = "agraph (float[1,2,4,4] x) => (float[1,2,1,1] y) { [pool] y = GlobalLpPool (x) }"
    _, rows = ask(onnx_file(text, header=OPSET_22))
    assert rows["pool"]["verdict"] == "unsupported"
    assert "--opset 21" in rows["pool"]["remedy"]
    _, rows = ask(onnx_file(text))
    assert rows["pool"]["verdict"] == "supported"


def test_revision_older_than_the_kernels_is_refused_with_an_opset_that_export_takes(onnx_file):
    text = "agraph (float[2] x) => (float[2] y) { [r] y = Relu (x) }"
    _, rows = ask(onnx_file(text, header='<ir_version: 3, opset_import: ["": 1]>\n'))
    assert "for a newer revision" in rows["r"]["reason"]
    assert rows["r"]["remedy"] == "use an opset from 7 on: deploykit export MODEL -o OUT --opset 7"


def test_operator_of_a_later_opset_is_refused_with_that_opset(onnx_file):
    text = "agraph (string[2] x) => (string[2] y) { [join] y = StringConcat (x, x) }"
    _, rows = ask(onnx_file(text, header='<ir_version: 8, opset_import: ["": 17]>\n'))
    assert rows["join"]["verdict"] == "unsupported"
    assert "came with opset 20" in rows["join"]["reason"]
    assert "--opset 20" in rows["join"]["remedy"]


def test_operator_that_the_standard_defines_by_others_is_supported(onnx_file):
    _, rows = ask(onnx_file("agraph (float[2] x) => (float[2] y) { [m] y = Mish (x) }", header=OPSET_22))
    assert rows["m"]["verdict"] == "supported"


def test_type_without_a_kernel_is_refused_with_the_types_that_have_one(onnx_file):
    _, rows = ask(onnx_file("agraph (bfloat16[2] x) => (bfloat16[2] y) { [root] y = Sqrt (x) }"))
    assert "tensor(float)" in rows["root"]["reason"]
    assert "bfloat16" in rows["root"]["reason"]


def test_refused_node_inside_a_model_function_is_named(onnx_file):
    path = onnx_file(
        """agraph (float[2] x) => (float[2] y) { [call] y = local.f (x) }
        <domain: "local", opset_import: ["": 20, "my.ops": 1]> f (a) => (b) { [inner] b = my.ops.Odd (a) }""",
        header='<ir_version: 10, opset_import: ["": 20, "local": 1]>\n',
    )
    _, rows = ask(path)
    assert rows["inner"]["verdict"] == "unsupported"


def test_node_at_which_the_model_contradicts_itself_is_named(onnx_file):
    path = onnx_file(
        "agraph (float[1,2] x) => (float[1,2] y) { [mm] y = MatMul (x, w) }", w=np.zeros((3, 3), np.float32)
    )
    _, rows = ask(path)
    assert rows["mm"]["verdict"] == "unsupported"
    assert "matrix multiplication" in rows["mm"]["reason"]


def test_unnamed_nodes_get_names_of_their_own(onnx_file):
    answer, rows = ask(onnx_file("agraph (float[2] x) => (float[2] y) { a = Relu (x) b = Relu (a) y = Abs (b) }"))
    assert len(rows) == len(answer["nodes"]) == 3
    assert "" not in rows


def test_float16_model_is_told_what_the_cpu_makes_of_it(onnx_file):
    answer, _ = ask(onnx_file("agraph (float16[2] x) => (float16[2] y) { a = Sqrt (x) y = Exp (a) }"))
    (found,) = answer["findings"]
    assert (found["code"], found["severity"]) == ("DK205", "note")
    assert "2 of 2" in found["message"]


def test_node_whose_type_the_model_misstates_is_named(onnx_file):
    _, rows = ask(onnx_file("agraph (float[2] x) => (int64[2] y) { [relu] y = Relu (x) }"))
    assert rows["relu"]["verdict"] == "unsupported"
    assert "int64" in rows["relu"]["reason"]


def test_model_refused_as_a_whole_leaves_its_nodes_unknown_and_says_why(onnx_file):
    text = "agraph (float[2] x) => (float[2] y) { [relu] y = Relu (x) }"
    answer, rows = ask(onnx_file(text, header='<ir_version: 99, opset_import: ["": 20]>\n'))
    assert rows["relu"]["verdict"] == "unknown"
    (found,) = answer["findings"]
    assert (found["code"], found["severity"]) == ("DK202", "error")
    assert "does not take model.onnx: Unsupported model IR version: 99" in found["message"]
    assert answer["partitions"] is None
