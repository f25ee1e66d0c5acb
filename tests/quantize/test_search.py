"""The most quantized model within a budget."""

import dataclasses
import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from quantize_models import onnx_text, run, sqnr_db
from search_models import MACS, PLANTED, ROWS, budget, planted_data, planted_model, settings_for

from deploykit.data.dataset import spread
from deploykit.errors import UsageError
from deploykit.progress import silent
from deploykit.quantize import evaluator
from deploykit.quantize.product import written
from deploykit.quantize.search import quantize_mixed
from deploykit.quantize.settings import Settings
from deploykit.quantize.static import Recipe, StaticQuantizer, quantize_static

REST = (MACS["wide"] + MACS["last"]) / sum(MACS.values())


@pytest.fixture
def model(tmp_path):
    return planted_model(tmp_path)


@pytest.fixture
def calib(tmp_path):
    return planted_data(tmp_path)


def labelled(model, data, path):
    """The data with the float model's own classes."""
    x = np.load(data)["x"]
    classes = [run(model, {"x": part})["y"].argmax(axis=1) for part in x.reshape(-1, ROWS, 8)]
    np.savez(path, x=x, y=np.concatenate(classes))
    return path


def integer_nodes(path):
    """Names of the multiplications whose first input is dequantized."""
    graph = onnx.load(path).graph
    made = {name: node for node in graph.node for name in node.output}
    return {
        node.name
        for node in graph.node
        if node.op_type == "MatMul" and getattr(made.get(node.input[0]), "op_type", "") == "DequantizeLinear"
    }


def codes(facts):
    return [finding["code"] for finding in facts["findings"]]


def level(model, made, data):
    """SQNR over all rows, by onnxruntime alone."""
    parts = np.load(data)["x"].reshape(-1, ROWS, 8)
    reference = np.stack([run(model, {"x": part}, optimize=False)["y"] for part in parts])
    return sqnr_db(reference, np.stack([run(made, {"x": part})["y"] for part in parts]))


def test_only_the_planted_node_is_left_in_float(model, calib, tmp_path):
    out = tmp_path / "out.onnx"
    facts = quantize_mixed(model, out, settings_for(calib), silent)
    assert integer_nodes(out) == {"wide", "last"}
    metrics = facts["metrics"]
    assert metrics["int8_macs_share"] == pytest.approx(REST)
    search = metrics["search"]
    assert search["met"]
    assert search["left_in_float"] == [PLANTED]
    assert search["recipe"]["exclude"] == [PLANTED]
    # On rows that neither calibrated nor were searched on.
    assert level(model, out, planted_data(tmp_path, seed=7)) > 20
    assert search["best"]["sqnr_db"] == pytest.approx(level(model, out, calib), abs=0.01)
    plain = search["tried"][0]
    assert (plain["step"], plain["met"], plain["int8_macs_share"]) == ("as asked for", False, 1.0)
    assert plain["sqnr_db"] < 20
    left = next(finding for finding in facts["findings"] if finding["code"] == "DK397")
    assert left["node"] == PLANTED
    assert "dB are left" in left["message"]
    assert metrics["sensitivity"][0]["node"] == PLANTED


def test_all_methods_were_tried_before_a_node_was_left_out(model, calib, tmp_path):
    facts = quantize_mixed(model, tmp_path / "out.onnx", settings_for(calib), silent)
    steps = [row["step"] for row in facts["metrics"]["search"]["tried"]]
    first = next(index for index, step in enumerate(steps) if step.startswith("without"))
    assert {"minmax", "percentile", "entropy", "mse"} <= set(steps[:first])
    assert {"SmoothQuant", "bias correction"} <= set(steps[:first])
    assert facts["metrics"]["search"]["evaluations"] <= 40


def test_a_model_that_is_harmless_as_a_whole_takes_one_evaluation(tmp_path):
    rng = np.random.default_rng(0)
    source = onnx_text(
        "agraph (float[4,8] x) => (float[4,8] y) { [only] y = MatMul (x, w) }",
        tmp_path / "easy.onnx",
        w=rng.normal(size=(8, 8)).astype(np.float32),
    )
    np.savez(tmp_path / "x.npz", x=rng.normal(size=(64, 8)).astype(np.float32))
    facts = quantize_mixed(source, tmp_path / "out.onnx", settings_for(tmp_path / "x.npz"), silent)
    search = facts["metrics"]["search"]
    assert (search["evaluations"], search["left_in_float"], search["met"]) == (1, [], True)
    assert facts["precision"] == "int8"
    assert "sensitivity" not in facts["metrics"]


