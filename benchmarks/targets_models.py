"""Rows of the table of targets: published models with real inputs, laid as a source, options and folders of feeds."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import quantization_models
from quantization_data import ROOT, SHARED

if TYPE_CHECKING:
    from collections.abc import Callable

    Feeds = dict[str, np.ndarray[Any, Any]]

MODULES = ROOT / "benchmarks" / "source_modules.py"
_MOST = 6


@dataclasses.dataclass(frozen=True)
class Row:
    """A model. source: of `convert`. data: writes feeds to a folder. options: more of the command line.

    fixing: {symbol: input and axis} whose sizes in the first feed fix it, where no ONNX file tells.
    """

    source: Path | str
    data: Callable[[Path], None]
    options: tuple[str, ...] = ()
    fixing: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)


def measured(name: str, part: str = "eval") -> Callable[[Path], None]:
    """Feeds of the table of quantization: what it scores, or what calibrates."""

    def lay(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            quantization_models.MODELS[name].make(Path(scratch))
            found = sorted((Path(scratch) / part).glob("*.npz"))
            step = max(len(found) // _MOST, 1)
            for index, file in enumerate(found[::step][:_MOST]):
                save(folder, index, {key: value for key, value in np.load(file).items() if key != "y"})

    return lay


def save(folder: Path, index: int, feeds: Feeds) -> None:
    """One feed as a file."""
    np.savez(folder / f"{index:03}.npz", **feeds)


def silero(folder: Path) -> None:
    """Windows of a stream, each with the state that the model has there."""
    measured("silero VAD", "calib")(folder)


def silero_window(folder: Path) -> None:
    """The window alone, for the module that keeps its state itself."""
    silero(folder)
    for index, file in enumerate(sorted(folder.glob("*.npz"))):
        save(folder, index, {"x": np.load(file)["input"][:, 64:]})


def breast_cancer(folder: Path) -> None:
    """Rows of the test set."""
    rows = np.load(SHARED / "sklearn/bc_test.npz")
    x = next(value for key, value in rows.items() if key != "y").astype(np.float32)
    for index in range(_MOST):
        save(folder, index, {"X": x[index * 4 : index * 4 + 4]})


def pictures(name: str, size: tuple[int, int], *, grey: bool, low: float) -> Callable[[Path], None]:
    """Crops of photographs as [1, height, width, channels], from `low` to 1."""

    def lay(folder: Path) -> None:
        from PIL import Image

        for index, picture in enumerate(("astronaut", "coffee", "chelsea")):
            image = Image.open(SHARED / f"images/{picture}.png").convert("L" if grey else "RGB").resize(size[::-1])
            array = np.asarray(image, np.float32).reshape(1, *size, -1) / 255
            save(folder, index, {name: array * (1 - low) + low})

    return lay


ROWS: dict[str, Row] = {
    "digits/digits_cnn.onnx": Row(SHARED / "digits/digits_cnn.onnx", measured("digits")),
    "mnist5k/mnist5k_cnn.onnx": Row(SHARED / "mnist5k/mnist5k_cnn.onnx", measured("mnist5k")),
    "jvowels/jvowels_lstm.onnx": Row(SHARED / "jvowels/jvowels_lstm.onnx", measured("jvowels LSTM")),
    "ppocr_v4/cls.onnx": Row(SHARED / "ppocr_v4/cls.onnx", measured("PP-OCR v4 cls")),
    "ppocr_v4/rec.onnx": Row(SHARED / "ppocr_v4/rec.onnx", measured("PP-OCR v4 rec")),
    "ppocr_v4/det.onnx": Row(SHARED / "ppocr_v4/det.onnx", measured("PP-OCR v4 det")),
    "silero_vad/silero_vad.onnx": Row(SHARED / "silero_vad/silero_vad.onnx", silero),
    "silero_vad/silero_vad_op18_ifless.onnx": Row(SHARED / "silero_vad/silero_vad_op18_ifless.onnx", silero),
    "magika/model.onnx": Row(SHARED / "magika/model.onnx", measured("magika")),
    "nsnet2/nsnet2-20ms-baseline.onnx": Row(SHARED / "nsnet2/nsnet2-20ms-baseline.onnx", measured("nsnet2")),
    "dnsmos/sig_bak_ovr.onnx": Row(SHARED / "dnsmos/sig_bak_ovr.onnx", measured("dnsmos")),
    "attacut/attacut-sc.onnx": Row(SHARED / "attacut/attacut-sc.onnx", measured("attacut")),
    "sklearn/bc_rf.onnx": Row(SHARED / "sklearn/bc_rf.onnx", breast_cancer),
    "digits/digits_cnn.pt": Row(
        f"{MODULES}:SmallCNN",
        measured("digits"),
        ("--weights", str(SHARED / "digits/digits_cnn.pt"), "--input", "input:float32[batch,1,8,8]"),
        {"batch": ("input", 0)},
    ),
    "mnist5k/mnist5k_cnn.pt": Row(
        f"{MODULES}:SmallCNN",
        measured("mnist5k"),
        (
            *("--weights", str(SHARED / "mnist5k/mnist5k_cnn.pt"), "--arg", "side=28"),
            *("--input", "input:float32[batch,1,28,28]"),
        ),
        {"batch": ("input", 0)},
    ),
    "jvowels/jvowels_lstm.pt": Row(
        f"{MODULES}:VowelsLSTM",
        measured("jvowels LSTM"),
        (
            *("--weights", str(SHARED / "jvowels/jvowels_lstm.pt"), "--input", "x:float32[batch,length,12]"),
            *("--dim", "length=7..29"),
        ),
        {"batch": ("x", 0), "length": ("x", 1)},
    ),
    "crepe/tiny.pth": Row(
        f"{MODULES}:Crepe",
        measured("crepe tiny"),
        ("--weights", str(SHARED / "crepe/tiny.pth"), "--input", "frames:float32[batch,1024]"),
        {"batch": ("frames", 0)},
    ),
    "silero_vad/silero_vad.jit": Row(
        SHARED / "silero_vad/silero_vad.jit",
        silero_window,
        ("--input", "x:float32[batch,512]", "--arg", "sr=16000"),
        {"batch": ("x", 0)},
    ),
    "fer_keras_h5/emotion_model.hdf5": Row(
        SHARED / "fer_keras_h5/emotion_model.hdf5", pictures("input_1", (64, 64), grey=True, low=-1.0)
    ),
    "blazeface/face_detection_short_range.tflite": Row(
        SHARED / "blazeface/face_detection_short_range.tflite", pictures("input", (128, 128), grey=False, low=-1.0)
    ),
}


def laid(row: Row, folder: Path) -> tuple[Path, Path | None, list[str]]:
    """(feeds, feeds of one shape, the options that fix it) of a row, made once; None where nothing varies."""
    every, fixed = folder / "data", folder / "fixed"
    if not every.exists():
        shutil.rmtree(folder, ignore_errors=True)
        scratch = folder / "making"
        scratch.mkdir(parents=True)
        row.data(scratch)
        scratch.rename(every)
    files = sorted(every.glob("*.npz"))
    first = dict(np.load(files[0]))
    fixing = [f"{name}={first[tensor].shape[axis]}" for name, (tensor, axis) in row.fixing.items()]
    options = [text for size in fixing for text in ("--dim", size)] or _fixing(row, first)
    if not options:
        return every, None, []
    if not fixed.exists():
        fixed.mkdir()
        for file in files:
            feeds = dict(np.load(file))
            if {key: value.shape for key, value in feeds.items()} == {key: value.shape for key, value in first.items()}:
                shutil.copy(file, fixed / file.name)
    return every, fixed, options


def _fixing(row: Row, first: Feeds) -> list[str]:
    """What gives an ONNX file's inputs the sizes that they have in a feed: a symbol each, or an input's whole shape.

    A symbol cannot be given where the file calls axes of several sizes by it; a `?` is none, and may be any.
    """
    from deploykit import graph

    if not str(row.source).endswith(".onnx"):
        return []
    inputs, _ = graph.interface(graph.load(Path(row.source)))
    sizes: dict[str, set[int]] = {}
    open_ones = {
        spec.name: {axis: size for axis, size in enumerate(spec.shape or ()) if isinstance(size, str)}
        for spec in inputs
    }
    for name, symbols in open_ones.items():
        for axis, symbol in symbols.items():
            sizes.setdefault(symbol, set()).add(first[name].shape[axis])
    unclear = {symbol for symbol, found in sizes.items() if symbol == "?" or len(found) > 1}
    shaped = [name for name, symbols in open_ones.items() if unclear & set(symbols.values())]
    told = {symbol for name, symbols in open_ones.items() if name not in shaped for symbol in symbols.values()}
    options = []
    for name in shaped:
        shape = "x".join(map(str, first[name].shape))
        options += ["--profile", f"{name}={shape}:{shape}:{shape}"]
    for symbol, found in sizes.items():
        if symbol in told:
            options += ["--dim", f"{symbol}={min(found)}"]
    return options
