"""How modules are called and what they return: nested and missing inputs, structured outputs; what is random."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import onnxruntime
import pytest
import torch

import deploykit
from deploykit.errors import ModelError, UsageError
from deploykit.isolation import workers

MODULES = """
import dataclasses
from typing import NamedTuple, Optional

import torch
from torch import nn


@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    extra: Optional[torch.Tensor] = None


class Pair(NamedTuple):
    p: torch.Tensor
    q: torch.Tensor


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, batch: dict, pair: tuple[torch.Tensor, Optional[torch.Tensor]], mask=None, scale=2.0):
        a, b = pair
        y = self.head(batch["image"]) + batch["inner"]["bias"] * a
        y = y if b is None else y + b
        y = y if mask is None else y * mask
        return {"y": y, "z": [y * scale, None, (a + 1,)]}


class Structures(nn.Module):
    def forward(self, p: Pair, q: list[torch.Tensor], o: Out, missing: Optional[torch.Tensor]):
        return Out(p.p - p.q + q[0] * o.logits, None if missing is None else q[1])


class Keywords(nn.Module):
    def forward(self, x, *, bias, **more):
        return x + bias * more["extra"]


class Unused(nn.Module):
    def forward(self, x, y):
        return x * 2


class SqueezeTrap(nn.Module):
    def forward(self, x):
        return x.reshape(int(x.shape[0]) * 4)


class FrozenTrace(nn.Module):
    def forward(self, x, y):
        return x[:, : len(list(x[0]))] * 2, y


class Cond(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 4, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]


class AlwaysDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5)


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen = self.seen + 1
        return x + self.seen


class BatchStatistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, x):
        return self.norm(x)
"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    file = tmp_path_factory.mktemp("calls") / "calls.py"
    file.write_text(MODULES)
    return lambda name: f"{file}:{name}"


def run(path, feeds):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feeds), strict=True))


def names(specs):
    return [spec.name for spec in specs]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_places_in_dicts_and_tuples_are_named(source, tmp_path, exporter):
    out = tmp_path / "x.onnx"
    inputs = ["batch.image:float32[n,4]", "batch.inner.bias:float32[4]", "pair.0:float32[n,4]"]
    report = deploykit.export(source("Nested"), output=out, inputs=inputs, exporter=exporter)
    assert report.exit_code == 0, report.findings
    assert names(report.artifact.inputs) == ["batch.image", "batch.inner.bias", "pair.0"]
    assert names(report.artifact.outputs) == ["y", "z_0", "z_2_0"]
    a = np.full((3, 4), 5, np.float32)
    found = run(out, {"batch.image": a, "batch.inner.bias": a[0], "pair.0": a})
    np.testing.assert_array_equal(found["z_2_0"], a + 1)
    np.testing.assert_array_equal(found["z_0"], found["y"] * 2)
    import onnx

    assert {"head.weight", "head.bias"} & {value.name for value in onnx.load(out).graph.initializer}


def test_annotated_structures_are_made(source, tmp_path):
    inputs = ["p.p:float32[n]", "p.q:float32[n]", "q.0:float32[n]", "q.1:float32[n]", "o.logits:float32[n]"]
    report = deploykit.export(source("Structures"), output=tmp_path / "x.onnx", inputs=inputs)
    assert report.exit_code == 0
    assert names(report.artifact.outputs) == ["logits"]
    ones = np.ones(2, np.float32)
    feeds = {"p.p": 5 * ones, "p.q": ones, "q.0": 3 * ones, "q.1": ones, "o.logits": 2 * ones}
    np.testing.assert_array_equal(run(tmp_path / "x.onnx", feeds)["logits"], [10, 10])


def test_keyword_only_and_open_keywords(source, tmp_path):
    inputs = ["x:float32[n,4]", "bias:float32[4]", "extra:float32[n,4]"]
    report = deploykit.export(source("Keywords"), output=tmp_path / "x.onnx", inputs=inputs)
    assert report.exit_code == 0
    assert names(report.artifact.inputs) == ["x", "bias", "extra"]