def test_the_same_search_gives_the_same_bytes_and_decisions(model, calib, tmp_path):
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        facts = quantize_mixed(model, tmp_path / name / "out.onnx", settings_for(calib), silent)
        facts["metrics"]["search"].pop("seconds")
        facts["metrics"].pop("calibration")
        found.append((json.dumps(facts), (tmp_path / name / "out.onnx").read_bytes()))
    assert found[0] == found[1]


def test_its_decisions_make_the_same_model_without_a_search(model, calib, tmp_path):
    out, again = tmp_path / "out.onnx", tmp_path / "again.onnx"
    recipe = quantize_mixed(model, out, settings_for(calib), silent)["metrics"]["search"]["recipe"]
    replay = settings_for(calib, **{**recipe, "exclude": tuple(recipe["exclude"])})
    facts = quantize_static(model, again, replay, silent)
    assert again.read_bytes() == out.read_bytes()
    assert "search" not in facts["metrics"]


@pytest.mark.parametrize("method", ["minmax", "mse"])
def test_every_decision_can_be_given_as_an_option(calib, tmp_path, method):
    rng = np.random.default_rng(0)
    source = onnx_text(
        """agraph (float[16,8] x) => (float[16,4] y) {
            [up] h = Gemm (x, w, b)
            r = Relu (h)
            [down] y = Gemm (r, v, c)
        }""",
        tmp_path / "biased.onnx",
        w=rng.normal(size=(8, 32)).astype(np.float32),
        b=rng.normal(size=32).astype(np.float32),
        v=rng.normal(size=(32, 4)).astype(np.float32),
        c=rng.normal(size=4).astype(np.float32),
    )
    recipe = Recipe(("down",), method=method, smooth_quant=0.5, bias_correction=True)
    tried = StaticQuantizer(source, settings_for(calib), silent).quantize(recipe)
    written(tried.model, tmp_path / "tried.onnx", "int8", ())
    asked = settings_for(calib, exclude=("down",), method=method, smooth_quant=0.5, bias_correction=True)
    quantize_static(source, tmp_path / "asked.onnx", asked, silent)
    assert (tmp_path / "asked.onnx").read_bytes() == (tmp_path / "tried.onnx").read_bytes()


def test_what_the_user_excluded_stays_excluded(model, calib, tmp_path):
    out = tmp_path / "out.onnx"
    facts = quantize_mixed(model, out, settings_for(calib, exclude=("wide",)), silent)
    assert integer_nodes(out) == {"last"}
    reasons = {finding["node"]: finding["code"] for finding in facts["findings"] if finding["node"]}
    assert reasons["wide"] == "DK355"
    assert reasons[PLANTED] == "DK397"
    with pytest.raises(UsageError) as raised:
        quantize_mixed(model, out, settings_for(calib, exclude=("nowhere",)), silent)
    assert raised.value.code == "DK354"


def test_a_method_that_was_asked_for_is_kept(model, calib, tmp_path):
    facts = quantize_mixed(model, tmp_path / "out.onnx", settings_for(calib, method="minmax"), silent)
    search = facts["metrics"]["search"]
    assert search["recipe"]["method"] == "minmax"
    assert {row["method"] for row in search["tried"]} == {None}


def test_ranges_of_a_file_are_searched_without_the_data_that_made_them(model, calib, tmp_path):
    kept = str(tmp_path / "kept.json")
    first = quantize_mixed(model, tmp_path / "a.onnx", settings_for(calib, ranges=kept), silent)
    alone = dataclasses.replace(settings_for(calib, ranges=kept), data=None)
    facts = quantize_mixed(model, tmp_path / "b.onnx", alone, silent)
    assert facts["metrics"]["calibration"]["reused"]
    assert first["metrics"]["search"]["left_in_float"] == facts["metrics"]["search"]["left_in_float"] == [PLANTED]
    assert {row["method"] for row in facts["metrics"]["search"]["tried"]} == {None}


def test_without_a_budget_labels_cost_no_evaluation(model, calib, tmp_path):
    (tmp_path / "never.py").write_text("def score(outputs, label):\n    raise AssertionError\n")
    data = labelled(model, calib, tmp_path / "labelled.npz")
    accuracy = {**budget(data, f"{tmp_path / 'never.py'}:score", 0.0), "max_drop": None}
    facts = quantize_mixed(model, tmp_path / "out.onnx", settings_for(calib, accuracy=accuracy), silent)
    assert facts["metrics"]["search"]["met"]


