"""What each node costs, measured; and the parts that measure it."""

import dataclasses

import numpy as np
import pytest
from quantize_models import onnx_text, run, sqnr_db
from search_models import MACS, PLANTED, ROWS, planted_data, planted_model, settings_for

from deploykit import graph
from deploykit.data import Sample
from deploykit.data.request import data_request
from deploykit.progress import silent
from deploykit.quantize import sensitivity
from deploykit.quantize.evaluator import Evaluator
from deploykit.quantize.paired import FOLDS, Folded, drop_between
from deploykit.quantize.prepare import load_float
from deploykit.quantize.sample_store import SampleStore
from deploykit.quantize.sensitivity import Sensitivity, rank
from deploykit.quantize.sizes import macs_of_sample
from deploykit.quantize.static import Recipe, StaticQuantizer


@pytest.fixture
def planted(tmp_path):
    model, data = planted_model(tmp_path), planted_data(tmp_path)
    settings = settings_for(data, method="minmax")
    quantizer = StaticQuantizer(model, settings, silent)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return Evaluator(quantizer, settings, scratch, silent), model, data


def test_the_planted_node_is_first_and_the_others_are_harmless(planted):
    evaluator, _, _ = planted
    first, *others = rank(evaluator, Recipe(), silent)
    assert first.node == PLANTED
    assert first.alone_db < 10
    assert {row.node for row in others} == {"wide", "last"}
    assert all(row.alone_db > 30 for row in others)
    # All but the planted one: what the search has to find.
    assert first.without_db > 25 > 10 > others[0].without_db


def test_a_level_is_what_quantizing_that_node_by_hand_gives(planted, tmp_path):
    """With the last node, which alone makes its followers write integers, and whose own noise is taken off."""
    evaluator, model, data = planted
    rows = {row.node: row for row in rank(evaluator, Recipe(), silent)}
    x = np.load(data)["x"].reshape(-1, ROWS, 8)
    feeds = [{"x": sample} for sample in x]
    reference = np.stack([run(model, feed, optimize=False)["y"] for feed in feeds])

    quantizer = StaticQuantizer(model, settings_for(data, method="minmax"), silent)

    def noise(*exclude):
        graph.save(quantizer.quantize(Recipe(exclude)).model, tmp_path / "made.onnx")
        found = np.stack([run(tmp_path / "made.onnx", feed)["y"] for feed in feeds])
        return 10 ** (-sqnr_db(reference, found) / 10)

    assert rows["last"].noise == pytest.approx(noise(PLANTED, "wide"), rel=0.01)
    assert rows["wide"].noise == pytest.approx(noise(PLANTED) - noise(PLANTED, "wide"), rel=0.01)
    assert rows[PLANTED].noise == pytest.approx(noise("wide") - noise(PLANTED, "wide"), rel=0.01)


def test_the_output_of_a_convolution_is_a_part_of_its_price(tmp_path):
    """Its rounding is there only where an integer node follows: alone, the convolution would look harmless."""
    rng = np.random.default_rng(0)
    spread = (10.0 ** np.linspace(-3, 3, 8)).astype(np.float32).reshape(1, 8, 1, 1)
    model = onnx_text(
        """agraph (float[1,4,6,6] x) => (float[1,4,6,6] y) {
            [loud] c = Conv <kernel_shape=[1,1]> (x, w)
            a = Neg (c)
            n = Div (a, spread)
            [quiet] y = Conv <kernel_shape=[1,1]> (n, v)
        }""",
        tmp_path / "conv.onnx",
        # Channels of very different size, each with its own scale of weights: what hurts is one scale for the output.
        w=(rng.normal(size=(8, 4, 1, 1)) * spread.reshape(8, 1, 1, 1)).astype(np.float32),
        v=rng.normal(size=(4, 8, 1, 1)).astype(np.float32),
        spread=spread,
    )
    np.savez(tmp_path / "x.npz", x=rng.normal(size=(16, 4, 6, 6)).astype(np.float32))
    settings = settings_for(tmp_path / "x.npz", method="minmax")
    evaluator = Evaluator(StaticQuantizer(model, settings, silent), settings, tmp_path, silent)
    assert evaluator.evaluate(Recipe(exclude=("quiet",))).sqnr_db > 30
    rows = {row.node: row.alone_db for row in rank(evaluator, Recipe(), silent)}
    assert rows["loud"] < 10
    assert rows["quiet"] > 30


