"""Extension libraries, for real: onnxruntime-extensions' operators, and an OpenVINO extension compiled here."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import onnx
import pytest
from onnx import parser

import deploykit
from deploykit.api.extensions import digests, extension_libraries, with_extensions
from deploykit.artifact import read_manifest
from deploykit.errors import InvalidFileError, UsageError
from deploykit.isolation import workers
from deploykit.target import get_target

WORDS = """<ir_version: 10, opset_import: ["": 20, "ai.onnx.contrib": 1]>
agraph (string[2] x) => (string[2] z) { [up] y = ai.onnx.contrib.StringUpper (x) [low] z = Identity (y) }"""
NUMBERS = """<ir_version: 10, opset_import: ["": 20, "my.ops": 1]>
agraph (float[n,3] x) => (float[n,3] z) { [twice] y = my.ops.Twice (x) [relu] z = Relu (y) }"""
EXTENSION = """
#include <openvino/core/extension.hpp>
#include <openvino/frontend/onnx/extension/conversion.hpp>
#include <openvino/op/constant.hpp>
#include <openvino/op/multiply.hpp>

static ov::OutputVector twice(const ov::frontend::NodeContext& node) {
    auto x = node.get_input(0);
    auto two = ov::op::v0::Constant::create(x.get_element_type(), ov::Shape{}, {2});
    return {std::make_shared<ov::op::v1::Multiply>(x, two)};
}

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({
    std::make_shared<ov::frontend::onnx::ConversionExtension>("Twice", "my.ops", twice)}));
"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers():
        yield


@pytest.fixture(scope="module")
def words_library():
    return pytest.importorskip("onnxruntime_extensions").get_library_path()


@pytest.fixture(scope="module")
def openvino_library(tmp_path_factory):
    """An OpenVINO extension with one operator, built with the headers that OpenVINO's wheel brings."""
    home = Path(pytest.importorskip("openvino").__file__).parent
    compiler = shutil.which("g++")
    if compiler is None or not (home / "include" / "openvino" / "frontend" / "onnx").is_dir():
        pytest.skip("no C++ compiler, or an OpenVINO without headers")
    folder = tmp_path_factory.mktemp("extension")
    (folder / "twice.cpp").write_text(EXTENSION)
    libraries = [f"-l:{found.name}" for name in ("onnx_frontend", "") for found in _shared(home, name)]
    command = [compiler, "-std=c++17", "-shared", "-fPIC", f"-I{home}/include", "twice.cpp", "-o", "libtwice.so"]
    subprocess.run([*command, f"-L{home}/libs", *libraries], cwd=folder, check=True, timeout=300)
    return folder / "libtwice.so"


def _shared(home, name):
    return list((home / "libs").glob(f"libopenvino{f'_{name}' if name else ''}.so.*"))[:1]


def written(tmp_path, text, name="model.onnx"):
    onnx.save(parser.parse_model(text), tmp_path / name)
    return tmp_path / name


def refusals(report):
    return {finding.node: finding for finding in report.findings if finding.code == "DK201"}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt-rtx"])
def test_without_a_library_the_node_is_named_and_the_hint_says_how_to_give_one(target, tmp_path):
    pytest.importorskip(get_target(target).packages[0])
    found = refusals(deploykit.check(written(tmp_path, NUMBERS), targets=[target]))["twice"]
    assert found.op == "Twice"
    assert "my.ops.Twice" in found.message
    assert "--custom-ops FILE" in found.hint


def test_a_target_without_libraries_does_not_advise_one(tmp_path):
    pytest.importorskip("coremltools")
    found = refusals(deploykit.check(written(tmp_path, NUMBERS), targets=["coreml"]))["twice"]
    assert "--custom-ops" not in found.hint


def test_an_operator_of_the_standard_is_not_looked_for_in_a_library(tmp_path):
    pytest.importorskip("openvino")
    text = """<ir_version: 10, opset_import: ["": 20]> agraph (float[2,2] x) => (float d) { [det] d = Det (x) }"""
    found = refusals(deploykit.check(written(tmp_path, text), targets=["openvino"]))["det"]
    assert "--custom-ops" not in found.hint


def test_onnxruntime_runs_operators_of_a_library(words_library, tmp_path):
    model = written(tmp_path, WORDS)
    assert deploykit.check(model, targets=["onnxruntime"]).exit_code == 1
    report = deploykit.check(model, targets=["onnxruntime"], custom_ops=words_library)
    assert report.exit_code == 0, report.findings
    assert report.metrics["targets"][0]["supported"] == 2
    assert not [f for f in report.findings if f.code == "DK217"]  # a table knows nothing of the library


