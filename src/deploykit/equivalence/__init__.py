"""Whether a rewritten ONNX model still is the same one: interface, outputs over every dynamic dimension, random nodes.

Compares in this process, with the reference: call it in a worker.
"""

from deploykit.equivalence.comparing import Baseline, compare_models, run_original
from deploykit.equivalence.kept import (
    interface_differences,
    kept_differences,
    pin_seeds,
    random_nodes,
    stand_in,
    unknown_nodes,
)
from deploykit.equivalence.probe import Plan, Probe

__all__ = [
    "Baseline",
    "Plan",
    "Probe",
    "compare_models",
    "interface_differences",
    "kept_differences",
    "pin_seeds",
    "random_nodes",
    "run_original",
    "stand_in",
    "unknown_nodes",
]
