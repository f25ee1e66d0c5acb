import pytest

from deploykit.converters.openvino.support import support_job


def ask(path):
    answer = support_job(str(path), {}, {}, {})
    return answer, {row["node"]: row for row in answer["nodes"]}


def refused(rows):
    return {name for name, row in rows.items() if row["verdict"] == "unsupported"}


def test_if_whose_branches_differ_in_rank_is_named_with_the_node_that_fails_on_it(shared_model):
    answer, rows = ask(shared_model("silero_vad/silero_vad.onnx"))
    found = refused(rows)
    branch = "If_0_then_branch__Inline_0__"
    assert {"If_0", f"{branch}/If", f"{branch}/ReduceMean", f"{branch}/decoder/If_1"} <= found
    assert "ReduceMean" in rows[f"{branch}/If"]["reason"]
    assert "dynamic" in rows[f"{branch}/If"]["reason"]
    assert "branch" in rows["If_0"]["reason"]
    assert len(found) < 12  # the other nodes are not refused because of them
    assert answer["partitions"] is None
    assert answer["source"].startswith("OpenVINO 20")


def test_model_that_converts_is_supported_in_every_node(shared_model):
    answer, rows = ask(shared_model("silero_vad/silero_vad_op18_ifless.onnx"))
    assert refused(rows) == set()
    assert answer["partitions"] == 1


def test_sequence_operators_are_named(shared):
    _, rows = ask(shared / "cases" / "sequence_ops.onnx")
    assert {"split_seq", "cat_seq"} <= refused(rows)
    assert "Split and Concat" in rows["split_seq"]["remedy"]


def test_custom_operators_in_any_domain_are_named(shared):
    _, rows = ask(shared / "cases" / "custom_op_default_domain.onnx")
    assert refused(rows) == {"nms_plugin", "my_scale"}
    assert "my.ops.MyScale" in rows["my_scale"]["reason"]


def test_nodes_that_are_folded_count_as_supported(onnx_file):
    _, rows = ask(
        onnx_file(
            "agraph (float[2] x) => (float[2] y) { [k] c = Constant <value = float[2] {1, 2}> () [add] y = Add (x, c) }"
        )
    )
    assert {name: row["verdict"] for name, row in rows.items()} == {"k": "supported", "add": "supported"}


@pytest.mark.parametrize("text", ["[odd] y = my.ops.Odd (x)", "y = my.ops.Odd (x)"])
def test_refused_node_without_a_name_is_found_by_its_output(onnx_file, text):
    _, rows = ask(onnx_file(f"agraph (float[2] x) => (float[2] y) {{ {text} }}"))
    assert len(refused(rows)) == 1
    assert "" not in rows


def test_shapes_that_find_no_memory_are_named_with_their_size(onnx_file, monkeypatch):
    model = onnx_file("agraph (float[512,1024] x) => (float[512,1024] y) { y = Relu (x) }")

    def refuse(*_):
        raise RuntimeError("Exception from allocator.cpp:79:\nstd::bad_alloc")

    monkeypatch.setattr("openvino.Core.query_model", refuse)
    answer, _ = ask(model)
    (found,) = answer["findings"]
    assert found["code"] == "DK202"
    assert "of shape [512, 1024] alone takes 0.0 GiB" in found["message"]
