import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.graph.scopes import scope_of

PLACEHOLDER = "_empty_nn_module_stack_from_metadata_hook"  # written by PyTorch for nodes of no module


def node(name="n", op="MatMul", **metadata):
    keys = {"names": "pkg.torch.onnx.name_scopes", "classes": "pkg.torch.onnx.class_hierarchy"}
    return ir.Node("", op, [], name=name, metadata_props={keys[key]: text for key, text in metadata.items()})


@pytest.mark.parametrize(
    ("names", "classes", "expected"),
    [
        ("['', 'enc', 'enc.attn', 'mm']", "['m.Net', 'm.Enc', 'm.Attention', 'aten.mm']", "enc.attn (Attention)"),
        ("['', 'relu']", "['m.Net', 'aten.relu.default']", "Net"),
        ("['', 'enc', 'mm']", "", "enc"),
        (f"['', '{PLACEHOLDER}', 'sym_size']", f"['m.Net', '{PLACEHOLDER}', 'aten.sym_size.int']", None),
        ("['', 'enc', 'mm']", "['m.Net']", "enc"),  # another tool cut it: no class is better than a wrong one
        ("['', 'enc', __import__('os')]", "", None),
        ("{'a': 1}", "", None),
        ("['', 1, 'mm']", "", None),
        ("[" * 5000, "", None),
        ("['" + "a" * 20_000 + "', 'mm']", "", None),
    ],
)
def test_the_scope_that_the_dynamo_exporter_records(names, classes, expected):
    assert scope_of(node(names=names, classes=classes)) == expected


@pytest.mark.parametrize(
    ("name", "op", "expected"),
    [
        ("/encoder/layers.0/attention/MatMul_2", "MatMul", "encoder.layers.0.attention"),
        ("/features/features.0/block/Conv", "Conv", "features.0.block"),
        ("/Relu", "Relu", None),
        ("/encoder/MatMul", "Conv", None),
        ("model/encoder/MatMul", "MatMul", None),
        ("/a b/MatMul", "MatMul", None),
        ("/../../MatMul", "MatMul", None),
        ("", "MatMul", None),
    ],
)
def test_the_scope_in_the_names_of_the_torchscript_exporter(name, op, expected):
    assert scope_of(node(name, op)) == expected


@pytest.mark.parametrize(
    ("exporter", "engine"),
    [("dynamo", "native"), ("torchscript", "native"), ("dynamo", "onnxsim"), ("dynamo", "onnxslim")],
)
def test_scopes_of_an_exported_module_survive_simplifying(exporter, engine, deploykit_cli, tmp_path):
    pytest.importorskip("torch")
    if engine != "native":
        pytest.importorskip(engine)
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "class Block(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(4, 4)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x).erf()\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.blocks = nn.Sequential(Block(), Block())\n"
        "    def forward(self, x):\n"
        "        return self.blocks(x)\n"
    )
    made = ["-o", "net.onnx", "--exporter", exporter, "--input", "x:float32[2,3,4]"]
    assert deploykit_cli("export", "net.py:Net", *made, cwd=tmp_path).code == 0
    done = deploykit_cli("simplify", "net.onnx", "-o", "small.onnx", "--engine", engine, cwd=tmp_path)
    assert done.code == 0, done.stderr
    for name in ("net.onnx", "small.onnx"):
        found = {n.op_type: [] for n in graph.load(tmp_path / name).graph}
        for n in graph.load(tmp_path / name).graph:
            found[n.op_type].append(scope_of(n))
        kind = " (Block)" if exporter == "dynamo" else ""
        assert found["Erf"] == [f"blocks.0{kind}", f"blocks.1{kind}"]
        assert set(found["MatMul"]) == {f"blocks.{i}.fc{' (Linear)' if kind else ''}" for i in (0, 1)}
