"""Models and data of the quantization benchmark: what calibrates, what is scored, and by which metric.

Each maker lays a folder: `model.onnx`, `calib/` and `eval/` with one `.npz` a feed. Labels are `y` in both; the two
halves share no sample. Published models and labelled data lie beside the checkout.
"""

from __future__ import annotations

import dataclasses
import shutil
import sysconfig
import tempfile
import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Feeds = dict[str, np.ndarray]

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "models"


@dataclasses.dataclass(frozen=True)
class Model:
    """A row. metric: None scores outputs against float only. carry: {input: output}. data: what it is scored on."""

    make: Callable[[Path], None]
    metric: str | None
    data: str
    carry: dict[str, str] = dataclasses.field(default_factory=dict)
    transformer: bool = False


def lay(folder: Path, model: str | Path, calib: Iterable[Feeds], scored: Iterable[Feeds]) -> None:
    """Writes the folder of a model; feeds may hold the label `y`."""
    source = Path(model) if Path(model).is_absolute() else SHARED / model
    if source != folder / "model.onnx":
        shutil.copyfile(source, folder / "model.onnx")
    for name, feeds in (("calib", calib), ("eval", scored)):
        (folder / name).mkdir()
        for index, feed in enumerate(feeds):
            np.savez(folder / name / f"{index:04}.npz", **feed)


def rows(name: str, array: np.ndarray, labels: np.ndarray) -> list[Feeds]:
    """One feed a row."""
    return [{name: array[i : i + 1], "y": labels[i]} for i in range(len(array))]


def halves(feeds: list[Feeds]) -> tuple[list[Feeds], list[Feeds]]:
    """Every other feed calibrates, the others are scored."""
    return feeds[::2], feeds[1::2]


def digits(folder: Path) -> None:
    """Handwritten digits."""
    calib, test = (np.load(SHARED / f"digits/digits_cnn_{part}.npz") for part in ("calib", "test"))
    lay(folder, "digits/digits_cnn.onnx", rows("input", calib["x"], calib["y"]), rows("input", test["x"], test["y"]))


def mnist5k(folder: Path) -> None:
    """MNIST."""
    import gzip

    from sklearn.model_selection import train_test_split

    with gzip.open(SHARED / "mnist5k/mnist_5k.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    # The column of labels has ten values.
    at = next(column for column in (0, -1) if len(np.unique(table[:, column])) == 10)
    y = table[:, at].astype(np.int64)
    x = (np.delete(table, at, axis=1) / 255).reshape(-1, 1, 28, 28)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, stratify=y, random_state=0)
    lay(folder, "mnist5k/mnist5k_cnn.onnx", rows("input", x_train, y_train)[:200], rows("input", x_test, y_test))


def jvowels(folder: Path) -> None:
    """Recordings of different lengths."""
    data = np.load(SHARED / "jvowels/jvowels_test.npz")
    feeds = [{"x": data[f"x{i:03}"][None], "y": data["y"][i]} for i in range(len(data["y"]))]
    lay(folder, "jvowels/jvowels_lstm.onnx", *halves(feeds))


def silero(folder: Path) -> None:
    """The stream's first half with the states that the float model has; the second half starts from silence."""
    import onnxruntime as ort

    data = np.load(SHARED / "silero_vad/vad_stream_dev.npz")
    sound = np.concatenate([np.zeros(64, np.float32), data["x"].astype(np.float32) / 32768])
    path = SHARED / "silero_vad/silero_vad_op18_ifless.onnx"
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    state, calib, scored, half = np.zeros((2, 1, 128), np.float32), [], [], len(data["y"]) // 2
    for index, label in enumerate(data["y"].astype(np.int64)):
        feed = {"input": sound[None, index * 512 : index * 512 + 576], "sr": np.array(16000, np.int64)}
        if index < half:
            calib.append({**feed, "state": state, "y": label})
            state = session.run(["stateN"], {**feed, "state": state})[0]
        else:
            scored.append({**feed, "y": label})
    scored[0]["state"] = np.zeros((2, 1, 128), np.float32)
    lay(folder, path, calib, scored)


def _lines() -> list[tuple[np.ndarray, str]]:
    images = np.load(SHARED / "ppocr_v4/ocr_lines_dev.npz")
    texts = (SHARED / "ppocr_v4/ocr_lines_dev.txt").read_text(encoding="utf-8").splitlines()
    return [(images[f"i{index:03}"], text) for index, text in enumerate(texts)]


def _scaled(image: np.ndarray, height: int, width: int | None = None) -> np.ndarray:
    """[1, 3, height, W] in BGR from -1 to 1, as PP-OCR takes it."""
    from PIL import Image

    wide = round(height * image.shape[1] / image.shape[0]) if width is None else width
    small = np.asarray(Image.fromarray(image).resize((wide, height), Image.Resampling.BILINEAR), np.float32)
    return np.ascontiguousarray((small / 127.5 - 1).transpose(2, 0, 1)[None, ::-1])