def test_what_is_missing_is_named_with_its_form(source, tmp_path):
    with pytest.raises(UsageError) as raised:
        deploykit.export(source("Nested"), output=tmp_path / "x.onnx", inputs=["batch.image:float32[n,4]"])
    assert raised.value.code == "DK620"
    assert "'pair'" in raised.value.message
    assert "pair.0:float32" in raised.value.hint


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_an_unused_input_stays(source, tmp_path, exporter):
    out = tmp_path / "x.onnx"
    report = deploykit.export(source("Unused"), output=out, inputs=["x:float32[n,4]", "y:int64[n]"], exporter=exporter)
    assert report.exit_code == 0
    assert [(spec.name, spec.dtype, spec.shape) for spec in report.artifact.inputs] == [
        ("x", "float32", ("n", 4)),
        ("y", "int64", ("n",)),
    ]
    assert "DK619" in {finding.code for finding in report.findings}
    run(out, {"x": np.ones((2, 4), np.float32), "y": np.ones(2, np.int64)})


def test_a_frozen_dimension_is_named_and_not_the_free_one(source, tmp_path):
    report = deploykit.export(
        source("FrozenTrace"),
        output=tmp_path / "x.onnx",
        inputs=["x:float32[batch,length]", "y:float32[other]"],
        dims=["length=1..9"],
        exporter="torchscript",
    )
    assert report.exit_code == 1
    blamed = [finding.message for finding in report.findings if finding.code == "DK688"]
    assert len(blamed) == 1
    assert [finding.code for finding in report.findings if finding.severity == "error"] == ["DK688"], "said once"
    assert "'length'" in blamed[0]
    assert "right at" in blamed[0]
    assert not list(tmp_path.glob("*"))


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("AlwaysDropout", "DK685", "nn.functional.dropout(x, 0.5)"),
        ("Stateful", "DK685", ""),
        ("BatchStatistics", "DK686", "self.norm(x)"),
    ],
)
def test_what_differs_from_run_to_run_or_mixes_samples_fails(source, tmp_path, name, code, said):
    report = deploykit.export(source(name), output=tmp_path / "x.onnx", inputs=["x:float32[batch,4]"])
    assert report.exit_code == 1
    assert report.error.code == code
    assert said in " ".join(report.error.context)
    assert report.error.hint
    assert not list(tmp_path.glob("*"))


def test_every_dimension_is_proven_at_its_bounds_and_at_one(source, tmp_path):
    report = deploykit.export(
        source("Unused"),
        output=tmp_path / "x.onnx",
        inputs=["x:float32[n,m]", "y:float32[k]"],
        dims=["n=1..40", "m=3..5"],
    )
    proven = report.metrics["parity"]["proven"]
    assert {1, 40} < set(proven["n"])
    assert set(proven["m"]) == {3, 4, 5}
    assert len(proven["k"]) >= 3


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 26 * 26, 3)], (1, 28, 28)),
        ([torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1)], (3, "input_2", "input_3")),
        ([torch.nn.Linear(7, 3)], (7,)),
    ],
)
def test_inputs_of_torchscript_are_read_off_the_graph(tmp_path, layers, expected):
    module = torch.nn.Sequential(*layers).eval()
    torch.jit.script(module).save(str(tmp_path / "net.pt"))
    (tmp_path / "out").mkdir()
    report = deploykit.export(tmp_path / "net.pt", output=tmp_path / "out" / "x.onnx")
    assert report.exit_code == 0, report.findings
    assert report.artifact.inputs[0].shape == ("batch", *expected)
    assert "DK690" in {finding.code for finding in report.findings}


def test_a_stateful_torchscript_module_names_its_state_and_its_part_is_exported(shared_model, tmp_path):
    path = shared_model("silero_vad/silero_vad.jit")
    report = deploykit.export(path, output=tmp_path / "x.onnx", inputs=["x:float32[batch,512]"], args={"sr": 16000})
    assert (report.exit_code, report.error.code) == (1, "DK685")
    assert "self._state = " in " ".join(report.error.context)
    part = tmp_path / "part.py"
    part.write_text(f"import torch\n\n\ndef part():\n    return torch.jit.load({str(path)!r})._model\n")
    report = deploykit.export(
        f"{part}:part",
        output=tmp_path / "part.onnx",
        inputs=["x:float32[batch,576]", "state:float32[2,batch,128]"],
    )
    assert report.exit_code == 0, report.findings
    assert report.artifact.outputs[1].shape[1] == "batch"


