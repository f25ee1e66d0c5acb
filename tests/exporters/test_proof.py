"""The proof finds what exporters do wrong: swapped and renamed outputs, frozen sizes, refusals; and says where."""

import numpy as np
import onnx
import pytest

from deploykit.artifact import TensorSpec
from deploykit.data import DimRange, Sample
from deploykit.errors import VendorError
from deploykit.exporters.proof import Proof, SourceSide
from deploykit.parity import TOLERANCES

SPECS = (TensorSpec("x", "float32", ("n", "m")), TensorSpec("k", "float32", (3,)))
SYMBOLS = {"n": DimRange("n", 1, 40), "m": DimRange("m", 2, None)}


def source(feeds):
    return {"a": feeds["x"] * 2, "b": feeds["x"] + 1}


@pytest.fixture
def prove(tmp_path):
    model = tmp_path / "m.onnx"
    onnx.save(
        onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) {y = Abs(x)}'),
        model,
    )

    def run(candidate, reference=source, given=()):
        side = SourceSide(reference, "the module")
        return Proof(side, candidate, SPECS, SYMBOLS, model, 0, TOLERANCES["fp32"], given=given).run()

    return run


def codes(result):
    return [finding["code"] for finding in result["findings"] if finding["severity"] == "error"]


def test_what_is_right_passes_at_the_bounds_at_one_and_between(prove):
    result = prove(source)
    assert codes(result) == []
    assert {1, 40} < set(result["proven"]["n"])
    assert {2, 9} <= set(result["proven"]["m"])
    assert all(len(sizes) >= 3 for sizes in result["proven"].values())


def test_swapped_outputs_differ(prove):
    result = prove(lambda feeds: {"a": feeds["x"] + 1, "b": feeds["x"] * 2})
    assert [row["passed"] for row in result["outputs"]] == [False, False]
    assert "DK688" not in codes(result), "no dimension is to blame"


def test_renamed_outputs_are_named(prove):
    result = prove(lambda feeds: {"a": feeds["x"] * 2, "c": feeds["x"] + 1})
    messages = " ".join(finding["message"] for finding in result["findings"])
    assert "'b'" in messages
    assert "'c'" in messages


def frozen(feeds):
    found = source(feeds)
    if feeds["x"].shape[1] != 3:
        found["a"] = found["a"] + 1
    return found


def refusing(feeds):
    if feeds["x"].shape[0] == 1:
        raise VendorError("Reshape: cannot reshape")
    return source(feeds)


def test_a_size_that_changes_the_values_is_named(prove):
    example = Sample({"x": np.ones((2, 3), np.float32), "k": np.ones(3, np.float32)}, None, "the example")
    blamed = [f for f in prove(frozen, given=[example])["findings"] if f["code"] == "DK688"]
    assert len(blamed) == 1
    assert "'m' was frozen" in blamed[0]["message"]
    assert "right at 3" in blamed[0]["message"]
    assert "--dim m=3" in blamed[0]["hint"]


def test_a_size_that_is_refused_is_named(prove):
    result = prove(refusing)
    assert "DK625" in codes(result)
    blamed = [f["message"] for f in result["findings"] if f["code"] == "DK688"]
    assert len(blamed) == 1
    assert "'n' was frozen in the file: wrong at 1," in blamed[0]


def test_branches_on_a_sum_are_taken_both_ways(prove):
    def branching(feeds):
        return {name: np.where(feeds["x"].sum() > 0, array, -array) for name, array in source(feeds).items()}

    example = Sample({"x": np.ones((2, 3), np.float32), "k": np.ones(3, np.float32)}, None, "the example")
    result = prove(source, reference=branching, given=[example])
    assert not all(row["passed"] for row in result["outputs"])


def test_sizes_that_the_source_refuses_are_no_fault_of_the_file(prove):
    def picky(feeds):
        if feeds["x"].shape[0] == 1:
            raise ValueError("at least two")
        return source(feeds)

    result = prove(source, reference=picky)
    assert codes(result) == []
    assert 1 not in result["proven"]["n"]
    assert any(finding["code"] == "DK624" for finding in result["findings"])
