"""Exports every family of sources that is promised, and writes what was proven of each.

python benchmarks/sources.py [WORD...]   # writes benchmarks/sources.json, of which docs/generate.py makes a table

WORD: only rows whose source or family contains it; the others stay as they are in the file. Published models lie beside
the checkout; the others are made here, with random weights.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import source_makers as make

import deploykit
from deploykit.errors import DeploykitError
from deploykit.isolation import workers

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "sources.json"
MODELS = ROOT.parent / "shared" / "models"
MODULES = ROOT / "benchmarks" / "source_modules.py"

# (source, family, the source: text, or a function of a folder that makes it, options of export)
PYTORCH = (
    (
        "Python factory",
        "digits CNN, state dict",
        f"{MODULES}:SmallCNN",
        {"inputs": ["input:float32[batch,1,8,8]"], "weights": MODELS / "digits/digits_cnn.pt"},
    ),
    (
        "Python factory",
        "MNIST CNN, constructor argument",
        f"{MODULES}:SmallCNN",
        {
            "inputs": ["input:float32[batch,1,28,28]"],
            "weights": MODELS / "mnist5k/mnist5k_cnn.pt",
            "args": {"side": 28},
        },
    ),
    (
        "Python factory",
        "JapaneseVowels LSTM, any length",
        f"{MODULES}:VowelsLSTM",
        {
            "inputs": ["x:float32[batch,length,12]"],
            "weights": MODELS / "jvowels/jvowels_lstm.pt",
            "dims": ["length=7..29"],
        },
    ),
    (
        "Python factory",
        "CREPE tiny",
        f"{MODULES}:Crepe",
        {"inputs": ["frames:float32[batch,1024]"], "weights": MODELS / "crepe/tiny.pth"},
    ),
    (
        "Python factory",
        "transformer encoder with mask",
        f"{MODULES}:Transformer",
        {"inputs": ["ids:int64[batch,length]", "mask:int64[batch,length]"]},
    ),
    ("Python factory", "U-Net", f"{MODULES}:UNet", {"inputs": ["image:float32[batch,3,32,48]"]}),
    ("Python factory", "detector head", f"{MODULES}:Detector", {"inputs": ["image:float32[batch,3,h,w]"]}),
    (
        "Python factory",
        "step with nested state, dict out",
        f"{MODULES}:StatefulStep",
        {"inputs": ["x:float32[batch,8]", "state.0:float32[batch,16]", "state.1:float32[batch,16]"]},
    ),
    (
        "Python factory",
        "digits CNN, opset 13",
        f"{MODULES}:SmallCNN",
        {"inputs": ["input:float32[batch,1,8,8]"], "weights": MODELS / "digits/digits_cnn.pt", "opset": 13},
    ),
    ("TorchScript", "traced CNN, inputs inferred", make.traced_cnn, {}),
    ("TorchScript", "scripted, branch on data", make.scripted_branch, {"inputs": ["x:float32[3]"]}),
    (
        "TorchScript",
        "silero VAD, the part that takes its state",
        make.silero_part,
        {"inputs": ["x:float32[batch,576]", "state:float32[2,batch,128]"]},
    ),
    (
        "TorchScript",
        "silero VAD, as published",
        MODELS / "silero_vad/silero_vad.jit",
        {"inputs": ["x:float32[batch,512]"], "args": {"sr": 16000}},
    ),
    ("exported program", "CNN, batch 1..16", make.program, {}),
)
TENSORFLOW = (
    (".h5", "emotion CNN (Sequential)", MODELS / "fer_keras_h5/emotion_model.hdf5", {}),
    (".h5", "emotion CNN, as NCHW", MODELS / "fer_keras_h5/emotion_model.hdf5", {"layout": "nchw"}),
    (".keras", "Sequential CNN", make.keras_sequential, {}),
    (".keras", "LSTM, any length", make.keras_lstm, {}),
    ("SavedModel", "two signatures", make.saved_model, {"signature": "double"}),
    (".tflite", "BlazeFace", MODELS / "blazeface/face_detection_short_range.tflite", {}),
    (".tflite", "CNN, 8-bit", make.lite_int8, {}),
)
ONNX = (
    ("ONNX", "magika", MODELS / "magika/model.onnx", {}),
    ("ONNX", "digits CNN, opset 13 to 21", MODELS / "digits/digits_cnn.onnx", {"opset": 21}),
    ("ONNX", "PP-OCR recognition", MODELS / "ppocr_v4/rec.onnx", {}),
)
SKLEARN: tuple[tuple, ...] = make.sklearn_rows()
HUGGINGFACE: tuple[tuple, ...] = make.huggingface_rows()
ROWS = (*PYTORCH, *TENSORFLOW, *ONNX, *SKLEARN, *HUGGINGFACE)


def row(source, options, folder):
    """What the table says of one source."""
    started = time.perf_counter()
    try:
        made = source(folder) if callable(source) else source
        report = deploykit.export(made, output=folder / "out.onnx", force=True, **options)
    except DeploykitError as problem:
        return refused(problem)
    if report.error is not None:
        return refused(report.error)
    if report.exit_code:
        failed = next(finding for finding in report.findings if finding.severity == "error")
        return {"refused": {"code": failed.code, "message": failed.message, "hint": failed.hint, "context": []}}
    parity = report.metrics["parity"]
    return {
        "exporter": report.metrics.get("exporter") or report.metrics.get("converter", "-"),
        "opset": report.artifact.opset,
        "max_abs": max((found["max_abs"] or 0.0 for found in parity["outputs"]), default=None),
        "samples": parity["samples"],
        "proven": parity.get("proven", {}),
        "seconds": round(time.perf_counter() - started, 1),
    }


def refused(problem):
    """A refusal, without the folders of this machine."""
    texts = {"message": problem.message, "hint": problem.hint, "context": list(problem.context)[:2]}
    clean = json.dumps(texts).replace(str(MODELS), "models").replace(str(ROOT), ".")
    return {"refused": {"code": problem.code, **json.loads(clean)}}


def main(words):
    """Runs the rows and writes the file."""
    made = {}
    with workers():
        for kind, family, source, options in ROWS:
            if words and not any(word in f"{kind} {family}" for word in words):
                continue
            with tempfile.TemporaryDirectory() as folder:
                entry = {"source": kind, "family": family, **row(source, options, Path(folder))}
            print(json.dumps(entry), flush=True)
            made[kind, family] = entry
    old = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else []
    rows = {(entry["source"], entry["family"]): entry for entry in old} | made
    ordered = [rows[kind, family] for kind, family, _, _ in ROWS if (kind, family) in rows]
    OUT.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
