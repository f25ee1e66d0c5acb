"""Any artifact beside any other one: each format of each engine that is here, made of one model, against each."""

import itertools

import onnx
import pytest

import deploykit
from deploykit.errors import UnavailableError
from deploykit.isolation import workers
from deploykit.lazy import installed
from deploykit.target import get_target, target_names, unavailable

MODEL = """<ir_version: 8, opset_import: ["": 17]>
net (float[1,3,12,12] image) => (float[1,4] scores)
<float[4,3,3,3] k, float[4] b = {0.1, -0.2, 0.3, 0}, float[4,4] w = {1,0.5,-1,2, 0.25,1,1,-1, 0,1,0.5,1, 2,0,1,-0.5}>
{
    [conv] c = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (image, k, b)
    [relu] r = Relu (c)
    [pool] p = GlobalAveragePool (r)
    [flat] f = Flatten (p)
    [last] scores = MatMul (f, w)
}"""


def runs(name):
    """Whether the target converts from ONNX and runs here, values counted whether computed or simulated."""
    target = get_target(name)
    if target.converter is None or target.runtime is None or not all(map(installed, target.packages)):
        return False
    return unavailable(target, simulated=True) is None


NAMES = [name for name in target_names() if runs(name)]
PAIRS = list(itertools.permutations(NAMES, 2))
# Each once as reference and once as candidate.
RING = list(zip(NAMES, NAMES[1:] + NAMES[:1], strict=True))


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """A function that gives the artifact of a target, made when it is first asked for; skips where it cannot be."""
    import numpy as np

    folder = tmp_path_factory.mktemp("pairs")
    model = onnx.parser.parse_model(MODEL.replace("float[4,3,3,3] k, ", ""))
    kernel = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "k"))
    onnx.save(model, folder / "net.onnx")
    made = {}

    def artifact(name):
        if name not in made:
            path = folder / name / f"net{get_target(name).suffix}"
            path.parent.mkdir()
            try:
                report = deploykit.convert(folder / "net.onnx", to=name, output=path, samples=2)
            except UnavailableError as problem:
                pytest.skip(f"{name}: {problem.message}")
            assert report.exit_code == 0, [finding.message for finding in report.findings]
            made[name] = path
        return made[name]

    with workers():
        yield artifact


def agree(first, second):
    report = deploykit.validate(first, second, samples=2)
    assert report.exit_code == 0, [finding.message for finding in report.findings]
    assert [row["name"] for row in report.metrics["outputs"]] == ["scores"]
    return report


@pytest.mark.parametrize(("reference", "candidate"), RING)
def test_each_artifact_beside_another_one(artifacts, reference, candidate):
    agree(artifacts(reference), artifacts(candidate))


@pytest.mark.slow
@pytest.mark.parametrize(("reference", "candidate"), [pair for pair in PAIRS if pair not in RING])
def test_any_artifact_beside_any_other_one(artifacts, reference, candidate):
    agree(artifacts(reference), artifacts(candidate))
