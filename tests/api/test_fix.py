"""`check --fix`: what targets refuse is rewritten, proven equal and written; what is left is told."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import typer
from onnx import numpy_helper, parser

import deploykit
from deploykit.cli import app
from deploykit.errors import ExitCode, ModelError, OutputError, UsageError
from deploykit.isolation import workers
from deploykit.optimizers import fix, fix_search
from deploykit.optimizers.rewriting import Change, Rewrite
from deploykit.reference import Reference
from deploykit.render.sections import sections

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEADER = '<ir_version: 10, opset_import: ["": {opset}{more}]>\n'
RNG = np.random.default_rng(0)
# MNN has no GroupNormalization, says its table; Core ML lowers no GlobalLpPool.
NORM = "GroupNormalization <num_groups=2>"
GROUP_NORM = f"g (float[n,4,5] x) => (float[n,4,5] y) {{ [gn] h = {NORM} (x, s, b) [act] y = Tanh (h) }}"
GROUP_NORM_WEIGHTS = {"s": RNG.standard_normal(4, np.float32), "b": RNG.standard_normal(4, np.float32)}


@pytest.fixture(scope="module", autouse=True)
def pool():
    """The targets' processes, shared by the whole module."""
    with workers() as found:
        yield found


@pytest.fixture
def model(tmp_path):
    def write(text: str, *, opset: int = 21, more: str = "", **constants: np.ndarray) -> Path:
        made = parser.parse_model(HEADER.format(opset=opset, more=more) + text)
        made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        path = tmp_path / "model.onnx"
        onnx.save(made, path)
        return path

    return write


@pytest.fixture
def group_norm(model):
    return model(GROUP_NORM, **GROUP_NORM_WEIGHTS)