@pytest.mark.parametrize(
    ("both", "floor", "expected"),
    [
        (20.0, 40.0, 20.0436),
        (30.0, 30.0, 50.0),
        (29.0, 30.0, 35.8683),
        (-np.inf, 30.0, -np.inf),
        (np.inf, 30.0, np.inf),
    ],
)
def test_the_noise_of_the_last_nodes_is_taken_off(both, floor, expected):
    assert sensitivity._without_floor(both, floor) == pytest.approx(expected, abs=1e-3)


def test_shares_are_of_the_products(planted):
    rows = {row.node: row.macs_share for row in rank(planted[0], Recipe(), silent)}
    total = sum(MACS.values())
    assert rows == pytest.approx({name: count / total for name, count in MACS.items()})


def test_progress_has_a_true_total(planted):
    seen = []
    rank(planted[0], Recipe(), seen.append)
    alone = [step for step in seen if not step.item.startswith("all but")]
    assert [(step.done, step.total) for step in alone] == [(0, 3), (1, 3), (2, 3)]


def test_nothing_is_measured_twice(planted):
    evaluator, _, _ = planted
    rank(evaluator, Recipe(), silent)
    spent = evaluator.evaluations
    # All, the last alone, and three pairs: the last with each of the others is also all but one.
    assert spent == 5
    again = rank(evaluator, Recipe(), silent)
    assert evaluator.evaluations == spent
    assert again == rank(evaluator, Recipe(exclude=()), silent)
    # The order of exclusions makes no other model.
    one = evaluator.evaluate(Recipe(exclude=(PLANTED, "wide")))
    assert evaluator.evaluate(Recipe(exclude=("wide", PLANTED, PLANTED))) == one
    assert evaluator.evaluations == spent


def test_recipes_for_the_same_model_are_measured_once(planted):
    evaluator, _, _ = planted
    plain = evaluator.evaluate(Recipe())
    spent = evaluator.evaluations
    same = evaluator.evaluate(Recipe(method="minmax"))  # the method that was calibrated with
    assert evaluator.evaluations == spent
    assert dataclasses.replace(same, recipe=plain.recipe) == plain


def test_scratch_files_go_away(planted, tmp_path):
    planted[0].evaluate(Recipe())
    assert list((tmp_path / "scratch").iterdir()) == []


def test_neighbours_share_a_measurement_in_a_large_model(tmp_path, monkeypatch):
    monkeypatch.setattr(sensitivity, "MEASURED", 8)
    layers = 20
    body = "".join(f"[m{index}] h{index + 1} = MatMul (h{index}, w)\n" for index in range(layers))
    text = f"agraph (float[1,4] h0) => (float[1,4] h{layers}) {{ {body} }}"
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0].astype(np.float32)
    model = onnx_text(text, tmp_path / "deep.onnx", w=turn)
    np.savez(tmp_path / "x.npz", h0=rng.normal(size=(4, 4)).astype(np.float32))
    settings = settings_for(tmp_path / "x.npz", method="minmax")
    evaluator = Evaluator(StaticQuantizer(model, settings, silent), settings, tmp_path, silent)
    rows = rank(evaluator, Recipe(), silent)
    assert len(rows) == layers
    assert sorted(row.shared for row in rows) == [2] * 2 + [3] * 18
    assert evaluator.evaluations <= 8 + 1 + sensitivity.WORST


def test_noise_is_shared_by_those_that_were_measured_together():
    row = Sensitivity("a", "Conv", 0.5, 20.0, shared=2)
    assert row.noise == pytest.approx(0.005)
    assert Sensitivity("a", "Conv", 0.5, float("inf")).noise == 0
    assert Sensitivity("a", "Conv", 0.5, float("-inf")).noise == float("inf")


def test_open_dimensions_count_as_the_data_has_them(tmp_path):
    path = onnx_text(
        """agraph (float[batch,3,height,width] x) => (float[batch,8,a,b] y) {
            [conv] c = Conv <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (x, w)
            [relu] r = Relu (c)
            [one] y = Conv <kernel_shape=[1,1]> (r, v)
        }""",
        tmp_path / "open.onnx",
        w=np.ones((16, 3, 3, 3), np.float32),
        v=np.ones((8, 16, 1, 1), np.float32),
    )
    model, _ = load_float(path)
    sample = Sample({"x": np.zeros((1, 3, 32, 20), np.float32)}, None, "sample 0")
    assert macs_of_sample(model, sample) == {"conv": 16 * 10 * 16 * 3 * 9, "one": 16 * 10 * 8 * 16}
    assert not model.graph.inputs[0].shape.is_static()  # as it was


