"""The operator tables of the package: as they were compiled, and well formed by every rule of their format."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from onnx import defs
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from deploykit.opsupport.conditions import CHECKS
from deploykit.opsupport.tables import FOLDER, load_table
from deploykit.target import get_target, target_names

FILES = {
    file.name: json.loads(file.read_text(encoding="utf-8"))
    for file in (resources.files("deploykit.opsupport") / FOLDER).iterdir()
}
FREE_DOMAINS = {
    *("com.microsoft", "com.microsoft.nchwc", "com.microsoft.dml", "com.ms.internal.nhwc", "org.openvinotoolkit"),
    *("org.pytorch.aten", "mmdeploy", "mnn-extra", "tvm-extra"),
}
# Removed, experimental or internal names in the standard's domain that targets still list.
LEGACY = {
    *(
        "ATen",
        "Affine",
        "ConstantFill",
        "Crop",
        "DynamicSlice",
        "GroupNorm",
        "ImageScaler",
        "IsFinite",
        "MemcpyFromHost",
    ),
    *("MemcpyToHost", "ParametricSoftplus", "ScaledTanh", "SimplifiedLayerNormalization", "GivenTensorFill", "Scale"),
    *("GRUUnit", "Inverse", "ScaleAndTranslate", "CropAndResize", "LSTMUnit"),
}
Dtype = Literal[
    *("float64", "float32", "float16", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"),
    *("float8e8m0", "float4e2m1", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8"),
    *("uint16", "uint32", "uint64", "bool", "string", "complex64", "complex128", "seq", "optional", "map"),
]
Where = int | Literal["*"]
Range = tuple[int, int | None]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class When(Strict):
    attr: str
    equals: Any
    default: Any = None


# By check: (arguments that are there, arguments that may be), with their types.
ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "attr_equals": ({"attr": str, "value": Any}, {"default": Any, "when": When}),
    "attr_in": ({"attr": str, "values": list[Any]}, {"default": Any, "when": When, "absent_ok": bool}),
    "attr_each_in": ({"attr": str, "values": list[Any]}, {}),
    "attr_each_in_ci": ({"attr": str, "values": list[str]}, {}),
    "attr_in_list_ci": ({"attr": str, "values": list[str]}, {}),
    "attr_all_equal": ({"attr": str, "value": Any}, {}),
    "attr_uniform": ({"attr": str}, {}),
    "attr_absent": ({"attrs": list[str]}, {}),
    "attr_range": ({"attr": str}, {"min": float, "max": float, "exclusive_min": float, "exclusive_max": float}),
    "attr_odd": ({"attr": str}, {}),
    "attr_len_in": ({"attr": str, "lengths": list[int]}, {}),
    "attr_symmetric_pads": ({"attr": str}, {}),
    "attr_iota": ({"attr": str, "input": int}, {"when_input_present": int}),
    "attr_not_matches": ({"attr": str, "pattern": re.Pattern[str]}, {}),
    "bidirectional_activations_equal": ({"attr": str}, {}),
    "input_is_initializer": ({"input": int}, {"if_present": bool, "constant_expr_ok": bool}),
    "input_absent": ({"inputs": list[int]}, {}),
    "input_count_in": ({"counts": list[int]}, {}),
    "input_count_min": ({"min": int}, {}),
    "input_count_max": ({"max": int}, {}),
    "output_absent": ({"outputs": list[int]}, {}),
    "rank_in": ({"input": Where, "ranks": list[int]}, {"if_present": bool}),
    "rank_min": ({"input": Where, "min": int}, {"if_present": bool}),
    "rank_max": ({"input": Where, "max": int}, {"if_present": bool}),
    "static_rank": ({"input": Where}, {}),
    "static_shape": ({"input": Where}, {}),
    "static_dim": ({"input": int}, {"axis": int, "axis_attr": str, "axis_default": int}),
    "dim_max": ({"input": int, "max": int}, {"axis": Where, "of": Literal["value"]}),
    "dim_equals": ({"input": int, "axis": int, "value": int}, {}),
    "dtype_in": ({"dtypes": list[Dtype]}, {"input": int, "output": int, "if_present": bool}),
    "dtype_same": ({"inputs": list[int]}, {}),
    "zero_point_zero": ({"input": int}, {}),
    "value_in": ({"input": int, "values": list[Any]}, {"if_present": bool}),
    "value_none_equal": ({"input": int, "value": Any}, {}),
    "opset_in": ({"ranges": list[Range]}, {}),
    "since_version_max": ({"max": int}, {}),
}


def machine_errors(machine: dict[str, Any]) -> list[str]:
    """What is wrong with a machine check: its name, the arguments that are missing or unknown, and their types."""
    arguments = dict(machine)
    name = arguments.pop("check", None)
    if name not in ARGUMENTS:
        return [f"unknown check {name}"]
    needed, optional = ARGUMENTS[name]
    if not set(needed) <= set(arguments) or not set(arguments) <= set(needed) | set(optional):
        return [f"arguments of {name}: {sorted(arguments)}"]
    found = []
    for argument, value in arguments.items():
        try:
            TypeAdapter({**needed, **optional}[argument]).validate_python(value)
        except ValidationError as problem:
            found.append(f"{argument} of {name}: {problem.errors()[0]['msg']}")
    if name == "dtype_in" and ("input" in arguments) == ("output" in arguments):
        found.append("dtype_in has to have an input or an output")
    if name == "dim_max" and "axis" not in arguments and "of" not in arguments:
        found.append("dim_max needs an axis, or of: value")
    if name == "opset_in":
        found += [f"opset range {low}-{high}" for low, high in arguments["ranges"] if high is not None and high < low]
    return found


class Condition(Strict):
    kind: Literal["attribute", "input", "rank", "dtype", "constant", "shape", "other"]
    subject: Annotated[str, Field(min_length=1)]
    rule: Annotated[str, Field(min_length=1)]
    machine: dict[str, Any]

    @model_validator(mode="after")
    def _machine(self) -> Condition:
        errors = machine_errors(self.machine)
        if errors:
            raise ValueError("; ".join(errors))
        return self


class Row(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    status: Literal["supported", "conditional", "unsupported", "experimental"]
    since: list[int | None] = Field(min_length=2, max_length=2)
    types: list[Dtype | Annotated[str, Field(pattern="^sparse_")]]
    conditions: list[Condition]

    @model_validator(mode="after")
    def _consistent(self) -> Row:
        low, high = self.since
        if low is not None and high is not None and low > high:
            raise ValueError(f"since {self.since}")
        if (self.status == "conditional") != bool(self.conditions):
            raise ValueError(f"{self.status} with {len(self.conditions)} conditions")
        return self


class Source(Strict):
    repository: str
    path: str
    commit: str


class Opset(Strict):
    min: int
    max: int | None


class TableFile(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    target: str
    version: str
    source: Source
    opset: Opset
    ops: dict[str, Row]
    global_conditions: list[Condition] = []


def schemas() -> dict[tuple[str, str], list[Any]]:
    found = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        found[schema.domain or "ai.onnx", schema.name].append(schema)
    return found


SCHEMAS = schemas()


def name_errors(key: str) -> list[str]:
    domain, operator = key.rsplit(":", 1)
    if domain in ("ai.onnx", "ai.onnx.ml"):
        return [] if (domain, operator) in SCHEMAS or operator in LEGACY else [f"{key} is no operator of the standard"]
    return [] if domain in FREE_DOMAINS else [f"{key}: unknown domain"]


def place_errors(key: str, condition: Condition) -> list[str]:
    """Attributes, inputs and outputs that are in no version of the operator's schema."""
    domain, operator = key.rsplit(":", 1)
    known = SCHEMAS.get((domain, operator))
    if known is None:
        return []
    machine = condition.machine
    attributes = {name for schema in known for name in schema.attributes}
    named = [machine["attr"]] if "attr" in machine else list(machine.get("attrs", []))
    named += [machine["when"]["attr"]] if "when" in machine else []
    found = [f"{key}: no attribute {name}" for name in named if name not in attributes]
    for role in ("input", "output"):
        most = max(getattr(schema, f"max_{role}") for schema in known)
        places = [*([machine[role]] if role in machine else []), *machine.get(f"{role}s", [])]
        found += [f"{key}: {role} {at} of at most {most}" for at in places if isinstance(at, int) and at >= most]
    if machine["check"] == "input_is_initializer" and condition.subject.isidentifier():
        at = machine["input"]
        names = {schema.inputs[at].name for schema in known if len(schema.inputs) > at}
        if names and condition.subject not in names:
            found.append(f"{key}: input {at} is called {sorted(names)}, not {condition.subject}")
    return found


