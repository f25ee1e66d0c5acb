"""Lowerings over a batch that varies: the package is made once for a range, and evaluated at several sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

RANDOM = np.random.default_rng(1)
# name: (inputs with their sizes, the batch being `n`; outputs; constants; body; opset)
CASES = {
    "attention": ({"q": ("n", 3, 4, 8), "k": ("n", 3, 6, 8), "v": ("n", 3, 6, 8)}, "y", "",
                  "y = Attention <is_causal=1> (q, k, v)", 23),
    "attention_heads": ({"q": ("n", 4, 24), "k": ("n", 6, 24), "v": ("n", 6, 24)}, "y", "",
                        "y = Attention <q_num_heads=3, kv_num_heads=3> (q, k, v)", 23),
    "rotary": ({"x": ("n", 2, 4, 8), "c": ("n", 4, 4), "s": ("n", 4, 4)}, "y", "",
               "y = RotaryEmbedding (x, c, s)", 23),
    "cubic": ({"x": ("n", 3, 5, 7)}, "y", "float[4] s = {1,1,2,2}", 'y = Resize <mode="cubic"> (x, , s)', 20),
    "linear": ({"x": ("n", 3, 5, 7)}, "y", "float[4] s = {1,1,1.6,2}", 'y = Resize <mode="linear"> (x, , s)', 20),
    "einsum": ({"x": ("n", 3, 4), "z": ("n", 4, 5)}, "y", "", 'y = Einsum <equation="bij,bjk->bki"> (x, z)', 20),
    "trilu": ({"x": ("n", 4, 6)}, "y", "int64 k = {1}", "y = Trilu <upper=0> (x, k)", 20),
    "gather_nd": ({"x": ("n", 4, 6)}, "y", "int64[2,1] i = {0,0}", "y = GatherND (x, i)", 20),
    "lp_pool": ({"x": ("n", 3, 5, 7)}, "y", "", "y = LpPool <kernel_shape=[2,2]> (x)", 20),
    "hardmax": ({"x": ("n", 3, 5)}, "y", "", "y = Hardmax <axis=1> (x)", 20),
    "loss": ({"x": ("n", 5)}, "y", "int64[1] t = {3}",
             "m = LogSoftmax (x)\n y = Gather <axis=1> (m, t)", 20),
    "mvn": ({"x": ("n", 3, 5, 7)}, "y", "", "y = MeanVarianceNormalization (x)", 20),
    "dilated": ({"x": ("n", 3, 5, 7)}, "y", "", "y = MaxPool <kernel_shape=[2,2], dilations=[2,2]> (x)", 20),
    "group_norm": ({"x": ("n", 4, 5, 7)}, "y", "float[4] g = {1,2,3,4}, float[4] b = {0,1,0,1}",
                   "y = GroupNormalization <num_groups=2> (x, g, b)", 21),
    "scan": ({"x": (4, "n", 3), "z": ("n", 3)}, "y", "",
             ("e, y = Scan <num_scan_inputs=1, body = b (float[n,3] a, float[n,3] v) => "
             "(float[n,3] c, float[n,3] o) { c = Add (a, v)\n o = Tanh (c) }> (z, x)"), 20),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_over_a_batch_that_varies(agrees, name):
    sizes, output, constants, body, opset = CASES[name]
    inputs = ", ".join(f"float[{','.join(map(str, shape))}] {key}" for key, shape in sizes.items())
    version = 11 if opset > 22 else 10 if opset > 20 else 9
    model = (
        f'<ir_version: {version}, opset_import: ["" : {opset}]>\n'
        f"g ({inputs}) => (float {output}) <{constants}> {{ {body} }}"
    )
    parsed = onnx.parser.parse_model(model)
    parsed.graph.output[0].type.tensor_type.ClearField("shape")
    for count in (1, 3):
        feeds = {
            key: RANDOM.normal(size=[count if size == "n" else size for size in shape]).astype(np.float32)
            for key, shape in sizes.items()
        }
        agrees(parsed, feeds, dims={"n": [1, 4]})
