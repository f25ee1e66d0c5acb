"""What engines get wrong although they take it: rules over a node's facts, each found by measuring an installed engine.

An engine's own verdict says whether it loads a node. These rules say where it then fails at the first call, or computes
something else than ONNX asks for. They need no engine, so they hold where it is not installed, too.
"""

from deploykit.opsupport.limits.rules import Limits, load_limits

__all__ = ["Limits", "load_limits"]
