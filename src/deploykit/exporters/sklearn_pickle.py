"""What a pickle would import, joblib's and compressed ones too; the standard library only, nothing is run."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import zlib
from typing import IO, TYPE_CHECKING

from deploykit.errors import ModelError
from deploykit.exporters.sources import imported_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LIMIT = 64 << 20
_SHOWN = 6
# Suffixes of PyTorch: who has such a file has no scikit-learn model.
_TORCH = (".pt", ".pth", ".jit", ".bin", ".ckpt")
# By their first bytes, as joblib knows them.
_OPENERS: dict[bytes, Callable[[Path], IO[bytes]]] = {
    b"\x1f\x8b": gzip.open,  # type: ignore[dict-item]
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x5d\x00\x00": lzma.open,
}
_ZLIB = b"\x78"


def is_compressed(head: bytes) -> bool:
    """Whether the first bytes are those of a compression that joblib writes."""
    return head.startswith((*_OPENERS, _ZLIB))


def classes_in(path: Path) -> list[str]:
    """Names of the classes and functions that loading the file would import, in its order; empty where unreadable."""
    data = b""
    with contextlib.suppress(OSError, EOFError, zlib.error, lzma.LZMAError), path.open("rb") as plain:
        head = plain.read(8)
        plain.seek(0)
        if head.startswith(_ZLIB):
            data = zlib.decompressobj().decompress(plain.read(), _LIMIT)
        else:
            opener = next((opener for magic, opener in _OPENERS.items() if head.startswith(magic)), None)
            with opener(path) if opener else plain as stream:
                data = stream.read(_LIMIT)
    return list(dict.fromkeys(name.replace(" ", ".") for name in imported_names(data)))


def refusal(path: Path) -> ModelError:
    """The error for a pickle that was not loaded: what it is, and which way works (not raised here)."""
    names = classes_in(path)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    context = [f"it names {', '.join(names[:_SHOWN])}{more}"] if names else []
    if path.suffix.lower() in _TORCH:
        hint = "in your own code: torch.save(model.state_dict(), 'weights.pt'), then deploykit export model.py:Net "
        hint += "--weights weights.pt -o out.onnx"
    else:
        hint = "save the model with skops instead: skops.io.dump(model, 'model.skops'); or, if you made this file "
        hint += f"yourself: deploykit export {path} --trust -o model.onnx"
    return ModelError(
        f"{path} is a Python pickle, which can run any code when it is loaded: it was not loaded",
        code="DK605",
        file=path,
        context=context,
        hint=hint,
    )
