"""Help and typical errors, letter by letter. To accept a change: DEPLOYKIT_UPDATE_GOLDEN=1 make test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deploykit.cli.app import COMMANDS

if TYPE_CHECKING:
    from pathlib import Path

ERRORS: dict[str, tuple[str, int]] = {
    "unknown_command": ("chekc model.onnx", 2),
    "unknown_option": ("check model.onnx --targt openvino", 2),
    "wrong_choice": ("quantize model.onnx -o out.onnx --precision int7", 2),
    "not_a_number": ("bench model.onnx --batch many", 2),
    "too_small": ("bench model.onnx --batch=0", 2),
    "too_large": ("serve model.onnx --http-port 70000", 2),
    "missing_argument": ("validate model.onnx", 2),
    "missing_option": ("convert model.onnx -o out.xml", 2),
    "missing_file": ("inspect gone.onnx", 2),
    "a_folder": ("simplify . -o out.onnx", 2),
    "an_empty_file": ("simplify empty.onnx -o out.onnx", 2),
    "not_onnx": ("check notes.txt --target all", 2),
    "unknown_target": ("check model.onnx --target tensort-rtx", 2),
    "unknown_target_version": ("check model.onnx --target openvino@2020", 2),
    "unknown_target_option": ("convert model.onnx --to coreml -o out.mlpackage --option minimum_target=iOS17", 2),
    "wrong_suffix": ("convert model.onnx --to openvino -o out.onnx", 2),
    "output_exists": ("simplify model.onnx -o model.onnx", 2),
    "output_folder_missing": ("simplify model.onnx -o nowhere/out.onnx", 2),
    "int8_without_data": ("quantize model.onnx -o out.onnx --precision int8", 2),
    "source_without_targets": ("run model.onnx", 2),
    "report_format": ("doctor --report report.pdf", 2),
    "unknown_code": ("explain DK999", 2),
}


@pytest.mark.parametrize("name", ["deploykit", *COMMANDS])
def test_help(deploykit_cli, golden, name: str) -> None:
    done = deploykit_cli(*([] if name == "deploykit" else [name]), "--help")
    assert (done.code, done.stderr) == (0, "")
    assert "Example: deploykit " in done.stdout
    golden(f"help/{name}.txt", done.stdout)


@pytest.mark.parametrize("name", ERRORS)
def test_error(deploykit_cli, golden, tmp_path: Path, name: str) -> None:
    for file in ("model.onnx", "notes.txt"):
        (tmp_path / file).write_text("never read", encoding="utf-8")
    (tmp_path / "empty.onnx").touch()
    call, code = ERRORS[name]
    done = deploykit_cli(*call.split(), cwd=tmp_path)
    assert (done.code, done.stdout) == (code, "")
    golden(f"errors/{name}.txt", f"$ deploykit {call}\n{done.stderr}")
