"""The static look into a plan."""

from __future__ import annotations

import pytest

from deploykit.converters.tensorrt_rtx.inspect import describe
from deploykit.converters.tensorrt_rtx.plan import read_plan
from deploykit.errors import InvalidFileError

LINE = """
<ir_version: 9, opset_import: ["" : 19]>
line (float[1,4] x) => (float[1,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
  [product] h = MatMul (x, w)
  [active] y = Tanh (h)
}"""


def test_version_gpus_and_layers_are_read_from_the_bytes(build, save):
    _, engine = build(save(LINE), sm=[89, 120])
    facts = describe(str(engine))
    assert facts["static_check"]["accelerators"] == ["sm89", "sm120"]
    assert facts["static_check"]["tensorrt_rtx_version"].startswith("1.")
    assert set(facts["layers"]) <= {"product", "active"}
    assert facts["inputs"] is None
    assert "manifest" in facts["interface_source"]


@pytest.mark.parametrize("content", [b"", b"vtrt", b"ftrt" + bytes(100)])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.engine"
    path.write_bytes(content)
    with pytest.raises(InvalidFileError, match="not a TensorRT-RTX engine"):
        read_plan(path)


def test_a_plan_that_is_cut_off_is_refused(build, save, tmp_path):
    _, engine = build(save(LINE), sm=89)
    short = tmp_path / "short.engine"
    short.write_bytes(engine.read_bytes()[:-100])
    with pytest.raises(InvalidFileError, match="cut off"):
        read_plan(short)
