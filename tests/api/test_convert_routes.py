"""Routes from PyTorch: coremltools' own front-end where it computes what the module does, through ONNX otherwise."""

from __future__ import annotations

import json
import textwrap

import numpy as np
import pytest

import deploykit
from deploykit.api.routes import way_of
from deploykit.artifact import read_manifest
from deploykit.errors import ExitCode, ModelError, UsageError, VendorError
from deploykit.isolation import workers
from deploykit.lazy import installed
from deploykit.runtime import open_runtime
from deploykit.target import get_target

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not installed("coremltools") or not installed("onnxscript"), reason="no coremltools")

MODULES = """
    import os, sys
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.head = nn.Linear(8, 4)

        def forward(self, image):
            x = F.max_pool2d(F.relu(self.norm(self.conv(image))), 2, 2)
            return self.head(x.mean((2, 3))).softmax(-1)

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(50, 8)
            self.head = nn.Linear(8, 4)

        def forward(self, ids, mask):
            found = self.head(self.table(ids)) * mask[..., None].float()
            return {"found": found, "best": found.argmax(-1), "above": found.mean(-1) > 0}

    class Pool(nn.Module):  # coremltools wants the stride said
        def forward(self, x):
            return F.max_pool2d(x, 2)

    class Inverse(nn.Module):  # coremltools adds an epsilon to x
        def forward(self, x):
            return x.reciprocal()

    class Crashing(nn.Module):
        def forward(self, x):
            if "coremltools" in sys.modules and torch.compiler.is_exporting():
                os._exit(9)
            return x * 2

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 4).half()

        def forward(self, x):
            return self.head(x)

    class Branch(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x - 1

    class Random(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5)
"""
IMAGE = {"inputs": ["image:float32[batch,3,8,8]"], "dims": ["batch=1..4"]}
ROWS = {"inputs": ["x:float32[batch,16]"], "dims": ["batch=1..4"]}


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    path = tmp_path_factory.mktemp("modules") / "modules.py"
    path.write_text(textwrap.dedent(MODULES))
    return path


def convert(source, tmp_path, name="made", **given):
    return deploykit.convert(source, to="coreml", output=tmp_path / f"{name}.mlpackage", **given)


def codes(report):
    return [finding.code for finding in report.findings]


def said(report, code):
    return next(finding.message for finding in report.findings if finding.code == code)


def module_of(modules, name):
    """The module as the worker makes it: constructors draw from seed 0."""
    scope: dict = {}
    exec(compile(modules.read_text(), str(modules), "exec"), scope)
    torch.manual_seed(0)
    return scope[name]().eval()


