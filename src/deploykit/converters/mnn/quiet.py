"""MNN prints to standard output, which belongs to deploykit: `serve` says there, in one line, that it is ready."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_turn = threading.Lock()


@contextlib.contextmanager
def on_stderr() -> Iterator[None]:
    """What is printed meanwhile goes to standard error, buffers of the C library included; one thread at a time."""
    with _turn:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(2, 1)
        try:
            yield
        finally:
            with contextlib.suppress(OSError, AttributeError):  # another C library than POSIX's
                ctypes.CDLL(None).fflush(None)
            os.dup2(kept, 1)
            os.close(kept)
