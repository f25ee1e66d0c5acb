"""Recurrent operators in the layout that engines know."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from deploykit.optimizers.rewrites.decomposition import Decomposition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter


def sequence_first(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Layout 0 between transposes instead of layout 1, which has the batch first (spec, LSTM-14).

    X [batch, seq, input] and initial states [batch, directions, hidden]; Y [batch, seq, directions, hidden].
    """
    if node.attributes.get_int("layout", 0) != 1:
        return None
    states = {"LSTM": (5, 6)}.get(node.op_type, (5,))
    inputs = [
        op.transpose(value, [1, 0, 2]) if value is not None and at in (0, *states) else value
        for at, value in enumerate(node.inputs)
    ]
    kept = {name: attribute.value for name, attribute in node.attributes.items() if name != "layout"}
    results = op.ops(node.op_type, *inputs, outputs=len(node.outputs), **kept)
    return [op.transpose(value, [2, 0, 1, 3] if at == 0 else [1, 0, 2]) for at, value in enumerate(results)]


class SequenceFirst(Decomposition):
    """RNN, GRU and LSTM with the batch first, as those with the sequence first."""

    name: ClassVar[str] = "sequence-first"
    title: ClassVar[str] = "writes recurrent layers with layout 1 as layout 0 between transposes"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "RNN"): sequence_first,
        ("", "GRU"): sequence_first,
        ("", "LSTM"): sequence_first,
    }