def test_a_budget_of_accuracy_is_kept_and_told(model, calib, tmp_path):
    data = labelled(model, planted_data(tmp_path, seed=3), tmp_path / "labelled.npz")
    settings = settings_for(calib, accuracy=budget(data, "top1", 2.0))
    out = tmp_path / "out.onnx"
    facts = quantize_static(model, out, settings, silent)  # int8 with a budget searches, too
    best = facts["metrics"]["search"]["best"]
    stored = np.load(data)
    right = np.concatenate([run(out, {"x": part})["y"].argmax(axis=1) for part in stored["x"].reshape(-1, ROWS, 8)])
    assert best["drop"] == pytest.approx(100.0 - 100.0 * np.mean(right == stored["y"]))
    assert best["drop"] <= 2.0
    assert best["error"] is not None
    assert facts["metrics"]["search"]["budget"] == {"min_sqnr_db": 21.0, "max_drop": 2.0, "metric": "top1"}


def test_what_a_part_of_the_labels_allows_is_confirmed_on_all(model, calib, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "SCORED", 4)
    first = quantize_mixed(model, tmp_path / "a.onnx", settings_for(calib), silent)["metrics"]["search"]["best"]
    # A metric that asks for 1 dB more, of samples that the four evenly spread ones are not among.
    (tmp_path / "strict.py").write_text(
        "import numpy as np\n"
        "def score(outputs, labels):\n"
        "    hard = [(label, found['y']) for found, label in zip(outputs, labels) if label.any()]\n"
        "    noise = sum(np.sum((label - found) ** 2) for label, found in hard)\n"
        "    signal = sum(np.sum(label ** 2) for label, _ in hard)\n"
        f"    return float(signal >= noise * 10 ** {(first['sqnr_db'] + 1) / 10})\n"
    )
    x = np.load(calib)["x"]
    y = np.stack([run(model, {"x": part}, optimize=False)["y"] for part in x.reshape(-1, ROWS, 8)])
    y[spread(12, 4)] = 0
    np.savez(tmp_path / "labelled.npz", x=x, y=y.reshape(-1, 4))
    accuracy = budget(tmp_path / "labelled.npz", f"{tmp_path / 'strict.py'}:score", 0.0)
    facts = quantize_mixed(model, tmp_path / "b.onnx", settings_for(calib, accuracy=accuracy), silent)
    search = facts["metrics"]["search"]
    assert search["met"]
    assert search["best"]["sqnr_db"] > first["sqnr_db"] + 0.5
    assert len(search["left_in_float"]) == 2
    assert [row["met"] for row in search["tried"] if row["step"] == "on all labelled samples"] == [False, True]


def test_a_metric_that_does_not_notice_never_lets_a_broken_model_pass(model, calib, tmp_path):
    (tmp_path / "lenient.py").write_text("def score(outputs, label):\n    return 1.0\n")
    data = labelled(model, calib, tmp_path / "labelled.npz")
    settings = settings_for(calib, accuracy=budget(data, f"{tmp_path / 'lenient.py'}:score", 0.0))
    out = tmp_path / "out.onnx"
    facts = quantize_mixed(model, out, settings, silent)
    assert PLANTED not in integer_nodes(out)
    plain = facts["metrics"]["search"]["tried"][0]
    assert plain["drop"] is None  # outputs that fail the gate are not even scored
    assert not plain["met"]


def test_a_budget_that_cannot_be_met_keeps_the_best_under_another_name(model, calib, tmp_path):
    data = labelled(model, calib, tmp_path / "labelled.npz")
    out = tmp_path / "out.onnx"
    facts = quantize_mixed(model, out, settings_for(calib, accuracy=budget(data, "top1", -5.0)), silent)
    failed = [finding for finding in facts["findings"] if finding["severity"] == "error"]
    assert [finding["code"] for finding in failed] == ["DK396"]
    assert "at most -5" in failed[0]["message"]
    assert not out.exists()
    best = out.parent / facts["kept"]
    assert best.name == "out.best.onnx"
    found = facts["metrics"]["search"]["best"]
    assert not facts["metrics"]["search"]["met"]
    # Of those that are sound the one that loses least, and of these the most quantized one.
    sound = [row for row in facts["metrics"]["search"]["tried"] if row["drop"] is not None]
    assert found["drop"] == min(row["drop"] for row in sound)
    shares = [row["int8_macs_share"] for row in sound if row["drop"] == found["drop"]]
    assert found["int8_macs_share"] == max(shares)
    assert level(model, best, calib) == pytest.approx(found["sqnr_db"], abs=0.01)