def test_what_a_library_has_is_supported_beside_what_nobody_has(words_library, tmp_path):
    text = WORDS.replace("[low] z = Identity (y)", "[no] z = ai.onnx.contrib.NoSuchThing (x)")
    found = refusals(deploykit.check(written(tmp_path, text), targets=["onnxruntime"], custom_ops=words_library))
    assert set(found) == {"no"}


def test_a_probe_uses_the_library(words_library, tmp_path):
    text = WORDS.replace("[low] z = Identity (y)", "[no] z = ai.onnx.contrib.NoSuchThing (x)")
    model = written(tmp_path, text)
    saved = deploykit.check(
        model, targets=["onnxruntime"], custom_ops=words_library, probe=True, save_nodes=tmp_path / "nodes"
    ).metrics["saved_nodes"]
    assert [entry["node"] for entry in saved] == ["no"]
    assert f"--custom-ops {words_library}" in saved[0]["command"]


def test_convert_validate_and_bench_take_the_library(words_library, tmp_path):
    model, made = written(tmp_path, WORDS), tmp_path / "made.onnx"
    assert deploykit.convert(model, to="onnxruntime", output=made).failed
    report = deploykit.convert(model, to="onnxruntime", output=made, custom_ops=words_library)
    assert report.exit_code == 0, report.findings
    assert report.metrics["parity"]["parent"]["outputs"][0]["exact"] is True
    # The manifest names the library by its content: its path differs from machine to machine.
    options = read_manifest(made).options
    assert options["custom_ops"] == digests({"onnxruntime": words_library})
    assert deploykit.validate(model, made, custom_ops=words_library).exit_code == 0
    (row,) = deploykit.bench(made, seconds=0.1, custom_ops=words_library).metrics["rows"]
    assert row["execution"] == "real"


def test_serve_takes_the_library(words_library, tmp_path):
    model = written(tmp_path, WORDS)
    command = [
        sys.executable,
        "-m",
        "deploykit",
        "serve",
        str(model),
        "--http-port",
        "0",
        "--custom-ops",
        words_library,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            port = json.loads(server.stdout.readline())["http"]
            body = {"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": ["ab", "c"]}]}
            answer = httpx.post(f"http://127.0.0.1:{port}/v2/models/model/infer", json=body, timeout=30).json()
        finally:
            server.terminate()
    assert answer["outputs"][0]["data"] == ["AB", "C"]


def test_openvino_converts_operators_of_an_extension(openvino_library, tmp_path):
    model = written(tmp_path, NUMBERS)
    assert deploykit.check(model, targets=["openvino"]).exit_code == 1
    assert deploykit.check(model, targets=["openvino"], custom_ops=openvino_library).exit_code == 0
    report = deploykit.convert(model, to="openvino", output=tmp_path / "m.xml", custom_ops=openvino_library)
    assert report.exit_code == 0, report.findings
    (told,) = [f for f in report.findings if f.code == "DK502"]  # there is no reference to compare with
    assert "the reference lacks the custom operators" in told.message
    plain = NUMBERS.replace("my.ops.Twice (x)", "Add (x, x)")
    report = deploykit.validate(written(tmp_path, plain, "plain.onnx"), tmp_path / "m.xml")
    assert report.metrics["outputs"][0]["exact"] is True


def test_each_target_gets_its_own_library(openvino_library, words_library, tmp_path):
    model = written(tmp_path, NUMBERS)
    given = [f"openvino={openvino_library}", f"onnxruntime={words_library}"]
    report = deploykit.check(model, targets=["openvino", "onnxruntime"], custom_ops=given)
    verdicts = {row["name"]: row["verdict"] for row in report.metrics["targets"]}
    assert verdicts == {"openvino": "runs whole", "onnxruntime": "does not run"}


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt-rtx"])
def test_a_library_that_does_not_load_is_one_clear_error(target, tmp_path):
    pytest.importorskip(get_target(target).packages[0])
    library = tmp_path / "no.so"
    library.write_text("this is no library")
    with pytest.raises(UsageError) as caught:
        deploykit.check(written(tmp_path, NUMBERS), targets=[target], custom_ops=library)
    assert caught.value.code == "DK231"
    assert str(library) in caught.value.message
    assert "--custom-ops takes a" in caught.value.hint


