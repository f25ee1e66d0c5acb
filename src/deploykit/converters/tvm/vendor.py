"""Apache TVM as it is imported here, and its version."""

from __future__ import annotations

import tvm as tvm

NAME = "tvm"


def versioned() -> str:
    """The version of the package."""
    return str(tvm.__version__)
