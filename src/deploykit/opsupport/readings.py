"""Which words of the operator tables are read, and how; words that are not here stay words."""

from __future__ import annotations

from deploykit.opsupport import readers
from deploykit.opsupport.attribute_checks import effective

_SAME_DTYPES = "pairs share a dtype; mixed only as float16 data with float16/float32 parameters"
# By operator and words: (subject, rule).
READINGS: dict[tuple[str, str, str], readers.Reader] = {
    ("Conv", "group", "regular or depthwise; 1 for rank 5"): readers.groups(1),
    ("ConvInteger", "group", "regular or depthwise"): readers.groups(1),
    ("QLinearConv", "group", "regular or depthwise"): readers.groups(3),
    ("Conv", "auto_pad", "no SAME_LOWER for rank 5"): readers.ungrouped_same_lower,
    ("ConvTranspose", "output_padding", "each in [0, stride)"): readers.output_padding,
    ("ConvTranspose", "output", "static when explicit non-zero pads"): readers.pads_or_static,
    ("Slice", "ends", "constant, bar a rank-1 prefix slice"): readers.foldable(2),
    ("Slice", "steps", "positive, bar a full-axis reverse"): readers.positive_steps,
    ("Expand", "output", "statically known"): readers.static_output,
    ("GatherElements", "output", "static positive dims"): readers.static_output,
    ("Trilu", "last two", "static positive dims"): readers.static_output,
    ("Resize", "sizes", "constant or rank-1 integer tensor"): readers.constant(3),
    ("Cast", "input", "must not be the first node of the graph"): readers.not_first,
    ("Clip", "min,max", "min != max"): readers.open_clip,
    ("ConvTranspose", "kernel_shape", "if given, equals spatial dims of W"): readers.kernel_shape,
    ("DepthToSpace", "input", "static shape when mode is CRD"): readers.unless(
        "mode", "CRD", "DCR", readers.static_input
    ),
    ("Gather", "data,indices", "rank(data)+rank(indices)-1 <= 5; indices not scalar"): readers.rank_of_gather,
    ("Gemm", "C", "scalar, [1], [N] or [1,N]"): readers.row_bias,
    ("GridSample", "padding_mode", "reflection needs align_corners=1"): readers.unless(
        "padding_mode", "reflection", "zeros", readers.aligned
    ),
    ("MatMul", "A,B", "no mix of rank 1 with rank > 1"): readers.ranks(lambda a, b: (a == 1) == (b == 1)),
    ("Reshape", "shape", "at most 5 entries; no 0 entry with allowzero=1"): readers.shape_entries(5),
    ("Softmax", "input", "static shape when opset < 13"): lambda n: True if n.opset >= 13 else readers.static_input(n),
    ("Split", "split", "at least 2 outputs, no zero part, sums to the dim"): readers.several_parts,
    ("Unsqueeze", "output", "rank <= 5"): readers.output_rank(5),
    ("Clip", "min,max", "exactly [0,6] or [-1,1]"): readers.known_clip,
    ("Conv", "dilations", "1 on grouped conv; otherwise API level >= 29"): readers.dilated,
    ("Gather", "indices", "constant unless int32"): readers.constant_or(1, lambda _, tensor: tensor.dtype == "int32"),
    ("Gemm", "B", "constant unless transB=1"): readers.constant_or(
        1, lambda node, _: effective(node, "transB", 0) == 1
    ),
    ("MatMul", "A,B", "both rank 2, or batch form where both > 2"): readers.ranks(
        lambda a, b: a == b == 2 or min(a, b) > 2
    ),
    ("Pad", "pads", "no negative entries"): readers.none_negative(1, "pads"),
    ("Reshape", "shape", "no 0 entry on a dynamic dim or with allowzero=1"): readers.shape_entries(None),
    ("Split", "split", "equal parts only"): readers.equal_parts,
    ("Gather", "indices", "no negative values"): readers.none_negative(1),
    ("GatherElements", "indices", "no negative values"): readers.none_negative(1),
    ("Gemm", "C", "vector [N]"): readers.vector_bias,
    ("LSTM", "sequence_lens", "all equal"): readers.absent(4),
    ("ReduceL2", "data", "not quantised"): readers.not_quantized,
    ("MatMul", "A,B", "HTP quantised pairs: u8/u8, u8/u16, u16/u8"): readers.not_quantized,
    ("Resize", "coordinate_transformation_mode", "align_corners not with downsampling"): readers.unless(
        "coordinate_transformation_mode", "align_corners", "half_pixel", lambda _: None
    ),
    ("GRU", "sequence_lens", "all values equal dim 0 of X"): readers.absent(4),
    ("LSTM", "sequence_lens", "all values equal dim 0 of X"): readers.absent(4),
    ("If", "branch outputs", "same rank in both branches"): readers.same_ranks,
    ("If", "branch outputs", "names differ between branches"): readers.names_differ,
    ("BatchNormalization", "scale,B,mean,var", _SAME_DTYPES): readers.one_type,
    ("Div", "B", "integer divisor must not hold 0"): readers.divisor,
    ("GroupNormalization", "X", "static rank"): readers.ranked_first,
    ("Slice", "starts,ends", "known length; static rank when dynamic"): readers.known_length,
    ("Squeeze", "axes", "dynamic axes need static rank and known axes length"): readers.constant(1),
    ("Unsqueeze", "axes", "dynamic axes need static rank and known axes length"): readers.constant(1),
    ("Tile", "repeats", "dynamic repeats need known rank"): readers.any_of(readers.constant(1), readers.ranked_first),
}
