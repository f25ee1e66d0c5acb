import json

import pytest

import deploykit
from deploykit.converters.onnxruntime_web.folder import MARKER
from deploykit.converters.onnxruntime_web.inspect import describe
from deploykit.errors import ModelError
from deploykit.target import format_of

RELU = "agraph (float[N,4] x) => (float[N,4] y) { [relu] y = Relu (x) }"


def changed(folder, **facts):
    marker = folder / MARKER
    marker.write_text(json.dumps({**json.loads(marker.read_text()), **facts}))


def test_folder_is_known_by_its_marker_and_says_what_is_in_it(onnx_file, page):
    folder, _ = page(onnx_file(RELU))
    assert format_of(folder) == "onnxruntime-web"
    report = deploykit.inspect(folder)
    assert report.artifact.format == report.artifact.target == "onnxruntime-web"
    assert [spec.describe() for spec in report.artifact.inputs] == ["float32 [N, 4]"]
    assert report.metrics["backend"] == "wasm"
    assert report.metrics["changed_scripts"] == []
    assert {"index.html", "model.onnx", "run.mjs", "package.json"} <= set(report.metrics["files"])


def test_scripts_that_were_changed_are_named(onnx_file, page):
    folder, _ = page(onnx_file(RELU))
    (folder / "page.mjs").write_text("alert(1)")
    (folder / "run.mjs").unlink()
    assert describe(folder)["changed_scripts"] == ["page.mjs", "run.mjs"]


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"schema": "other/1"}, "DK528"),
        ({"backend": "cuda"}, "DK528"),
        ({"external": ["gone.bin"]}, "DK528"),
        ({"external": None}, "DK528"),
        ({"model": "../secret.onnx"}, "DK113"),
        ({"external": ["/etc/hostname"]}, "DK113"),
    ],
)
def test_marker_that_lies_is_refused(onnx_file, page, facts, code):
    folder, _ = page(onnx_file(RELU))
    changed(folder, **facts)
    with pytest.raises(ModelError) as caught:
        describe(folder)
    assert caught.value.code == code


def test_marker_that_is_no_json_is_refused(onnx_file, page):
    folder, _ = page(onnx_file(RELU))
    (folder / MARKER).write_text("{")
    with pytest.raises(ModelError, match="not a whole") as caught:
        describe(folder)
    assert caught.value.code == "DK528"