@pytest.mark.parametrize("route", ["torch", "onnx"])
def test_both_routes_give_what_the_module_gives(modules, tmp_path, route):
    report = convert(f"{modules}:Net", tmp_path, options={"route": route}, **IMAGE)
    assert (report.exit_code, report.metrics["route"]) == (ExitCode.OK, route)
    assert read_manifest(tmp_path / "made.mlpackage").options["route"] == route
    assert "DK555" in codes(report)
    assert [spec.shape for spec in (*report.artifact.inputs, *report.artifact.outputs)] == [
        ("batch", 3, 8, 8),
        ("batch", 4),
    ]
    runtime = open_runtime(tmp_path / "made.mlpackage")
    image = np.random.default_rng(1).standard_normal((3, 3, 8, 8)).astype(np.float32)
    with torch.no_grad():
        expected = module_of(modules, "Net")(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(runtime.predict({"image": image})["output"], expected, rtol=1e-4, atol=1e-6)


def test_the_direct_route_is_taken_where_it_is_proven_at_all_sizes(modules, tmp_path):
    report = convert(f"{modules}:Net", tmp_path, **IMAGE)
    assert report.metrics["route"] == "torch"
    gate = report.metrics["parity"]["source"]
    assert gate["proven"] == {"batch": [1, 2, 3, 4]}
    assert gate["engines"]["reference"] == "PyTorch, eager"
    assert report.artifact.execution == gate["execution"] != "none"
    assert "route=torch" in said(report, "DK555")


def test_the_same_module_gives_the_same_bytes(modules, tmp_path):
    made = [convert(f"{modules}:Net", tmp_path, name, **IMAGE).artifact for name in ("one", "two")]
    files = [sorted(p for p in artifact.path.rglob("*") if p.is_file()) for artifact in made]
    assert [p.read_bytes() for p in files[0]] == [p.read_bytes() for p in files[1]]
    assert not any(str(tmp_path).encode() in p.read_bytes() for p in files[0])


def test_integers_and_booleans_have_the_types_that_the_onnx_route_gives_them(modules, tmp_path):
    given = {"inputs": ["mask:bool[batch,n]", "ids:int64[batch,n]"], "dims": ["batch=1..3", "n=1..6"]}
    interfaces = {}
    for route in ("torch", "onnx"):
        report = convert(f"{modules}:Tokens", tmp_path, route, options={"route": route}, **given)
        assert report.exit_code == ExitCode.OK
        specs = (*report.artifact.inputs, *report.artifact.outputs)
        interfaces[route] = {(spec.name, spec.dtype, spec.shape) for spec in specs}
    assert interfaces["torch"] == interfaces["onnx"]
    # Every row of the table was looked up.
    runtime = open_runtime(tmp_path / "torch.mlpackage")
    ids, mask = np.array([[0, 7, 49], [3, 48, 1]]), np.array([[True, True, False], [True, True, True]])
    with torch.no_grad():
        expected = module_of(modules, "Tokens")(torch.from_numpy(ids), torch.from_numpy(mask))
    made = runtime.predict({"ids": ids, "mask": mask})
    for name, value in expected.items():
        np.testing.assert_allclose(made[name], value.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("Pool", IMAGE | {"inputs": ["x:float32[batch,3,8,8]"]}, "max_pool2d"),
        ("Inverse", ROWS, "differs from what"),
        ("Crashing", ROWS, "exit code 9"),
    ],
)
def test_what_the_direct_route_cannot_or_gets_wrong_goes_through_onnx(modules, tmp_path, name, given, reason):
    report = convert(f"{modules}:{name}", tmp_path, **given)
    assert (report.exit_code, report.metrics["route"]) == (ExitCode.OK, "onnx")
    assert reason in said(report, "DK556")
    assert report.metrics["parity"]["parent"]["outputs"][0]["passed"]


def test_a_named_route_that_fails_is_an_error_with_the_vendors_reason(modules, tmp_path):
    with pytest.raises(VendorError) as raised:
        convert(f"{modules}:Pool", tmp_path, options={"route": "torch"}, inputs=["x:float32[1,3,8,8]"])
    assert raised.value.code == "DK556"
    assert "max_pool2d" in raised.value.message
    assert "route=onnx" in raised.value.hint
    report = convert(f"{modules}:Inverse", tmp_path, options={"route": "torch"}, **ROWS)
    assert (report.exit_code, report.artifact) == (ExitCode.GATE_FAILED, None)
    assert "DK532" in codes(report)
    assert not list(tmp_path.glob("*"))


def test_a_random_module_is_refused_once_whatever_the_route(modules, tmp_path):
    report = convert(f"{modules}:Random", tmp_path, **ROWS)
    assert report.error is not None
    assert report.error.code == "DK685"
    assert "DK556" not in codes(report)


def test_an_open_dimension_is_asked_for_once(modules, tmp_path):
    report = convert(f"{modules}:Net", tmp_path, inputs=IMAGE["inputs"])
    assert codes(report).count("DK520") == 1
    assert "DK556" not in codes(report)


def test_a_profile_bounds_what_is_compared(modules, tmp_path):
    profiles = ["image=1x3x8x8:2x3x8x8:3x3x8x8"]
    report = convert(f"{modules}:Net", tmp_path, inputs=IMAGE["inputs"], profiles=profiles)
    assert (report.metrics["route"], report.metrics["parity"]["source"]["proven"]) == ("torch", {"batch": [1, 2, 3]})


