"""Perplexity against PyTorch, pairs of embeddings and top-k against scikit-learn, paired tests against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from deploykit.comparison import compare
from deploykit.data.samples import Sample
from deploykit.errors import DataError, UsageError
from deploykit.evaluation import make_metric, paired_test
from deploykit.evaluation.significance import paired_test_of
from deploykit.parity import TOLERANCES

RNG = np.random.default_rng(8)


def over(name, feeds):
    metric = make_metric(name)
    for output, label in feeds:
        metric.add({"y": output}, label)
    return metric


def test_perplexity_is_the_exponential_of_pytorchs_cross_entropy():
    torch = pytest.importorskip("torch")
    logits = (30 * RNG.standard_normal((4, 9, 17))).astype(np.float32)  # large: needs the stable form
    labels = RNG.integers(0, 17, (4, 9))
    labels[:, -2:] = -100
    loss = torch.nn.functional.cross_entropy(
        torch.tensor(logits).double().reshape(-1, 17), torch.tensor(labels).reshape(-1)
    )
    each = [(logits[i : i + 1], labels[i]) for i in range(4)]
    metric = over("perplexity", each)
    assert metric.value() == pytest.approx(float(loss.exp()), rel=1e-9)
    assert (metric.scored, metric.unscored) == (28, 8)
    assert over("perplexity", [(logits, labels)]).value() == pytest.approx(metric.value())
    shifted = torch.nn.functional.cross_entropy(
        torch.tensor(logits[:, :-1]).double().reshape(-1, 17), torch.tensor(labels[:, 1:]).reshape(-1)
    )
    assert over("perplexity,shift=yes", each).value() == pytest.approx(float(shifted.exp()), rel=1e-9)


def test_perplexity_of_no_knowledge_is_the_number_of_tokens():
    assert over("perplexity", [(np.zeros((1, 5, 50)), np.arange(5))]).value() == pytest.approx(50)


def test_labels_of_another_length_or_vocabulary_are_told():
    for logits, label, words in [
        (np.zeros((1, 5, 7)), np.arange(4), r"\[1, 5, 7\] for labels of shape \[4\]"),
        (np.zeros((1, 2, 7)), np.array([1, 7]), "token 7 is beyond the 7"),
    ]:
        with pytest.raises(DataError, match=words) as caught:
            over("perplexity", [(logits, label)])
        assert caught.value.code == "DK423"
    with pytest.raises(UsageError, match="yes or no"):
        make_metric("perplexity,shift=1")


def test_pairs_rank_the_cosines_of_all_samples_together():
    embeddings = RNG.standard_normal((30, 3, 16)).astype(np.float32)
    embeddings[:, 1] += 0.5 * embeddings[:, 0]
    labels = np.array([1, 0])
    cosines = [1 - reference.pairwise.cosine_distances(row[:1], row[1:])[0] for row in embeddings]
    expected = reference.roc_auc_score(np.tile(labels, 30), np.concatenate(cosines))
    assert 0.6 < expected < 0.99
    assert over("pairs", [(row, labels) for row in embeddings]).value() == pytest.approx(expected)
    with pytest.raises(DataError, match=r"\[3, width\]"):
        over("pairs", [(embeddings[0][:2], labels)])
    with pytest.raises(DataError, match="both classes"):
        over("pairs", [(embeddings[0], [1, 1])]).value()


@pytest.mark.parametrize("k", [2, 3, 10, 100])
def test_any_k(k):
    scores, labels = RNG.standard_normal((80, 12)), RNG.integers(0, 12, 80)
    expected = reference.top_k_accuracy_score(labels, scores, k=min(k, 11)) if k < 12 else 1.0
    assert over(f"top{k}", [(scores, labels)]).value() == pytest.approx(100 * expected)


@pytest.mark.parametrize("name", ["top0", "top", "topk", "top-1", "top1.5"])
def test_what_is_no_k_is_no_metric(name):
    with pytest.raises(UsageError) as caught:
        make_metric(name)
    assert caught.value.code == "DK420"


def test_mcnemar_is_the_binomial_test_of_the_disagreements():
    ours, theirs = RNG.integers(0, 2, 200), RNG.integers(0, 2, 200)
    found = paired_test_of([(v, 1) for v in ours], [(v, 1) for v in theirs])
    gained, lost = int((theirs > ours).sum()), int((theirs < ours).sum())
    assert found.test == "McNemar"
    assert found.p == pytest.approx(stats.binomtest(gained, gained + lost).pvalue)
    assert paired_test_of([(1, 1)] * 5, [(1, 1)] * 5).p == 1.0
    nine = paired_test_of([(1, 1)] * 9, [(0, 1)] * 9)
    assert nine.p == pytest.approx(2 / 2**9)
    assert nine.significant
    assert not paired_test_of([(1, 1)] * 5, [(0, 1)] * 5).significant  # 1/16: five samples prove nothing


def test_randomization_agrees_with_scipys_permutation_test():
    first = RNG.standard_normal(40)
    second = first + 0.25 * RNG.standard_normal(40) + 0.08
    found = paired_test_of([(v, 3) for v in first], [(v, 3) for v in second])
    expected = stats.permutation_test(
        (first - second,),
        lambda x: np.abs(x.sum()),
        permutation_type="samples",
        n_resamples=20_000,
        random_state=1,
        alternative="greater",
    ).pvalue
    assert found.test == "randomization"
    assert found.p == pytest.approx(expected, abs=0.015)
    assert paired_test_of([(np.nan, 2)] * 4, [(1, 2)] * 4).p == 0.0


def test_other_samples_are_not_compared():
    with pytest.raises(ValueError, match="same samples"):
        paired_test_of([(1, 1)], [(1, 2)])
    with pytest.raises(ValueError, match="same samples"):
        paired_test_of([(1, 1)], [(1, 1), (1, 1)])


def test_a_metric_that_is_no_ratio_has_no_test():
    metrics = [over("auc", [(np.array([[0.2], [0.9]]), [0, 1])]) for _ in range(2)]
    assert paired_test(*metrics) is None


def test_a_comparison_says_how_sure_the_drop_is():
    samples = [Sample({"x": np.eye(2, dtype=np.float32)[[i % 2]]}, i % 2, f"sample {i}") for i in range(20)]
    wrong = iter([True] * 8 + [False] * 12)
    result = compare(
        lambda feeds: {"y": feeds["x"]},
        lambda feeds: {"y": feeds["x"][:, ::-1] if next(wrong) else feeds["x"]},
        samples,
        tolerance=TOLERANCES["int8"],
        metric="top1",
    )
    accuracy = result["accuracy"]
    assert (accuracy["reference"], accuracy["candidate"]) == (100.0, 60.0)
    assert accuracy["test"] == "McNemar"
    assert accuracy["p_value"] == pytest.approx(2 / 2**8)
