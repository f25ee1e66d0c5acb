"""Each command calls the public function of its name with what was typed; checked against the real signature."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import deploykit
from deploykit.cli.app import COMMANDS, main
from deploykit.report import Report
from deploykit.target import resolve

# Command line -> (public function, what it must be given). "m.onnx" and the data files exist.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "export model.py:Net -o o.onnx --input x:float32[batch,3] --dim batch=1..4 --weights w.pt --arg width=8 --opset 18"
    " --exporter dynamo --seed 3": (
        "export",
        {
            "source": "model.py:Net",
            "output": Path("o.onnx"),
            "inputs": ("x:float32[batch,3]",),
            "dims": ("batch=1..4",),
            "weights": Path("w.pt"),
            "args": {"width": "8"},
            "opset": 18,
            "exporter": "dynamo",
            "seed": 3,
        },
    ),
    "simplify m.onnx -o o.onnx --engine onnxslim --max-growth 1.2 --dim batch=1 --force": (
        "simplify",
        {"model": Path("m.onnx"), "engine": "onnxslim", "max_growth": 1.2, "dims": ("batch=1",), "force": True},
    ),
    "check m.onnx --target openvino,coreml --to onnxruntime --dim batch=1..": (
        "check",
        {"model": Path("m.onnx"), "targets": ["openvino", "coreml", "onnxruntime"], "dims": ("batch=1..",)},
    ),
    "quantize m.onnx -o o.onnx --precision int8 --target openvino --calib d.npz --method mse --samples 9 --exclude Add"
    " --exclude conv_1 --keep-io --max-drop 0.5 --eval d.npz --metric top1": (
        "quantize",
        {
            "precision": "int8",
            "target": "openvino",
            "calib": "d.npz",
            "method": "mse",
            "samples": 9,
            "exclude": ("Add", "conv_1"),
            "keep_io": True,
            "max_drop": 0.5,
            "eval": "d.npz",
            "metric": "top1",
        },
    ),
    "convert m.onnx --to tensorrt-rtx -o o.engine --option sm=89,120 --profile x=1x3:4x3:8x3 --data d.npz"
    " --samples 4": (
        "convert",
        {
            "source": "m.onnx",
            "to": "tensorrt-rtx",
            "output": Path("o.engine"),
            "options": {"sm": "89,120"},
            "profiles": ("x=1x3:4x3:8x3",),
            "data": "d.npz",
            "samples": 4,
        },
    ),
    "validate m.onnx n.onnx --data d.npz --samples 8 --rtol 0.1 --atol 0.2 --min-sqnr 30 --eval d.npz --metric f1"
    " --label answer": (
        "validate",
        {
            "reference": Path("m.onnx"),
            "candidate": Path("n.onnx"),
            "data": "d.npz",
            "samples": 8,
            "rtol": 0.1,
            "atol": 0.2,
            "min_sqnr": 30.0,
            "eval": "d.npz",
            "metric": "f1",
            "label": "answer",
        },
    ),
    "bench m.onnx n.onnx --batch 4 --threads 2 --seconds 0.5 --max-p99-ms 20 --min-throughput 5 --max-size-mb 9"
    " --max-rss-mb 300": (
        "bench",
        {
            "artifacts": (Path("m.onnx"), Path("n.onnx")),
            "batch": 4,
            "threads": 2,
            "seconds": 0.5,
            "max_p99_ms": 20.0,
            "min_throughput": 5.0,
            "max_size_mb": 9.0,
            "max_rss_mb": 300.0,
        },
    ),
    "serve m.onnx --name digits --host 0.0.0.0 --http-port 0 --max-body-mb 2": (
        "serve",
        {"artifact": Path("m.onnx"), "name": "digits", "host": "0.0.0.0", "http_port": 0, "max_body_mb": 2.0},
    ),
    "package m.onnx --as repository -o out --name digits --max-batch 8 --data d.npz": (
        "package",
        {
            "artifact": Path("m.onnx"),
            "as_": "repository",
            "output": Path("out"),
            "name": "digits",
            "max_batch": 8,
            "data": "d.npz",
        },
    ),
    "run m.onnx --to openvino,coreml --precision int8,fp16 --calib d.npz --eval d.npz --output out --only quantize"
    " --no-cache --dry-run": (
        "run",
        {
            "source": "m.onnx",
            "to": ("openvino", "coreml"),
            "precision": ("int8", "fp16"),
            "calib": "d.npz",
            "eval": "d.npz",
            "output": Path("out"),
            "only": ("quantize",),
            "no_cache": True,
            "dry_run": True,
        },
    ),
    "run deploykit.yaml": ("run", {"source": "deploykit.yaml", "to": (), "output": None}),
    "inspect m.onnx": ("inspect", {"file": Path("m.onnx")}),
    "doctor": ("doctor", {}),
    "targets": ("targets", {}),
    "explain DK801": ("explain", {"code": "DK801"}),
    "explain": ("explain", {"code": None}),
    "init m.onnx -o new.yaml": ("init", {"model": "m.onnx", "output": Path("new.yaml")}),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("m.onnx", "n.onnx", "d.npz", "w.pt", "deploykit.yaml", "model.py"):
        (tmp_path / name).write_text("never read", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("call", CALLS, ids=lambda call: " ".join(call.split()[:4]))
def test_a_command_calls_its_function(folder: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    name, expected = CALLS[call]
    reference = deploykit._PUBLIC[name]
    signature = inspect.signature(resolve(reference))
    given: dict[str, Any] = {}

    def record(*args: Any, **kwargs: Any) -> Report:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given.update(bound.arguments)
        return Report(name)

    monkeypatch.setattr(deploykit, name, record, raising=False)
    assert main([*call.split(), "--quiet"]) == 0
    # The first parameter's name is the function's own affair.
    first = next(iter(signature.parameters), None)
    positional = next(iter(expected), None)
    for option, value in expected.items():
        got = given[first] if option == positional and option not in given else given[option]
        assert got == value, option


def test_every_command_is_called_above() -> None:
    assert {name for name, _ in CALLS.values()} == set(COMMANDS) == set(deploykit._PUBLIC)


def test_the_stages_and_precisions_of_run_are_those_of_the_pipeline() -> None:
    from typing import get_args

    from deploykit.cli import run
    from deploykit.pipeline import plan, sections

    assert run.STAGES == plan.STAGES
    assert tuple(name for part in get_args(sections.Precision) for name in get_args(part)) == run.PRECISIONS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_common_options(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    call = next(call for call, (function, _) in CALLS.items() if function == name)
    monkeypatch.setattr(deploykit, name, lambda *args, **kwargs: Report(name), raising=False)
    common = ["--quiet", "--verbose", "--force", "--strict", "--report", "r.json", "--seed", "7"]
    assert main([*call.split(), *common]) == 0
    assert (folder / "r.json").exists()