def test_a_library_without_plugins_is_none_for_tensorrt(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    compiler = shutil.which("gcc") or pytest.skip("no C compiler")
    (tmp_path / "empty.c").write_text("int nothing(void) { return 0; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "empty.c", "-o", "empty.so"], cwd=tmp_path, check=True)
    with pytest.raises(UsageError) as caught:
        deploykit.check(written(tmp_path, NUMBERS), targets=["tensorrt-rtx"], custom_ops=tmp_path / "empty.so")
    assert caught.value.code == "DK231"


ORT, OPENVINO, COREML = map(get_target, ("onnxruntime", "openvino", "coreml"))


def test_a_file_is_for_the_only_target_that_has_libraries(tmp_path):
    library = tmp_path / "a=b.so"
    library.write_text("x")
    assert extension_libraries(library, [ORT, COREML, None]) == {"onnxruntime": str(library)}
    assert extension_libraries([f"openvino={library}"], [ORT, OPENVINO]) == {"openvino": str(library)}
    assert extension_libraries({"openvino": library}, [OPENVINO]) == {"openvino": str(library)}
    assert extension_libraries(None, [ORT]) == {}
    assert with_extensions({"openvino": {"a": 1}}, {"openvino": "l"}) == {"openvino": {"a": 1, "custom_ops": "l"}}


@pytest.mark.parametrize(
    ("given", "targets", "message"),
    [
        ("{file}", [ORT, OPENVINO], "it is not clear which: onnxruntime or openvino"),
        ("{file}", [COREML], "no target that is asked for has extension libraries"),
        ("coreml={file}", [ORT, COREML], "Core ML has no extension libraries"),
        ("openvino={file}", [ORT], "target 'openvino' is not asked for"),
        (["{file}", "onnxruntime={file}"], [ORT], "names two libraries for onnxruntime"),
    ],
)
def test_a_library_that_nobody_would_load_is_refused(given, targets, message, tmp_path):
    (tmp_path / "l.so").write_text("x")
    texts = [text.format(file=tmp_path / "l.so") for text in ([given] if isinstance(given, str) else given)]
    with pytest.raises(UsageError, match=message) as caught:
        extension_libraries(texts, targets)
    assert caught.value.code == "DK232"


def test_a_library_has_to_be_there(tmp_path):
    with pytest.raises(InvalidFileError, match="no such extension library"):
        extension_libraries(tmp_path / "no.so", [ORT])


def test_the_case_of_a_plugin_operator_in_the_default_domain(shared, deploykit_cli, tmp_path):
    """As its `expect` says, with the exit codes of the command line's contract: refusals are 1."""
    model = shared / "cases" / "custom_op_default_domain.onnx"
    done = deploykit_cli("check", model, "--target", "onnxruntime", "--json")
    assert done.code == 1
    found = {f["node"]: f for f in done.json["findings"] if f["code"] == "DK201"}
    assert found["nms_plugin"]["op"] == "BatchedNMS_TRT"
    assert "--custom-ops" in found["nms_plugin"]["hint"]
    for target, suffix in (("onnxruntime", ".onnx"), ("openvino", ".xml"), ("coreml", ".mlpackage")):
        out = tmp_path / f"out{suffix}"
        done = deploykit_cli("convert", model, "--to", target, "-o", out, "--json")
        if done.code == 3:
            continue  # not installed
        assert done.code == 1, done.stderr
        assert any(f["node"] == "nms_plugin" and f["op"] == "BatchedNMS_TRT" for f in done.json["findings"])
    assert not list(tmp_path.iterdir())
    done = deploykit_cli("simplify", model, "-o", tmp_path / "s.onnx", "--json", timeout=600)
    assert done.code == 0, done.stdout
    before = {n.name: n for n in onnx.load(model).graph.node if n.op_type in ("BatchedNMS_TRT", "MyScale")}
    after = {n.name: n for n in onnx.load(tmp_path / "s.onnx").graph.node if n.op_type in ("BatchedNMS_TRT", "MyScale")}
    assert {name: list(n.attribute) for name, n in after.items()} == {n: list(v.attribute) for n, v in before.items()}
    assert len(onnx.load(tmp_path / "s.onnx").graph.node) < len(onnx.load(model).graph.node)


def test_a_whole_run_with_a_library(tmp_path, words_library):
    text = """<ir_version: 10, opset_import: ["": 20, "ai.onnx.contrib": 1]>
    agraph (float[n,3] x) => (float[n,3] z) { [split] a, b = ai.onnx.contrib.NegPos (x) z = Add (a, b) }"""
    path = written(tmp_path, text)
    without = deploykit.run(path, to=["onnxruntime"], output=tmp_path / "without")
    assert without.exit_code == 1
    assert any(f.node == "split" and "--custom-ops" in f.hint for f in without.findings)
    report = deploykit.run(path, to=["onnxruntime"], custom_ops=words_library, output=tmp_path / "with")
    assert report.exit_code == 0
    (row,) = report.metrics["rows"]
    assert (row["status"], row["execution"]) == ("passed", "real")
    assert row["p50_ms"] > 0