def test_a_model_whose_only_node_breaks_has_no_int8_form(tmp_path):
    rng = np.random.default_rng(0)
    source = onnx_text(
        """agraph (float[16,8] x) => (float[16,8] y) {
            [planted] h = MatMul (x, w)
            size = ReduceL2 <axes=[1]> (h)
            y = Div (h, size)
        }""",
        tmp_path / "hopeless.onnx",
        w=rng.normal(size=(8, 8)).astype(np.float32),
    )
    calib = planted_data(tmp_path)
    facts = quantize_mixed(source, tmp_path / "out.onnx", settings_for(calib), silent)
    assert codes(facts).count("DK396") == 1
    assert (tmp_path / facts["kept"]).exists()


def test_a_drop_that_few_samples_cannot_prove_is_said(model, calib, tmp_path):
    data = labelled(model, planted_data(tmp_path, seed=5), tmp_path / "labelled.npz")
    stored = dict(np.load(data))
    stored["y"][:8] = (stored["y"][:8] + 1) % 4  # wrong labels, so that the two models differ in both directions
    np.savez(data, **stored)
    plain = quantize_mixed(model, tmp_path / "a.onnx", settings_for(calib, accuracy=budget(data, "top1", 50.0)), silent)
    best = plain["metrics"]["search"]["best"]
    assert best["error"] > 0
    limit = best["drop"] + 0.5 * best["error"]
    tight = quantize_mixed(
        model, tmp_path / "b.onnx", settings_for(calib, accuracy=budget(data, "top1", limit)), silent
    )
    assert "DK398" in codes(tight)
    assert "DK398" not in codes(plain)


def test_a_stochastic_model_is_quantized_and_not_searched(tmp_path):
    source = onnx_text(
        """agraph (float[4,8] x) => (float[4,8] y) {
            noise = RandomNormalLike (x)
            n = Add (x, noise)
            [mm] y = MatMul (n, w)
        }""",
        tmp_path / "random.onnx",
        w=np.eye(8, dtype=np.float32),
    )
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32))
    facts = quantize_mixed(source, tmp_path / "out.onnx", settings_for(tmp_path / "x.npz"), silent)
    assert "DK399" in codes(facts)
    assert "search" not in facts["metrics"]
    ranked = quantize_static(source, tmp_path / "b.onnx", settings_for(tmp_path / "x.npz", sensitivity=True), silent)
    assert "DK399" in codes(ranked)


def test_nothing_to_quantize_is_said_as_for_int8(tmp_path):
    source = onnx_text("agraph (float[4,8] x) => (float[4,8] y) { y = Relu (x) }", tmp_path / "relu.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((16, 8), np.float32))
    facts = quantize_mixed(source, tmp_path / "out.onnx", settings_for(tmp_path / "x.npz"), silent)
    assert "DK356" in codes(facts)
    assert facts["precision"] == "fp32"
    assert not [code for code in codes(facts) if code in {"DK395", "DK396"}]


def test_int8_ranks_its_nodes_when_asked(model, calib, tmp_path):
    facts = quantize_static(model, tmp_path / "out.onnx", settings_for(calib, sensitivity=True), silent)
    rows = facts["metrics"]["sensitivity"]
    assert rows[0]["node"] == PLANTED
    assert integer_nodes(tmp_path / "out.onnx") == {PLANTED, "wide", "last"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "planted-1.npz", "planted.onnx"]


def test_labels_show_what_the_worst_nodes_cost_alone(model, calib, tmp_path):
    data = labelled(model, calib, tmp_path / "labelled.npz")
    settings = settings_for(calib, sensitivity=True, accuracy={**budget(data, "top1", 0), "max_drop": None})
    rows = quantize_static(model, tmp_path / "out.onnx", settings, silent)["metrics"]["sensitivity"]
    assert rows[0]["metric_drop"] > 10
    assert all(row["metric_drop"] < 5 for row in rows[1:])


def test_settings_survive_the_way_to_the_worker(calib):
    settings = settings_for(calib, sensitivity=True, accuracy=budget(calib, "top1", 0.5))
    assert Settings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings
    assert settings.searches
    assert not dataclasses.replace(settings, accuracy={**settings.accuracy, "max_drop": None}).searches


def test_the_result_loads_with_every_level_of_optimisation(model, calib, tmp_path):
    out = tmp_path / "out.onnx"
    quantize_mixed(model, out, settings_for(calib), silent)
    onnx.checker.check_model(str(out), full_check=True)
    x = np.load(calib)["x"][:ROWS]
    results = []
    for chosen in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = chosen
        session = ort.InferenceSession(str(out), options, providers=["CPUExecutionProvider"])
        results.append(session.run(None, {"x": x})[0])
    assert sqnr_db(*results) > 30
