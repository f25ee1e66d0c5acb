"""Metrics of texts: hand-made numbers, a plain table of edits, PyTorch's CTC, and PP-OCR by its own characters."""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import pytest

from deploykit.errors import DataError, InvalidFileError, UsageError
from deploykit.evaluation import make_metric
from deploykit.evaluation.text import best_path

RNG = np.random.default_rng(5)


def scored(name, pairs, models=()):
    metric = make_metric(name, models)
    for output, label in pairs:
        metric.add({"y": output}, label)
    return metric.value()


def ctc(tokens, classes=6):
    """Scores whose best path is these class numbers, one a step."""
    scores = RNG.random((1, len(tokens), classes)).astype(np.float32)
    scores[0, range(len(tokens)), tokens] = 2.0
    return scores


def texts(*lines):
    return np.array(lines, dtype=object)


def test_error_rates_count_edits_over_the_labels_of_the_whole_set():
    # kitten -> sitting: 3 edits of 7; flaw -> lawn: 2 of 4. Over the set, not the mean of both rates.
    pairs = [(texts("kitten"), "sitting"), (texts("flaw"), "lawn")]
    assert scored("cer", pairs) == pytest.approx(100 * 5 / 11)
    # words: "hello duck" -> "hello world" one replaced of two, "a b c" -> "b c d": one gone, one new, of three
    words = [(texts("hello duck"), "hello world"), (texts("a b c"), "b c d")]
    assert scored("wer", words) == pytest.approx(100 * 3 / 5)
    assert scored("lines", [*pairs, (texts("same"), "same")]) == pytest.approx(100 / 3)


def test_error_rate_as_a_table_of_edits_has_it():
    def distance(a, b):
        table = np.zeros((len(a) + 1, len(b) + 1), int)
        table[0], table[:, 0] = np.arange(len(b) + 1), np.arange(len(a) + 1)
        for i, j in itertools.product(range(1, len(a) + 1), range(1, len(b) + 1)):
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a[i - 1] != b[j - 1]))
        return table[-1, -1]

    said = [RNG.integers(1, 6, RNG.integers(1, 15)) for _ in range(40)]
    true = [RNG.integers(1, 6, RNG.integers(1, 15)) for _ in range(40)]
    expected = sum(map(distance, said, true)) / sum(map(len, true))
    assert scored("cer", [(s[None], t) for s, t in zip(said, true, strict=True)]) == pytest.approx(100 * expected)


def test_greedy_ctc_merges_repeats_and_drops_blanks():
    assert best_path(ctc([0, 1, 1, 0, 1, 2, 2, 0, 0])[0]) == [1, 1, 2]
    assert best_path(ctc([5, 1, 1, 5, 1, 0])[0], blank=-1) == [1, 1, 0]
    assert best_path(np.zeros((0, 6))) == []
    assert scored("cer", [(ctc([0, 1, 1, 0, 1, 2]), np.array([1, 1, 2]))]) == 0.0
    assert scored("lines", [(ctc([0, 1, 1, 1, 2]), np.array([1, 1, 2]))]) == 0.0


def test_the_best_path_is_the_one_that_pytorch_finds_likeliest():
    """Among all label sequences of peaked scores, CTC's own likelihood is highest for the decoded one."""
    torch = pytest.importorskip("torch")
    scores = 20 * ctc([0, 1, 1, 0, 2, 2], classes=3)[0]
    logs = torch.log_softmax(torch.tensor(scores), -1)[:, None]
    labels = [seq for n in (1, 2, 3) for seq in itertools.product((1, 2), repeat=n)]
    loss = [
        torch.nn.functional.ctc_loss(
            logs, torch.tensor([seq]), torch.tensor([6]), torch.tensor([len(seq)]), reduction="sum"
        )
        for seq in labels
    ]
    assert list(labels[int(np.argmin(loss))]) == best_path(scores)


def test_batches_in_either_layout_and_padded_labels():
    lines = np.concatenate([ctc([1, 2, 0, 3]), ctc([4, 4, 0, 4])])
    labels = np.array([[1, 2, 3], [4, 4, -1]])
    for output in (lines, lines.transpose(1, 0, 2)):
        assert scored("lines", [(output, labels)]) == 100.0
    assert scored("lines", [(lines[0], labels[0])]) == 100.0  # no axis of lines at all


