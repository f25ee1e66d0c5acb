"""ONNX Runtime's rule for kernels, on its own kernels: what the registry finds, a session takes."""

import dataclasses

import pytest

from deploykit.opsupport.kernels import allowed_of, constraints_of, kernel_for

KERNELS = [
    {"since": [22, None], "types": {"T": ["float32", "float16"]}},
    {"since": [11, 21], "types": {"T": ["float32"]}},
]
GRAPH = "({0}[2] x) => ({0}[2] y) {{ y = Relu (x) }}"


@pytest.fixture
def relu(last_of):
    def make(since, dtype="float", opset=None):
        return dataclasses.replace(last_of(GRAPH.format(dtype)), since=since, opset=opset or since)

    return make


def found(node, kernels=KERNELS, **options):
    return kernel_for(kernels, node, **{"by_version": True, "half_as_float": False, **options})


@pytest.mark.parametrize(
    ("since", "dtype", "expected"),
    [
        (22, "float", True),
        (22, "float16", True),
        (14, "float", True),
        (11, "float", True),
        (21, "float16", False),
        (24, "float", False),  # an open end matches no later version of the operator
        (6, "float", False),
        (22, "double", False),
    ],
)
def test_an_open_kernel_matches_the_version_that_it_starts_at_only(relu, since, dtype, expected):
    assert found(relu(since, dtype)).holds is expected


def test_the_reason_names_versions_and_types(relu):
    assert "revised in opset 24" in found(relu(24)).fact
    assert "versions 11-22 only" in found(relu(24)).fact
    assert found(relu(21, "float16")).fact == "input 0 'x' is float16, and there are kernels for float32"


@pytest.mark.parametrize(("opset", "expected"), [(10, False), (11, True), (21, True), (23, True)])
def test_without_the_rule_ranges_are_those_of_the_models_opset(relu, opset, expected):
    assert found(relu(14, opset=opset), by_version=False).holds is expected


def test_float16_is_computed_by_the_float32_kernel_on_a_cpu(relu):
    assert found(relu(14, "float16"), half_as_float=True).holds
    assert not found(relu(14, "double"), half_as_float=True).holds


def test_a_type_that_is_not_known_is_open_unless_nothing_restricts_it(last_of):
    node = last_of("(float[2] x) => (y) { u = my.Op (x) y = Relu (u) }", imports=', "my": 1')
    assert found(node, [{"since": [14, None], "types": {"T": ["float32"]}}]).holds is None
    everything = sorted(allowed_of("", "Relu", 14)["T"])
    assert found(node, [{"since": [14, None], "types": {"T": everything}}]).holds is True


def test_an_operator_that_nobody_knows_is_open(last_of):
    node = last_of("(float[2] x) => (y) { y = my.Op (x) }", imports=', "my": 1')
    assert found(node).holds is None


def test_constraints_are_those_of_the_standard():
    assert constraints_of("", "Reshape", 21) == (("T", "shape"), ("T",))
    assert constraints_of("", "Cast", 13) == (("T1",), ("T2",))
    assert constraints_of("", "NoSuchOperator", 13) == ((), ())
    assert "float32" in allowed_of("", "Relu", 14)["T"]
    assert allowed_of("", "Reshape", 21)["shape"] == {"int64"}
    assert allowed_of("", "NoSuchOperator", 1) == {}
