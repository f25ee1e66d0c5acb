"""The page at `/`, in a real browser, against a real server."""

from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from deploykit.graph import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploykit.artifact import Artifact

SOFTMAX = '<ir_version: 8, opset_import: ["" : 17]> scores (float[n,4] x) => (float[n,4] y) { y = Softmax(x) }'
MEAN = """<ir_version: 8, opset_import: ["" : 17]> colours (float[n,3,8,8] image) => (float[n,3] mean)
{ mean = ReduceMean<axes = [2, 3], keepdims = 0>(image) }"""
CONTRACT = {"image": {"preprocess": {"resize": [8, 8], "scale": 1 / 255}}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no chromium here")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[[Any], Any]]:
    pages = []

    def open_page(server: Any) -> Any:
        made = browser.new_page()
        made.problems = []
        made.on("console", lambda line: made.problems.append(line.text) if line.type == "error" else None)
        made.on("pageerror", lambda problem: made.problems.append(str(problem)))
        made.goto(f"http://127.0.0.1:{server.port}/")
        pages.append(made)
        return made

    yield open_page
    for page in pages:
        page.close()


def stated(path: Path) -> Path:
    """The model with a manifest that says how images become its input."""
    found: Artifact = describe(path)
    found.options["contract"] = CONTRACT
    found.manifest_path.write_text(json.dumps(found.manifest()), encoding="utf-8")
    return path


def picture(colour: tuple[int, int, int]) -> bytes:
    from PIL import Image

    kept = io.BytesIO()
    Image.new("RGB", (20, 10), colour).save(kept, "png")
    return kept.getvalue()


@pytest.fixture(scope="module")
def scores(start: Callable[..., Any], model_file: Callable[[str, str], Path]) -> Any:
    return start(model_file("scores", SOFTMAX))


@pytest.fixture(scope="module")
def colours(start: Callable[..., Any], model_file: Callable[[str, str], Path]) -> Any:
    return start(stated(model_file("colours", MEAN)))


def test_values_are_run_and_shown(visit: Callable[[Any], Any], scores: Any) -> None:
    page = visit(scores)
    field = page.get_by_label("x as JSON")
    assert json.loads(field.input_value()) == [[0, 0, 0, 0]]
    field.fill("[[0, 0, 2, 0]]")
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("output pre")
    expected = np.exp([0, 0, 2, 0]) / np.exp([0, 0, 2, 0]).sum()
    np.testing.assert_allclose(json.loads(page.text_content("output pre")), [expected], rtol=1e-6)
    assert page.locator("output tr").first.locator("td").first.text_content() == "2"  # the largest score first
    assert page.problems == []


@pytest.mark.parametrize(("typed", "told"), [("[[1, 2]]", "takes FP32 [n, 4]"), ("[[1,", "x: "), ('"a"', "x")])
def test_what_is_wrong_is_said_in_the_page(visit: Callable[[Any], Any], scores: Any, typed: str, told: str) -> None:
    page = visit(scores)
    page.get_by_label("x as JSON").fill(typed)
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("output .bad")
    assert told in page.text_content("output .bad")


def test_an_image_goes_through_the_contract(visit: Callable[[Any], Any], colours: Any) -> None:
    page = visit(colours)
    page.locator("input[type=file]").set_input_files(
        {"name": "a.png", "mimeType": "image/png", "buffer": picture((255, 51, 0))}
    )
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("output pre")
    np.testing.assert_allclose(json.loads(page.text_content("output pre")), [[1, 0.2, 0]], atol=1e-6)
    assert page.problems == []


def test_images_by_every_other_way(colours: Any) -> None:
    import base64

    red, png = [[1, 0, 0]], picture((255, 0, 0))
    text = base64.b64encode(png).decode()
    bodies = [
        (png, {"Content-Type": "image/png"}),
        (json.dumps({"image": text}), {}),
        (json.dumps({"image": f"data:image/png;base64,{text}"}), {}),
    ]
    for body, headers in bodies:
        got = colours.call("POST", "/predict", body, headers)
        np.testing.assert_allclose(got.json["mean"], red, atol=1e-6)
    for kind in ("http", "grpc"):
        triton = pytest.importorskip(f"tritonclient.{kind}")
        port = colours.port if kind == "http" else colours.ready_line["grpc"]
        x = triton.InferInput("image", [2], "BYTES")
        x.set_data_from_numpy(np.array([png, picture((0, 0, 255))], object))
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            made = client.infer("colours", [x]).as_numpy("mean")
        np.testing.assert_allclose(made, [[1, 0, 0], [0, 0, 1]], atol=1e-6)
    tensor = colours.call("POST", "/predict", {"image": np.ones((1, 3, 8, 8)).tolist()})
    np.testing.assert_allclose(tensor.json["mean"], [[1, 1, 1]])


def test_what_is_no_image_is_refused(colours: Any, scores: Any) -> None:
    png = {"Content-Type": "image/png"}
    got = colours.call("POST", "/predict", b"no image", png)
    assert (got.status, got.json["code"]) == (400, "DK712")
    assert "no image of a known format" in got.error
    assert colours.call("POST", "/predict", b"", png).status == 400
    assert colours.call("POST", "/predict", {"image": "!!"}).status == 400
    got = scores.call("POST", "/predict", picture((1, 2, 3)), png)
    assert (got.status, "takes no image" in got.error) == (400, True)
    row = {"name": "image", "datatype": "BYTES", "shape": [2], "data": ["aGk="]}
    got = colours.call("POST", "/v2/models/colours/infer", {"inputs": [row]})
    assert (got.status, "has 1 images, and its shape says 2" in got.error) == (400, True)


def test_names_of_the_model_cannot_change_the_page(
    visit: Callable[[Any], Any], start: Callable[..., Any], model_file: Callable[[str, str], Path]
) -> None:
    import onnx

    model = onnx.parser.parse_model(SOFTMAX)
    evil = '"><script>document.title="taken"</script>'
    model.graph.input[0].name = model.graph.node[0].input[0] = evil
    path = model_file("evil", SOFTMAX)
    onnx.save(model, path)
    page = visit(start(path))
    assert page.title() == "deploykit serve"
    page.get_by_role("button", name="Run").click()
    page.wait_for_selector("output pre")
    np.testing.assert_allclose(json.loads(page.text_content("output pre")), [[0.25] * 4])


def test_a_small_file_that_is_an_enormous_image_is_refused(colours: Any) -> None:
    from PIL import Image

    for size in ((12_000, 8_000), (20_000, 20_000)):
        kept = io.BytesIO()
        Image.new("1", size).save(kept, "png")
        got = colours.call("POST", "/predict", kept.getvalue(), {"Content-Type": "image/png"})
        assert (got.status, "more than 67,108,864 pixels" in got.error) == (400, True)
    assert colours.log()  # which reads every line as JSON
