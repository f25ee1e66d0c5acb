"""Apache TVM as it is imported here: its own log off, and its version."""

from __future__ import annotations

import os

# Below fatal errors; warnings of its importer come per operator.
os.environ.setdefault("TVM_LOG_DEBUG", "")

import tvm

NAME = "tvm"


def versioned() -> str:
    """The version of the package."""
    return str(tvm.__version__)
