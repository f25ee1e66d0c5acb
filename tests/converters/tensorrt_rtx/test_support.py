"""TensorRT-RTX's parser judges every node."""

from __future__ import annotations


def verdicts(answer):
    return {row["node"]: row["verdict"] for row in answer["nodes"]}


def test_a_model_it_takes(check, save):
    answer = check(
        save("""
        <ir_version: 9, opset_import: ["" : 19]>
        fine (float[1,4] x) => (float[1,4] y) { [a] h = Relu (x) [b] y = Sigmoid (h) }""")
    )
    assert verdicts(answer) == {"a": "supported", "b": "supported"}
    assert answer["source"] == "TensorRT-RTX 1.7 parser"
    assert answer["findings"] == []


def test_refused_nodes_have_reason_and_remedy_and_followers_are_unknown(check, save):
    answer = check(
        save("""
        <ir_version: 9, opset_import: ["" : 19]>
        bad (float[2,3,3] x) => (float[2] y) { [determinant] d = Det (x) [after] y = Relu (d) }""")
    )
    assert verdicts(answer) == {"determinant": "unsupported", "after": "unknown"}
    refused = answer["nodes"][0]
    assert "does not import Det" in refused["reason"]
    assert refused["remedy"]


def test_quantization_that_it_refuses_is_found(check, save):
    answer = check(
        save("""
        <ir_version: 9, opset_import: ["" : 19]>
        quantized (float[1,4] x) => (float[1,4] y) <float s = {0.1}, uint8 z = {128}> {
          [q] q = QuantizeLinear (x, s, z)
          [d] y = DequantizeLinear (q, s, z)
        }""")
    )
    found = verdicts(answer)
    assert "unsupported" in found.values()
    assert all("--target tensorrt-rtx" in row["remedy"] for row in answer["nodes"] if row["verdict"] == "unsupported")


def test_what_only_the_builder_says_is_known_before(check, save):
    answer = check(
        save("""
        <ir_version: 9, opset_import: ["" : 19]>
        top (float[1,5000] x) => (float[1,4000] y, int64[1,4000] i) <int64[1] k = {4000}> {
          [best] y, i = TopK (x, k)
        }""")
    )
    (row,) = answer["nodes"]
    assert (row["verdict"], row["source"]) == ("unsupported", "TensorRT-RTX 1.7 builder")


def test_a_missing_profile_is_a_finding(check, save):
    answer = check(
        save("""
        <ir_version: 9, opset_import: ["" : 19]>
        dynamic (float[batch,4] x) => (float[batch,4] y) { [a] y = Relu (x) }""")
    )
    assert [f["code"] for f in answer["findings"]] == ["DK520"]


def test_constants_and_bodies_are_listed_too(check, save):
    answer = check(
        save("""
        <ir_version: 9, opset_import: ["" : 19]>
        branch (bool c, float[2] x) => (float[2] y) {
          [k] one = Constant <value = float[1] {1.0}> ()
          [choice] y = If (c) <
            then_branch = yes () => (float[2] t) { [inner] t = Add (x, one) },
            else_branch = no () => (float[2] e) { [other] e = Sub (x, one) }
          >
        }""")
    )
    assert set(verdicts(answer)) == {"k", "choice", "inner", "other"}