def errors_of(facts: dict[str, Any]) -> list[str]:
    try:
        table = TableFile.model_validate(facts)
    except ValidationError as problem:
        return [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in problem.errors()]
    found = [error for key in table.ops for error in name_errors(key)]
    return found + [e for key, row in table.ops.items() for c in row.conditions for e in place_errors(key, c)]


@pytest.mark.parametrize("name", sorted(FILES))
def test_table_is_well_formed(name):
    assert errors_of(FILES[name]) == []


def test_every_check_that_the_format_has_is_evaluated():
    assert set(CHECKS) | {"none", "opset_in", "since_version_max"} == set(ARGUMENTS)


def test_tables_are_those_that_were_compiled(shared):
    compiled = {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in (shared / "optables").glob("*.json")
    }
    assert compiled == FILES


def test_every_table_names_its_source():
    for name, facts in FILES.items():
        assert all(facts["source"].values()), name


def altered(change) -> list[str]:
    facts = json.loads(json.dumps(FILES["tensorrt-11.1.json"]))
    change(facts["ops"]["ai.onnx:TopK"], facts)
    return errors_of(facts)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row, facts: facts.pop("opset"), "opset: Field required"),
        (lambda row, facts: facts["opset"].pop("max"), "opset.max: Field required"),
        (lambda row, facts: facts["source"].update(page=1), "source.page: Extra inputs"),
        (lambda row, facts: facts["global_conditions"][0].update(kind="mood"), "kind"),
        (lambda row, facts: facts["ops"].update({"ai.onnx:Relux": row}), "Relux is no operator"),
        (lambda row, facts: facts["ops"].update({"com.acme:Relu": row}), "unknown domain"),
        (lambda row, facts: row.pop("types"), "types: Field required"),
        (lambda row, facts: row.update(status="perhaps"), "status"),
        (lambda row, facts: row.update(since=[9, 8]), "since [9, 8]"),
        (lambda row, facts: row.update(since=[9]), "since"),
        (lambda row, facts: row.update(types=["float33"]), "types"),
        (lambda row, facts: row.update(conditions=[]), "conditional with 0 conditions"),
        (lambda row, facts: row.update(status="supported"), "supported with 2 conditions"),
        (lambda row, facts: row["conditions"][0].update(extra=1), "Extra inputs"),
        (lambda row, facts: row["conditions"][0].update(rule=""), "at least 1 character"),
        (lambda row, facts: row["conditions"][0]["machine"].update(check="attr_is_nice"), "unknown check"),
        (lambda row, facts: row["conditions"][0]["machine"].pop("value"), "arguments of attr_equals"),
        (lambda row, facts: row["conditions"][0]["machine"].update(attr="sortedness"), "no attribute sortedness"),
        (lambda row, facts: row["conditions"][1]["machine"].update(input=7), "input 7 of at most 2"),
        (lambda row, facts: row["conditions"][1]["machine"].pop("of"), "dim_max needs an axis"),
    ],
)
def test_a_fault_is_found(change, said):
    found = altered(change)
    assert any(said in error for error in found), found


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ({"check": "dtype_in", "dtypes": ["float32"]}, "an input or an output"),
        ({"check": "dtype_in", "dtypes": ["float33"], "input": 0}, "dtypes of dtype_in"),
        ({"check": "opset_in", "ranges": [[9, 7]]}, "opset range 9-7"),
        ({"check": "attr_not_matches", "attr": "equation", "pattern": "("}, "pattern of attr_not_matches"),
        ({"check": "attr_in", "attr": "mode", "values": [], "when": {"attr": "m"}}, "when of attr_in"),
    ],
)
def test_a_faulty_check_is_found(machine, said):
    assert said in machine_errors(machine)[0]


def test_an_initializer_is_called_as_in_the_standard():
    condition = {
        "kind": "input",
        "subject": "weights",
        "rule": "constant",
        "machine": {"check": "input_is_initializer", "input": 1},
    }
    assert "is called ['W']" in place_errors("ai.onnx:Conv", Condition.model_validate(condition))[0]


def test_the_documentation_lists_the_sources_of_every_table():
    whole = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    text = whole.partition("## Operator tables")[2].partition("\n## ")[0]
    for target in map(get_target, target_names()):
        for name in target.tables.values():
            table = load_table(name)
            counts = Counter(row["status"] for row in table.facts["ops"].values())
            (row,) = [line for line in text.splitlines() if line.startswith(f"| `{table.asked}` |")]
            assert f"| {counts['supported']} | {counts['conditional']} | {counts['unsupported']} |" in row
            for source in (table.facts["source"], table.facts.get("secondary_source")):
                if source is not None:
                    commit = source["commit"] if " " in source["commit"] else source["commit"][:12]
                    assert f"{source['repository']}, `{source['path']}`, {commit}" in row