@pytest.mark.parametrize("suffix", [".txt", ".json", ".onnx"])
@pytest.mark.parametrize("listed", ["all", "no blank", "no blank, no space"])
def test_vocabularies(tmp_path, suffix, listed):
    characters = ["-", "a", "b", "é", "\u2028", " "]
    characters = characters[{"all": 0}.get(listed, 1) : -1 if listed.endswith("no space") else None]
    path = tmp_path / f"v{suffix}"
    if suffix == ".txt":
        path.write_bytes("\n".join(characters).encode() + b"\n")
    elif suffix == ".json":
        path.write_text(json.dumps(characters))
    else:
        save_model(path, "\n".join(characters))
    line = [(ctc([3, 0, 5, 1, 1, 0, 2]), "é ab")]
    assert scored(f"cer,vocabulary={path}", line) == 0.0
    assert scored(f"cer:y,blank=0,vocabulary={path}", line) == 0.0
    if suffix == ".onnx":  # the scored model's own
        assert scored("lines", line, [tmp_path / "other.xml", path]) == 100.0


def test_a_vocabulary_by_number_as_speech_models_have_it(tmp_path):
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({"<pad>": 0, "|": 1, "B": 3, "A": 2, "<unk>": 4}))
    assert scored(f"wer,vocabulary={path}", [(ctc([2, 2, 1, 4, 3, 0], 6), "A B")]) == 0.0


def test_spaces_at_the_edges_count_only_when_asked():
    pairs = [(texts(" ab "), "ab")]
    assert scored("lines", pairs) == 100.0
    assert scored("lines,strip=no", pairs) == 0.0
    assert scored("cer,strip=no", pairs) == 100.0


def test_an_empty_label_and_a_wrong_text_is_no_number_to_hide():
    assert scored("cer", [(texts("a"), "")]) == float("inf")
    assert scored("cer", [(texts(""), "")]) == 0.0


def test_what_does_not_fit_is_told(tmp_path):
    short, broken = tmp_path / "short.txt", tmp_path / "broken.json"
    short.write_text("a\nb\n")
    broken.write_text("{")
    line = ctc([1, 2])
    for name, pair, error, code, words in [
        ("cer", (line, "ab"), UsageError, "DK425", "not known"),
        (f"cer,vocabulary={short}", (line, "ab"), DataError, "DK426", "2 entries, and the output 6 classes"),
        (f"cer,vocabulary={broken}", (line, "ab"), DataError, "DK429", "broken.json"),
        ("cer,vocabulary=absent.txt", (line, "ab"), InvalidFileError, None, "absent.txt"),
        ("cer", (line, 12), DataError, "DK423", "a text or a sequence"),
        (
            "cer",
            (line, np.array([[1], [2], [3]])),
            DataError,
            "DK423",
            r"3 label\(s\) for an output of shape \[1, 2, 6\]",
        ),
        ("lines", (texts("a", "b"), "a"), DataError, "DK423", r"1 label\(s\)"),
    ]:
        with pytest.raises(error, match=words) as caught:
            scored(name, [pair])
        assert code is None or caught.value.code == code
    for name, words in [
        ("cer,blank=x", "whole number"),
        ("cer,speed=1", "no option 'speed'"),
        ("wer,strip=1", "yes or no"),
    ]:
        with pytest.raises(UsageError, match=words) as caught:
            make_metric(name)
        assert caught.value.code == "DK427"


def save_model(path, characters):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
    )
    onnx.helper.set_model_props(model, {"character": characters})
    onnx.save(model, path)


def test_pp_ocr_reads_77_of_80_lines(shared_model, deploykit_cli, tmp_path):
    """As measured with the model's own decoding (77 of 80 lines, CER 0.0061), from the command line."""
    pillow = pytest.importorskip("PIL.Image")
    images = np.load(shared_model("ppocr_v4/ocr_lines_dev.npz"))
    lines = shared_model("ppocr_v4/ocr_lines_dev.txt").read_text().splitlines()
    for index, line in enumerate(lines):
        array = images[f"i{index:03}"]
        width = round(48 * array.shape[1] / array.shape[0])
        small = np.asarray(pillow.fromarray(array).resize((width, 48), pillow.Resampling.BILINEAR), np.float32)
        np.savez(tmp_path / f"{index}.npz", x=(small / 127.5 - 1).transpose(2, 0, 1)[::-1], y=line)
    model = shared_model("ppocr_v4/rec.onnx")
    done = deploykit_cli(
        "bench", model, "--seconds", 0.2, "--data", tmp_path, "--eval", tmp_path, "--metric", "lines", "--json"
    )
    assert done.code == 0, done.stderr
    assert done.json["metrics"]["rows"][0]["accuracy"] == 96.25