def test_exported_programs_keep_their_structure_and_their_constants(tmp_path):
    class Net(torch.nn.Module):
        def forward(self, batch, pair, *, bias=None, times=2):
            y = batch["a"] * pair[0] + pair[1] * times
            return {"y": y if bias is None else y + bias}

    n = torch.export.Dim("n", min=1, max=9)
    tensors = [torch.randn(3, 4) for _ in range(3)]
    shapes = {"batch": {"a": {0: n}}, "pair": ({0: n}, {0: n}), "bias": None, "times": None}
    args = ({"a": tensors[0]}, (tensors[1], tensors[2]))
    program = torch.export.export(Net(), args, kwargs={"bias": None, "times": 3}, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "net.pt2")
    (tmp_path / "out").mkdir()
    report = deploykit.export(tmp_path / "net.pt2", output=tmp_path / "out" / "x.onnx")
    assert report.exit_code == 0, report.findings
    assert names(report.artifact.inputs) == ["batch_a", "pair_0", "pair_1"]
    assert names(report.artifact.outputs) == ["y"]
    a, b, c = (tensor.numpy() for tensor in tensors)
    found = run(tmp_path / "out" / "x.onnx", {"batch_a": a, "pair_0": b, "pair_1": c})
    np.testing.assert_allclose(found["y"], a * b + c * 3, rtol=1e-5, atol=1e-6)
    (proven,) = report.metrics["parity"]["proven"].values()
    assert {1, 9} < set(proven)


@pytest.mark.parametrize("kind", ["program", "trace"])
def test_training_mode_that_a_file_has_kept_is_found(tmp_path, kind):
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout()).train()
    x = torch.randn(3, 4)
    if kind == "program":
        torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    else:
        torch.jit.trace(net, x, check_trace=False).save(str(tmp_path / "net.pt"))
    file = tmp_path / ("net.pt2" if kind == "program" else "net.pt")
    (tmp_path / "out").mkdir()
    options = {} if kind == "program" else {"inputs": ["x:float32[n,4]"]}
    report = deploykit.export(file, output=tmp_path / "out" / "x.onnx", **options)
    assert (report.exit_code, report.error.code) == (1, "DK685")
    assert "bernoulli" in " ".join(report.error.context)


def test_a_branch_in_the_graph_is_taken_both_ways(source, tmp_path):
    report = deploykit.export(source("Cond"), output=tmp_path / "x.onnx", inputs=["x:float32[3]"])
    assert report.exit_code == 0, report.findings
    for sign in (1, -1):
        x = np.full(3, 3 * sign, np.float32)
        np.testing.assert_array_equal(run(tmp_path / "x.onnx", {"x": x})["output"], x * 2 if sign > 0 else x - 1)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_outputs_declare_the_sizes_that_they_follow(source, tmp_path, exporter):
    out = tmp_path / "x.onnx"
    report = deploykit.export(source("Recurrent"), output=out, inputs=["x:float32[b,length,8]"], exporter=exporter)
    assert report.exit_code == 0
    assert report.artifact.outputs[0].shape == ("b", "length", 4)
    assert run(out, {"x": np.ones((2, 9, 8), np.float32)})["output"].shape == (2, 9, 4)


def test_a_program_of_another_format_says_who_saved_it(tmp_path):
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.ones(2, 4),)), tmp_path / "now.pt2")
    with zipfile.ZipFile(tmp_path / "now.pt2") as now, zipfile.ZipFile(tmp_path / "then.pt2", "w") as then:
        for name in now.namelist():
            data = now.read(name)
            if name.endswith("models/model.json"):
                facts = json.loads(data)
                facts |= {"schema_version": {"major": 99, "minor": 1}, "torch_version": "9.9.0"}
                data = json.dumps(facts).encode()
            then.writestr(name, data)
    with pytest.raises(ModelError) as refused:
        deploykit.export(tmp_path / "then.pt2", output=tmp_path / "x.onnx")
    assert refused.value.code == "DK611"
    assert list(refused.value.context) == ["it was saved by PyTorch 9.9.0, in format 99.1"]


def test_the_module_of_torchscript_may_be_called_otherwise_than_self(tmp_path):
    class Net(torch.nn.Module):
        def forward(this, x):  # noqa: N805
            return x.relu() + 1

    torch.jit.script(Net()).save(str(tmp_path / "net.pt"))
    report = deploykit.export(tmp_path / "net.pt", output=tmp_path / "net.onnx", inputs=["x:float32[n,4]"])
    assert report.exit_code == 0
    assert [spec.name for spec in report.artifacts[0].inputs] == ["x"]
