"""Whether this machine's CPU adds products of 8-bit integers exactly, which decides how many bits weights may have.

x86 CPUs without VNNI add pairs of u8*s8 products in a saturating int16 (pmaddubsw): 2 * 255 * 127 does not fit,
2 * 255 * 64 does. Models for such a CPU get 7-bit weights in the layers where that threatens.
"""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

# What runs the model need not be the machine that quantizes it: 1 says that it has VNNI, 0 that it has not.
OVERRIDE = "DEPLOYKIT_VNNI"
FLAGS = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"})
X86 = frozenset({"x86_64", "amd64", "i386", "i686"})


@functools.cache
def saturates() -> bool:
    """Whether pairs of u8*s8 products saturate: an x86 CPU that does not say it has VNNI, or DEPLOYKIT_VNNI=0."""
    told = os.environ.get(OVERRIDE, "")
    if told:
        return told == "0"
    if platform.machine().lower() not in X86:
        return False
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # Windows, macOS: taken for one without
        return True
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return not FLAGS & set(flags.split())