def test_samples_beyond_the_memory_limit_come_back_from_files(tmp_path):
    store = SampleStore(tmp_path, limit=100)
    words = np.array(["a", "longer"], dtype=object)
    samples = [
        Sample({"x": np.arange(10, dtype=np.float32) + index, "t": words}, 3, f"sample {index}") for index in range(4)
    ]
    for index, sample in enumerate(samples):
        store.add(sample, {"y/out:0": np.full((2, 2), index, np.int64)})
    assert len(list(tmp_path.iterdir())) > 0
    for _ in range(2):
        for index, (sample, outputs) in enumerate(store):
            assert sample.name == f"sample {index}"
            assert np.array_equal(sample.feeds["x"], samples[index].feeds["x"])
            assert sample.feeds["t"].tolist() == ["a", "longer"]
            assert sample.feeds["t"].dtype == object
            assert outputs["y/out:0"].dtype == np.int64
            assert outputs["y/out:0"].tolist() == [[index, index], [index, index]]


def test_the_error_of_a_drop_is_that_of_paired_differences():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    before = np.where(rng.random(200) < 0.9, labels, 1 - labels)
    after = np.where(rng.random(200) < 0.95, before, 1 - before)
    metrics = Folded("top1"), Folded("top1")
    for label, one, other in zip(labels, before, after, strict=True):
        metrics[0].add({"y": np.array([one])}, np.array([label]))
        metrics[1].add({"y": np.array([other])}, np.array([label]))
    lost = 100.0 * ((before == labels).astype(float) - (after == labels).astype(float))
    found = drop_between(*metrics)
    assert found.value == pytest.approx(lost.mean())
    tenths = [lost[fold::FOLDS].mean() for fold in range(FOLDS)]
    assert found.error == pytest.approx(np.std(tenths, ddof=1) / np.sqrt(FOLDS))
    # Of the same size as the textbook's s / sqrt(n), which needs a value for each sample.
    assert found.error == pytest.approx(lost.std(ddof=1) / np.sqrt(200), rel=0.5)
    assert found.at_most > found.value


def test_too_few_samples_for_tenths_have_no_error():
    metrics = Folded("top1"), Folded("top1")
    for metric in metrics:
        metric.add({"y": np.array([1])}, np.array([1]))
    assert drop_between(*metrics).error is None


def test_state_is_carried_on_each_side_by_itself(tmp_path):
    model = onnx_text(
        """agraph (float[1,8] x, float[1,8] s) => (float[1,8] y, float[1,8] t) {
            [mix] m = MatMul (x, w)
            t = Add (m, s)
            [read] y = MatMul (t, v)
        }""",
        tmp_path / "state.onnx",
        w=np.eye(8, dtype=np.float32) + 0.1,
        v=np.eye(8, dtype=np.float32) - 0.1,
    )
    x = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    contract = {"s": {"carry": "t"}}
    data = data_request(str(tmp_path / "x.npz"), "calibration", contract=contract)
    settings = dataclasses.replace(settings_for(tmp_path / "x.npz", method="minmax"), data=data)
    quantizer = StaticQuantizer(model, settings, silent)
    evaluator = Evaluator(quantizer, settings, tmp_path, silent)
    score = evaluator.evaluate(Recipe())
    made = tmp_path / "made.onnx"

    graph.save(quantizer.quantize(Recipe()).model, made)
    states = [np.zeros((1, 8), np.float32)] * 2
    outputs: list[list[np.ndarray]] = [[], []]
    for row in x:
        for side, path in enumerate((model, made)):
            found = run(path, {"x": row[None], "s": states[side]}, optimize=bool(side))
            states[side] = found["t"]
            outputs[side].append(np.concatenate([found["y"], found["t"]]))
    levels = [sqnr_db(*(np.stack(side)[:, part] for side in outputs)) for part in (0, 1)]
    assert score.sqnr_db == pytest.approx(min(levels), abs=0.01)