def outputs(path: Path, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    reference = Reference(path)
    try:
        return reference.predict(feeds)
    finally:
        reference.close()


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def codes(report: Any) -> list[str]:
    return [finding.code for finding in report.findings]


def test_the_result_runs_and_computes_the_same(group_norm, tmp_path):
    out = tmp_path / "fixed.onnx"
    report = deploykit.check(group_norm, targets=["mnn"], fix=True, output=out)
    assert report.exit_code == ExitCode.OK
    assert "GroupNormalization" not in operators(out)
    assert deploykit.check(out, targets=["mnn"]).exit_code == ExitCode.OK
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((2, 4, 5), np.float32)
        np.testing.assert_allclose(outputs(out, x=x)["y"], outputs(group_norm, x=x)["y"], rtol=1e-4, atol=1e-6)


def test_the_report_says_what_went_and_what_came(group_norm, tmp_path):
    report = deploykit.check(group_norm, targets=["mnn"], fix=True, output=tmp_path / "fixed.onnx")
    document = json.loads(json.dumps(report.as_dict()))
    assert document["command"] == "check"
    (target,) = document["metrics"]["targets"]
    assert (target["name"], target["unsupported"]) == ("mnn", 0)
    (step,) = document["metrics"]["fix"]["rewrites"]
    assert (step["name"], step["nodes_removed"]) == ("decompose-normalizations", ["gn"])
    added = set(step["nodes_added"])
    assert added == {node.name for node in onnx.load(tmp_path / "fixed.onnx").graph.node} - {"act"}
    assert step["operators_removed"] == {"GroupNormalization": 1}
    assert sum(step["operators_added"].values()) == len(added)
    assert step["targets"]["mnn"]["passes"] is True
    assert step["targets"]["mnn"]["supported"] + step["targets"]["mnn"]["conditional"] == len(added)
    assert document["metrics"]["fix"]["left"] == []
    assert document["artifact"]["path"] == str(tmp_path / "fixed.onnx")
    assert document["artifact"]["execution"] == "real"
    manifest = json.loads((tmp_path / "fixed.onnx.deploykit.json").read_text())
    assert manifest["stage"] == "fix"
    assert manifest["options"]["targets"] == ["mnn"]


def test_people_are_shown_where_the_result_lies(group_norm, tmp_path):
    report = deploykit.check(group_norm, targets=["mnn"], fix=True, output=tmp_path / "fixed.onnx")
    (artifacts,) = [section for section in sections(report) if section.title == "Artifacts"]
    assert artifacts.rows[0][0] == str(tmp_path / "fixed.onnx")


def test_a_dry_run_says_the_same_and_writes_nothing(group_norm, tmp_path):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    dry = deploykit.check(group_norm, targets=["mnn"], fix=True, dry_run=True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert (dry.exit_code, dry.artifact) == (ExitCode.OK, None)
    wet = deploykit.check(group_norm, targets=["mnn"], fix=True, output=tmp_path / "fixed.onnx")
    assert dry.metrics["fix"] == wet.metrics["fix"]
    (told,) = [finding.message for finding in dry.findings if finding.code == "DK236"]
    assert "1 GroupNormalization would become" in told


def test_several_targets_are_served_by_one_model(model, tmp_path):
    text = f"""g (float[2,4,5] x) => (float[2,4,1] y)
        {{ [gn] h = {NORM} (x, s, b) [pool] y = GlobalLpPool <p=2> (h) }}"""
    out = tmp_path / "fixed.onnx"
    report = deploykit.check(model(text, **GROUP_NORM_WEIGHTS), targets=["mnn", "coreml"], fix=True, output=out)
    assert report.exit_code == ExitCode.OK, report.findings
    names = {step["name"] for step in report.metrics["fix"]["rewrites"]}
    assert names == {"decompose-normalizations", "decompose-reductions"}
    assert {row["verdict"] for row in report.metrics["targets"]} == {"runs whole"}
    assert set(operators(out)) & {"GroupNormalization", "GlobalLpPool"} == set()


def test_what_is_left_is_told_and_what_was_gained_is_written(model, tmp_path):
    text = f"g (float[2,4,5] x) => (float[2,4,5] y) {{ [gn] h = {NORM} (x, s, b) [odd] y = my.ops.Odd (h) }}"
    path = model(text, more=', "my.ops": 1', **GROUP_NORM_WEIGHTS)
    out = tmp_path / "fixed.onnx"
    report = deploykit.check(path, targets=["mnn"], fix=True, output=out)
    assert report.exit_code == ExitCode.GATE_FAILED
    assert operators(out)[-1] == "Odd"
    assert "GroupNormalization" not in operators(out)
    assert [(left["target"], left["node"]) for left in report.metrics["fix"]["left"]] == [("mnn", "odd")]
    assert [finding.node for finding in report.findings if finding.severity == "error"] == ["odd"]
    # Nothing suggests to try again what has been tried.
    assert not any("--fix" in finding.hint for finding in report.findings)


def test_nothing_is_written_where_no_rewrite_helps(model, tmp_path):
    path = model("g (float[2] x) => (float[2] y) { [odd] y = my.ops.Odd (x) }", more=', "my.ops": 1')
    report = deploykit.check(path, targets=["mnn"], fix=True, output=tmp_path / "fixed.onnx")
    assert report.exit_code == ExitCode.GATE_FAILED
    assert {"DK240", "DK201"} <= set(codes(report))
    assert codes(deploykit.check(path, targets=["mnn"], fix=True, dry_run=True)) == codes(report)
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_model_that_runs_is_written_as_it_is(model, tmp_path):
    path = model("g (float[n] x) => (float[n] y) { y = Relu (x) }")
    out = tmp_path / "fixed.onnx"
    report = deploykit.check(path, targets=["mnn"], fix=True, output=out)
    assert report.exit_code == ExitCode.OK
    assert "DK243" in codes(report)
    assert out.read_bytes() == path.read_bytes()


def test_an_existing_file_is_replaced_only_with_force(group_norm, tmp_path):
    out = tmp_path / "fixed.onnx"
    out.write_bytes(b"precious")
    with pytest.raises(OutputError):
        deploykit.check(group_norm, targets=["mnn"], fix=True, output=out)
    assert out.read_bytes() == b"precious"
    assert deploykit.check(group_norm, targets=["mnn"], fix=True, output=out, force=True).exit_code == ExitCode.OK
    assert onnx.load(out).graph.node


@pytest.mark.parametrize(
    "options",
    [{"fix": True}, {"output": "fixed.onnx"}, {"dry_run": True}, {"fix": True, "output": "fixed.xml"}],
)
def test_options_that_do_not_go_together_are_refused_before_any_work(tmp_path, options):
    given = {**options, **({"output": tmp_path / options["output"]} if "output" in options else {})}
    with pytest.raises((UsageError, OutputError)) as refused:
        deploykit.check(tmp_path / "is-not-there.onnx", targets=["mnn"], **given)
    assert refused.value.exit_code == ExitCode.INVALID_INPUT


class TanhForNorm(Rewrite):
    """Wrong on purpose: another function of the same shape."""

    name: ClassVar[str] = "wrong"
    title: ClassVar[str] = "computes something else"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        return node.op_type == "GroupNormalization"

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        for node in nodes:
            made = ir.node("Tanh", [node.inputs[0]], name=f"{node.name}/Tanh")
            node.graph.insert_before(node, made)
            made.outputs[0].name, made.outputs[0].type = f"{node.name}/out", node.outputs[0].type
            node.outputs[0].replace_all_uses_with(made.outputs[0])
            node.graph.remove(node, safe=True)
        return [Change(("gn",), ("gn/Tanh",), "replaced")]


def test_a_wrong_rewrite_is_found_out_by_comparing_and_dropped(group_norm, tmp_path, monkeypatch):
    monkeypatch.setattr(fix_search, "all_rewrites", lambda: (TanhForNorm(),))
    report = deploykit.check(group_norm, targets=["mnn"], fix=True, output=tmp_path / "fixed.onnx")
    assert report.exit_code == ExitCode.GATE_FAILED
    (told,) = [finding for finding in report.findings if finding.code == "DK237"]
    assert told.node == "gn"
    assert "'y'" in told.message
    assert not (tmp_path / "fixed.onnx").exists()


def test_the_next_rewrite_is_taken_after_a_wrong_one(group_norm, tmp_path, monkeypatch):
    rewrites = (TanhForNorm(), *fix_search.all_rewrites())
    monkeypatch.setattr(fix_search, "all_rewrites", lambda: rewrites)
    report = deploykit.check(group_norm, targets=["mnn"], fix=True, output=tmp_path / "fixed.onnx")
    assert report.exit_code == ExitCode.OK
    assert "wrong" not in {step["name"] for step in report.metrics["fix"]["rewrites"]}


def test_an_interrupted_run_leaves_nothing(group_norm, tmp_path, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fix.Fixing, "proof", interrupt)
    with pytest.raises(KeyboardInterrupt):
        deploykit.check(group_norm, targets=["mnn"], fix=True, output=tmp_path / "fixed.onnx")
    assert sorted(tmp_path.iterdir()) == [group_norm]


def test_a_file_that_is_no_model_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x0a" + bytes(range(256)) * 4)
    with pytest.raises(ModelError):
        deploykit.check(path, targets=["mnn"], fix=True, output=tmp_path / "fixed.onnx")
    assert sorted(tmp_path.iterdir()) == [path]


def test_random_nodes_stay_as_they_are(model, tmp_path):
    text = f"""g (float[2,4,5] x) => (float[2,4,5] y)
        {{ [noise] r = RandomNormalLike (x) [sum] a = Add (x, r) [gn] y = {NORM} (a, s, b) }}"""
    out = tmp_path / "fixed.onnx"
    deploykit.check(model(text, **GROUP_NORM_WEIGHTS), targets=["mnn"], fix=True, output=out)
    assert operators(out).count("RandomNormalLike") == 1


def test_outputs_are_compared_over_the_range_of_a_dynamic_dimension(group_norm, tmp_path):
    out = tmp_path / "fixed.onnx"
    report = deploykit.check(group_norm, targets=["mnn"], fix=True, output=out, dims={"n": (2, 9)})
    assert report.exit_code == ExitCode.OK
    assert report.metrics["parity"]["samples"] == 5
    assert [spec.shape for spec in report.artifact.inputs] == [("n", 4, 5)]


def test_a_model_that_onnxruntime_does_not_load_is_proven_by_an_older_revision_of_the_same_words(model, tmp_path):
    path = model("g (float[1,3,8,8] x) => (float[1,3,1,1] y) { [pool] y = GlobalLpPool <p=2> (x) }", opset=22)
    out = tmp_path / "fixed.onnx"
    report = deploykit.check(path, targets=["onnxruntime"], fix=True, output=out)
    assert report.exit_code == ExitCode.OK, report.findings
    x = RNG.standard_normal((1, 3, 8, 8), np.float32)
    expected = np.sqrt((x.astype(np.float64) ** 2).sum((2, 3), keepdims=True))
    np.testing.assert_allclose(outputs(out, x=x)["y"], expected, rtol=1e-5)


def test_an_interface_that_a_target_cannot_hold_is_changed_and_told_loudly(model, tmp_path):
    text = "g (double[n,4] x) => (double[n,3] y) { [mm] h = MatMul (x, w) [act] y = Tanh (h) }"
    path = model(text, opset=17, w=RNG.standard_normal((4, 3)))
    out = tmp_path / "fixed.onnx"
    report = deploykit.check(path, targets=["coreml"], fix=True, output=out)
    assert report.exit_code == ExitCode.OK, report.findings
    assert {f.tensor for f in report.findings if f.code == "DK238" and f.severity == "warning"} == {"x", "y"}
    assert [(spec.name, spec.dtype) for spec in (*report.artifact.inputs, *report.artifact.outputs)] == [
        ("x", "float32"),
        ("y", "float32"),
    ]
    x = RNG.standard_normal((3, 4))
    found = outputs(out, x=x.astype(np.float32))["y"]
    np.testing.assert_allclose(found, outputs(path, x=x)["y"], rtol=1e-4, atol=1e-5)


def test_weights_beside_the_file_stay_beside_it(group_norm, tmp_path):
    proto = onnx.load(group_norm)
    proto.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal((64, 64), np.float32), "large"))
    proto.graph.node.append(onnx.helper.make_node("ReduceSum", ["large"], ["total"], name="total", keepdims=0))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("total", 1, []))
    onnx.save(proto, group_norm, save_as_external_data=True, location="model.onnx.data", size_threshold=1024)
    out = tmp_path / "made" / "fixed.onnx"
    out.parent.mkdir()
    report = deploykit.check(group_norm, targets=["mnn"], fix=True, output=out)
    assert report.artifact is not None, report.findings
    group_norm.with_name("model.onnx.data").unlink()
    assert outputs(out, x=np.zeros((1, 4, 5), np.float32))["y"].shape == (1, 4, 5)


def test_the_next_command_converts_the_result_with_the_shapes_that_its_target_needs(model, tmp_path):
    text = "g (double[batch,4] x) => (double[batch,3] y) { [mm] y = MatMul (x, w) }"
    path = model(text, opset=17, w=RNG.standard_normal((4, 3)))
    report = deploykit.check(
        path, targets=["coreml"], fix=True, output=tmp_path / "fixed.onnx", dims={"batch": (1, None)}
    )
    (step,) = [finding.hint for finding in report.findings if finding.code == "DK242"]
    assert step.startswith(f"`deploykit convert {tmp_path}/fixed.onnx --to coreml -o {tmp_path}/fixed.mlpackage")
    assert "--profile x=1x4:8x4:64x4" in step
    assert "--dim batch=1.." in step
    words = shlex.split(step.strip("`"))[1:]
    assert typer.main.get_command(app.app).main([*words, "--quiet"], "deploykit", standalone_mode=False) == 0
    assert (tmp_path / "fixed.mlpackage").is_dir()