def ocr_rec(folder: Path) -> None:
    """Lines of text as the recogniser takes them."""
    lay(
        folder,
        "ppocr_v4/rec.onnx",
        *halves([{"x": _scaled(image, 48), "y": np.array(text)} for image, text in _lines()]),
    )


def ocr_cls(folder: Path) -> None:
    """Each line once upright (0) and once upside down (1)."""

    def padded(image: np.ndarray) -> np.ndarray:
        wide = _scaled(image, 48)[..., :192]
        return np.pad(wide, [(0, 0), (0, 0), (0, 0), (0, 192 - wide.shape[3])])

    lines = [image for image, _ in _lines()]
    feeds = [
        {"x": padded(turned), "y": np.int64(label)}
        for image in lines
        for label, turned in enumerate((image, image[::-1, ::-1]))
    ]
    calib = [feed for index, feed in enumerate(feeds) if index // 2 % 2 == 0]
    lay(folder, "ppocr_v4/cls.onnx", calib, [feed for index, feed in enumerate(feeds) if index // 2 % 2])


def ocr_det(folder: Path) -> None:
    """Pages of 384 x 480 with lines at random places; the label has 1 where a line lies."""
    rng = np.random.default_rng(0)
    lines, feeds = [image for image, _ in _lines()], []
    for page in range(40):
        canvas = np.full((384, 480, 3), rng.integers(200, 256), np.uint8)
        mask = np.zeros((384, 480), np.int64)
        top = int(rng.integers(5, 30))
        for image in lines[page % 2 :: 2][page // 2 :: 7][:5]:
            image = image[:, : 480 - 20]
            if top + image.shape[0] >= 380:
                break
            left = int(rng.integers(0, 480 - image.shape[1]))
            canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
            mask[top : top + image.shape[0], left : left + image.shape[1]] = 1
            top += image.shape[0] + int(rng.integers(8, 30))
        scaled = canvas.astype(np.float32) / 255
        scaled = (scaled - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        feeds.append({"x": scaled[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32), "y": mask})
    lay(folder, "ppocr_v4/det.onnx", *halves(feeds))


_KINDS = {
    "py": "python", "pyi": "python", "json": "json", "html": "html", "js": "javascript", "css": "css", "c": "c",
    "h": "c", "cpp": "cpp", "hpp": "cpp", "md": "markdown", "txt": "txt", "csv": "csv", "toml": "toml", "yaml": "yaml",
    "yml": "yaml", "xml": "xml", "so": "elf", "png": "png", "gz": "gzip", "zip": "zip", "svg": "svg", "sh": "shell",
    "wav": "wav", "npz": "zip", "ini": "ini", "whl": "zip", "rst": "rst", "pdf": "pdf",
}  # fmt: skip


def magika(folder: Path) -> None:
    """Files of the Python installation by their suffix, at most 40 of a kind."""
    import json

    settings = json.loads((SHARED / "magika/config.min.json").read_text(encoding="utf-8"))
    classes = {label: place for place, label in enumerate(settings["target_labels_space"])}
    found: dict[str, list[Feeds]] = {}
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*")):
        kind = _KINDS.get(path.suffix[1:])
        if kind not in classes or len(found.setdefault(kind, [])) >= 40 or not path.is_file():
            continue
        content = path.read_bytes()
        if len(content) >= 64:
            label = np.int64(classes[kind])
            found[kind].append({"bytes": magika_features(content)[None], "y": label})
    feeds = [feed for kind in sorted(found) for feed in found[kind]]
    lay(folder, "magika/model.onnx", *halves(feeds))


def magika_features(content: bytes) -> np.ndarray:
    """1024 bytes of the beginning and of the end, white space at the edges left out, 256 where there are none."""
    beg = list(content[:4096].lstrip()[:1024])
    end = list(content[-4096:].rstrip()[-1024:])
    return np.array(beg + [256] * (1024 - len(beg)) + [256] * (1024 - len(end)) + end, np.int32)


def _sound() -> np.ndarray:
    with wave.open(str(SHARED / "speech/librivox-0880.wav")) as file:
        assert file.getframerate() == 16000
        read = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    stream = np.load(SHARED / "silero_vad/vad_stream_dev.npz")["x"]
    return np.concatenate([stream, read]).astype(np.float32) / 32768


def nsnet2(folder: Path) -> None:
    """Speech with white noise; the label is the mixture's own ratio mask, which the network estimates."""
    rng, sound, feeds = np.random.default_rng(0), _sound(), []
    window = np.sqrt(np.hanning(321)[:-1])

    def spectra(signal: np.ndarray) -> np.ndarray:
        frames = np.lib.stride_tricks.sliding_window_view(signal, 320)[::160] * window
        return np.abs(np.fft.rfft(frames, axis=1)) ** 2

    labels = np.repeat(np.load(SHARED / "silero_vad/vad_stream_dev.npz")["y"], 512)
    spoken = np.concatenate([labels, np.ones(len(sound) - len(labels))]) == 1
    for start in range(0, len(sound) - 8000, 2000):
        if spoken[start : start + 8000].mean() < 0.9:
            continue  # the stream's own noise would count as speech
        clean = sound[start : start + 8000]
        noise = rng.standard_normal(8000) * rng.choice([0.003, 0.01, 0.03])
        mask = np.sqrt(spectra(clean) / (spectra(clean) + spectra(noise) + 1e-12))
        mixed = np.log10(np.maximum(spectra(clean + noise), 1e-12)).astype(np.float32)
        feeds.append({"input": mixed[None], "y": mask[None].astype(np.float32)})
    lay(folder, "nsnet2/nsnet2-20ms-baseline.onnx", *halves(feeds))


def dnsmos(folder: Path) -> None:
    """Nine seconds of speech with white noise; there are no listeners' scores, so the label is the float model's."""
    import onnxruntime as ort

    rng, sound = np.random.default_rng(0), _sound()
    path = SHARED / "dnsmos/sig_bak_ovr.onnx"
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = []
    for start in range(0, len(sound) - 144160, 8000):
        part = sound[start : start + 144160] + rng.standard_normal(144160) * rng.choice([0, 0.003, 0.03])
        feed = {"input_1": part[None].astype(np.float32)}
        feeds.append({**feed, "y": session.run(None, feed)[0]})
    lay(folder, path, *halves(feeds))


def attacut(folder: Path) -> None:
    """Random numbers of characters and syllables within both tables: no Thai text, outputs only."""
    import onnx

    path, rng = SHARED / "attacut/attacut-sc.onnx", np.random.default_rng(0)
    tables = [tensor.dims[0] for tensor in onnx.load(path).graph.initializer if len(tensor.dims) == 2]
    top = min(size for size in tables if size > 8)
    feeds = [{"input": rng.integers(0, top, (1, 2, int(rng.integers(20, 120))))} for _ in range(64)]
    lay(folder, path, *halves(feeds))


def crepe(folder: Path) -> None:
    """Tones; the network is exported here from its PyTorch weights."""
    import deploykit

    deploykit.export(
        f"{ROOT / 'benchmarks' / 'source_modules.py'}:Crepe",
        output=folder / "model.onnx",
        inputs=["frames:float32[batch,1024]"],
        weights=SHARED / "crepe/tiny.pth",
    )
    data = np.load(SHARED / "crepe/crepe_dev.npz")
    x = data["x"] - data["x"].mean(axis=1, keepdims=True)
    x /= np.maximum(x.std(axis=1, keepdims=True), 1e-10)
    lay(folder, folder / "model.onnx", *halves(rows("frames", x.astype(np.float32), data["f0"])))


def pitch(outputs: dict[str, np.ndarray], label: np.ndarray) -> float:
    """100 when the pitch is within 50 cents of the true one."""
    (scores,) = next(iter(outputs.values()))
    at = int(scores.argmax())
    near = slice(max(0, at - 4), at + 5)
    cents = 20 * np.arange(360) + 1997.3794084376191
    found = 10 * 2 ** ((scores[near] * cents[near]).sum() / scores[near].sum() / 1200)
    return 100.0 * (abs(1200 * np.log2(found / float(label))) <= 50)


pitch.unit = "%"  # type: ignore[attr-defined]


def minilm(folder: Path) -> None:
    """The published encoder, exported here with mean pooling: anchor, paraphrase and distractor are one batch."""
    import onnx
    from quantization_peers_setup import minilm_folder
    from tokenizers import Tokenizer

    import deploykit

    source = minilm_folder()
    with tempfile.TemporaryDirectory() as scratch:
        encoder = Path(scratch) / "encoder.onnx"
        deploykit.export(source, output=encoder, task="feature-extraction")
        onnx.save(pooled(onnx.load(encoder)), folder / "model.onnx")
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    names = [value.name for value in onnx.load(folder / "model.onnx").graph.input]
    feeds = []
    for line in (SHARED / "minilm/pairs_dev.tsv").read_text(encoding="utf-8").splitlines():
        found = tokenizer.encode_batch(line.split("\t"))
        given = {
            "input_ids": [item.ids for item in found],
            "attention_mask": [item.attention_mask for item in found],
            "token_type_ids": [item.type_ids for item in found],
        }
        arrays = {name: np.array(given[name], np.int64) for name in names}
        feeds.append({**arrays, "y": np.array([1, 0])})
    lay(folder, folder / "model.onnx", *halves(feeds))


def pooled(encoder: Any) -> Any:
    """The encoder with the mean of its first output over the attention mask behind it, scaled to length 1."""
    import onnx

    hidden, opset = encoder.graph.output[0].name, encoder.opset_import[0].version
    text = f"""<ir_version: {encoder.ir_version}, opset_import: ["" : {opset}]>
    pool (float[n,t,384] h, int64[n,t] attention_mask) => (float[n,384] embedding) {{
      last = Constant<value_ints = [-1]>()
      one = Constant<value_ints = [1]>()
      m = Cast<to = 1>(attention_mask)
      m3 = Unsqueeze(m, last)
      kept = Mul(h, m3)
      total = ReduceSum<keepdims = 0>(kept, one)
      count = ReduceSum<keepdims = 0>(m3, one)
      mean = Div(total, count)
      length = ReduceL2<keepdims = 1>(mean, last)
      embedding = Div(mean, length)
    }}"""
    pool = onnx.compose.add_prefix(onnx.parser.parse_model(text), "pool_")
    merged = onnx.compose.merge_models(encoder, pool, io_map=[(hidden, "pool_h")], outputs=["pool_embedding"])
    for node in merged.graph.node:
        node.input[:] = ["attention_mask" if name == "pool_attention_mask" else name for name in node.input]
    kept = [value for value in merged.graph.input if value.name != "pool_attention_mask"]
    del merged.graph.input[:]
    merged.graph.input.extend(kept)
    del merged.opset_import[1:]  # both parts have brought the same one
    onnx.checker.check_model(merged)
    return merged


def resnet50(folder: Path) -> None:
    """Random weights, crops of three photographs: activations of a trained network have longer tails than these."""
    from PIL import Image
    from simplify_models import resnet50 as write

    write(folder / "model.onnx")
    rng, feeds = np.random.default_rng(0), []
    pictures = [Image.open(SHARED / f"images/{name}.png").convert("RGB") for name in ("astronaut", "coffee", "chelsea")]
    for index in range(48):
        picture = pictures[index % 3]
        side = int(rng.integers(100, min(picture.size)))
        left, top = (int(rng.integers(0, size - side + 1)) for size in picture.size)
        crop = np.asarray(picture.crop((left, top, left + side, top + side)).resize((224, 224)), np.float32) / 255
        crop = (crop - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        feeds.append({"x": crop.transpose(2, 0, 1)[None].astype(np.float32)})
    lay(folder, folder / "model.onnx", *halves(feeds))


def bert_base(folder: Path) -> None:
    """Random weights and random tokens: attention is nearly even, which no trained network's is."""
    from simplify_models import bert_base as write

    write(folder / "model.onnx")
    rng, feeds = np.random.default_rng(0), []
    for _ in range(32):
        length = int(rng.integers(16, 65))
        ids, mask = rng.integers(0, 30522, (1, length)), np.ones((1, length), np.int64)
        feeds.append({"ids": ids, "types": np.zeros_like(ids), "mask": mask})
    lay(folder, folder / "model.onnx", *halves(feeds))


MODELS: dict[str, Model] = {
    "digits": Model(digits, "top1", "200 images calibrate, 450 others are scored"),
    "mnist5k": Model(mnist5k, "top1", "200 images calibrate, 1,250 others are scored"),
    "jvowels LSTM": Model(jvowels, "top1", "185 recordings each, 7 to 29 frames long"),
    "silero VAD": Model(silero, "top1", "a stream's first half calibrates, its second is scored", {"state": "stateN"}),
    "PP-OCR v4 rec": Model(ocr_rec, "lines", "40 lines each"),
    "PP-OCR v4 det": Model(ocr_det, "miou", "20 pages each, pixels of lines"),
    "PP-OCR v4 cls": Model(ocr_cls, "top1", "40 lines each, upright and upside down"),
    "magika": Model(magika, "top1", "files of the Python installation by suffix"),
    "nsnet2": Model(nsnet2, "mae", "half seconds of speech with white noise, against the mixture's own mask"),
    "dnsmos": Model(dnsmos, "mae", "9 seconds of noisy speech each, against the float model's scores"),
    "crepe tiny": Model(crepe, f"{Path(__file__).resolve()}:pitch", "75 tones each, pitch within 50 cents"),
    "MiniLM-L6": Model(minilm, "pairs", "6 triples of sentences each", transformer=True),
    "attacut": Model(attacut, None, "random numbers in place of characters: outputs only"),
    "ResNet-50 shape": Model(resnet50, None, "random weights, crops of photographs: outputs only"),
    "BERT-base shape": Model(bert_base, None, "random weights and tokens: outputs only", transformer=True),
}