def test_users_data_is_compared_with_what_the_module_makes_of_it(modules, tmp_path):
    np.savez(tmp_path / "data.npz", image=np.random.default_rng(0).standard_normal((40, 3, 8, 8)).astype(np.float32))
    (tmp_path / "out").mkdir()
    few, many = (
        convert(f"{modules}:Net", tmp_path / "out", f"m{n}", data=str(tmp_path / "data.npz"), samples=n, **IMAGE)
        for n in (2, 12)
    )
    assert {few.metrics["route"], many.metrics["route"]} == {"torch"}
    taken = [report.metrics["parity"]["source"]["samples"] for report in (few, many)]
    assert taken[1] - taken[0] == 10
    # The check for a Mac has the user's samples, and what the module itself answers.
    assert few.artifact.companions == ("m2.check",)
    check = tmp_path / "out" / "m2.check"
    first = json.loads((check / "check.json").read_text())["samples"][0]
    image, output = (
        np.fromfile(check / facts["file"], np.float32).reshape(facts["shape"])
        for facts in (first["inputs"]["image"], first["outputs"]["output"])
    )
    with torch.no_grad():
        expected = module_of(modules, "Net")(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(output, expected, rtol=1e-6)
    assert any(np.array_equal(image[0], row) for row in np.load(tmp_path / "data.npz")["image"])
    assert "DK320" not in codes(few)


def test_sizes_of_a_set_become_enumerated_shapes(modules, tmp_path):
    report = convert(f"{modules}:Net", tmp_path, inputs=IMAGE["inputs"], dims=["batch=1,4"])
    assert (report.metrics["route"], report.metrics["parity"]["source"]["proven"]) == ("torch", {"batch": [1, 4]})


def test_a_branch_on_values_is_refused_with_both_reasons(modules, tmp_path):
    with pytest.raises(ModelError) as raised:
        convert(f"{modules}:Branch", tmp_path, **ROWS)
    assert raised.value.code == "DK613"
    assert any("torch.export" in line for line in raised.value.context)


def test_half_precision_stays_half(modules, tmp_path):
    report = convert(f"{modules}:Half", tmp_path, inputs=["x:float16[batch,8]"], dims=["batch=1..4"])
    assert (report.metrics["route"], report.artifact.precision) == ("torch", "fp16")
    assert {spec.dtype for spec in (*report.artifact.inputs, *report.artifact.outputs)} == {"float16"}


def test_exported_programs_and_torchscript_go_directly_too(modules, tmp_path):
    net = module_of(modules, "Net")
    example = torch.randn(2, 3, 8, 8)
    program = torch.export.export(net, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=4)},))
    torch.export.save(program, tmp_path / "net.pt2")
    torch.jit.trace(net, example).save(str(tmp_path / "net.pt"))
    report = convert(tmp_path / "net.pt2", tmp_path, "program")
    assert report.metrics["route"] == "torch"
    assert report.artifact.inputs[0].name == "image"
    report = convert(tmp_path / "net.pt", tmp_path, "script", **IMAGE)
    assert report.metrics["route"] == "torch"
    assert (report.artifact.inputs[0].name, report.artifact.outputs[0].name) == ("image", "output")


def test_what_only_the_onnx_route_knows_takes_it(modules, tmp_path):
    options = {"compute_precision": "fp16"}
    way = way_of(get_target("coreml"), f"{modules}:Net", options, {})
    assert (way.via, way.direct) == ("onnx", "torch")
    assert "compute_precision" in way.why
    with pytest.raises(UsageError) as raised:
        way_of(get_target("coreml"), f"{modules}:Net", {**options, "route": "torch"}, {})
    assert raised.value.code == "DK557"
    assert way_of(get_target("coreml"), f"{modules}:Net", {}, {"--calib": "x.npz"}).via == "onnx"


def test_texts_about_the_package_are_known_to_both(modules, tmp_path):
    options = {"author": "A", "describe.image": "a picture", "minimum_deployment_target": "iOS16"}
    report = convert(f"{modules}:Net", tmp_path, options=options, **IMAGE)
    assert (report.metrics["route"], report.metrics["specification_version"]) == ("torch", 7)
    assert report.metrics["metadata"]["author"] == "A"


@pytest.mark.parametrize("route", ["torch", "tensorflow", "elsewhere"])
def test_a_route_that_does_not_start_at_the_source_is_refused(tmp_path, save_net, route):
    with pytest.raises(UsageError) as raised:
        convert(save_net, tmp_path, options={"route": route})
    assert raised.value.code == ("DK527" if route == "elsewhere" else "DK557")


@pytest.fixture
def save_net(tmp_path):
    import onnx

    text = '<ir_version: 9, opset_import: ["" : 19]> net (float[2,4] x) => (float[2,4] y) { y = Relu (x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"
