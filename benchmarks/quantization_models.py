"""Models and data of the quantization benchmark: what calibrates, what is scored, and by which metric.

Each maker lays a folder: `model.onnx`, `calib/` and `eval/` with one `.npz` a feed. Labels are `y` in both; the two
halves share no sample. Published models and labelled data lie beside the checkout.
"""

from __future__ import annotations

import dataclasses
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from quantization_data import ROOT, SHARED, halves, lay, rows
from quantization_sound import crepe, dnsmos, nsnet2, silero

if TYPE_CHECKING:
    from collections.abc import Callable

    Feeds = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Model:
    """A row. metric: None scores outputs against float only. carry: {input: output}. data: what it is scored on."""

    make: Callable[[Path], None]
    metric: str | None
    data: str
    carry: dict[str, str] = dataclasses.field(default_factory=dict)
    transformer: bool = False


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
    """Pages of 384 x 480 with lines at random places.

    The label has 1 inside of each line, as far from its edges as the training of DB shrinks its boxes (ratio 0.4).
    """
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
            inset = round(0.84 * image.shape[0] * image.shape[1] / (2 * (image.shape[0] + image.shape[1])))
            bottom, right = top + image.shape[0] - inset, left + image.shape[1] - inset
            mask[top + inset : bottom, left + inset : right] = 1
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


def attacut(folder: Path) -> None:
    """Random numbers of characters and syllables within both tables: no Thai text, outputs only."""
    import onnx

    path, rng = SHARED / "attacut/attacut-sc.onnx", np.random.default_rng(0)
    tables = [tensor.dims[0] for tensor in onnx.load(path).graph.initializer if len(tensor.dims) == 2]
    top = min(size for size in tables if size > 8)
    feeds = [{"input": rng.integers(0, top, (1, 2, int(rng.integers(20, 120))))} for _ in range(64)]
    lay(folder, path, *halves(feeds))


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
    "crepe tiny": Model(
        crepe, f"{ROOT / 'benchmarks' / 'quantization_sound.py'}:pitch", "75 tones each, pitch within 50 cents"
    ),
    "MiniLM-L6": Model(minilm, "pairs", "6 triples of sentences each", transformer=True),
    "attacut": Model(attacut, None, "random numbers in place of characters: outputs only"),
    "ResNet-50 shape": Model(resnet50, None, "random weights, crops of photographs: outputs only"),
    "BERT-base shape": Model(bert_base, None, "random weights and tokens: outputs only", transformer=True),
}
