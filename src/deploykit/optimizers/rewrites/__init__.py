"""The table of rewrites: what `check --fix` can do to a node that a target refuses.

In the order in which they are tried: what keeps more of the graph stands first. A row costs nothing until it is asked
for; a module is imported when the first model is fixed.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploykit.optimizers.rewriting import Rewrite

# (module below this package, class). One row for each rewrite; the same module may have several.
ROWS: tuple[tuple[str, str], ...] = (
    ("unique_names", "UniqueNames"),
    ("constant_inputs", "ConstantInputs"),
    ("convert_opset", "OlderOpset"),
    ("double_to_float", "DoubleToFloat"),
    ("type_changes", "NarrowInt64"),
    ("type_changes", "HalfAsFloat"),
    ("type_changes", "SmallIntegersAsInt32"),
    ("type_changes", "SmallIntegersAsFloat"),
    ("constant_results", "ConstantResults"),
    ("indexing", "ConstantIndices"),
    ("windows", "ExplicitWindows"),
    ("resizing", "ResizeForm"),
    ("two_dimensions", "TwoDimensions"),
    ("recurrence", "SequenceFirst"),
    ("functions", "InlineFunctions"),
    ("control_flow", "UnrollControlFlow"),
    ("sequences", "UnpackSequences"),
    ("rank_reduction", "ReduceRank"),
    ("microsoft", "DecomposeMicrosoft"),
    ("attention", "DecomposeAttention"),
    ("layouts", "DecomposeLayouts"),
    ("spectra", "DecomposeSpectra"),
    ("einsum", "DecomposeEinsum"),
    ("arithmetic", "DecomposeArithmetic"),
    ("normalizations", "DecomposeNormalizations"),
    ("reductions", "DecomposeReductions"),
    ("functions", "ExpandOperators"),
    ("resizing", "DecomposeResize"),
    ("fold_int32_bias", "FoldInt32Bias"),
    ("qlinear_to_qdq", "QLinearToQdq"),
    ("weight_only", "WeightOnly"),
    ("symmetric_qdq", "SymmetricQdq"),
    ("symmetric_qlinear", "SymmetricQLinear"),
    ("convert_opset", "OlderOpsetByTwo"),
    ("convert_opset", "OlderOpsetByThree"),
    ("convert_opset", "NewerOpset"),
    ("type_changes", "Int32AsInt64"),
    ("type_changes", "IntegersAsFloat"),
    ("quantization_arithmetic", "QuantizationArithmetic"),
    ("interface_types", "FloatInterface"),
)


@functools.cache
def all_rewrites() -> tuple[Rewrite, ...]:
    """One instance of each row of the table, in its order; a rewrite has no state."""
    return tuple(getattr(importlib.import_module(f"{__name__}.{module}"), kind)() for module, kind in ROWS)
