"""The search against all subsets, on models that are only numbers: noise that adds up, and work."""

import itertools
import math

import numpy as np
import pytest
from search_models import settings_for

from deploykit.progress import silent
from deploykit.quantize.evaluator import Score, digest_of
from deploykit.quantize.paired import Drop
from deploykit.quantize.static import Recipe
from deploykit.quantize.strategy import EXCHANGES, RESTORES, Search

GATE = 21.0
BONUS = {"mse": 0.5, "minmax": 2.0}  # noise by method, as a factor


class Numbers:
    """Scores recipes as the evaluator does: noise powers and work by node, and what each loses on the task."""

    labelled = True

    def __init__(self, noise, work, loss=None):
        self.noise, self.work, self.loss = noise, work, loss or dict.fromkeys(noise, 0.0)
        self.ops = dict.fromkeys(noise, "Conv")
        self.seen = {}

    @property
    def evaluations(self):
        return len(self.seen)

    def share(self, names):
        return sum(self.work[name] for name in names) / sum(self.work.values())

    def without_followers(self, names):
        return ()

    def evaluate(self, recipe, *, scored=True):
        names = tuple(name for name in self.noise if name not in recipe.exclude)
        power = sum(self.noise[name] for name in names) * BONUS.get(recipe.method, 1.0)
        level = -10 * math.log10(power) if power else math.inf
        drop = Drop(sum(self.loss[name] for name in names), 0.0, 0.0, 100) if scored and level >= GATE else None
        made = Score(recipe, names, self.share(names), level, level >= GATE, drop, f"{names} {power}")
        self.seen[digest_of(recipe)] = made
        return made

    score_always = confirm = evaluate


def best_of_all(model, factor, budget):
    """The largest share of all subsets that are within the budget."""
    names, most = list(model.noise), 0.0
    for count in range(len(names) + 1):
        for kept in itertools.combinations(names, count):
            power = factor * sum(model.noise[name] for name in kept)
            if power <= 10 ** (-GATE / 10) and (budget is None or sum(model.loss[name] for name in kept) <= budget):
                most = max(most, model.share(kept))
    return most


def random_model(seed, *, losses):
    rng = np.random.default_rng(seed)
    names = [f"n{index}" for index in range(12)]
    noise = dict(zip(names, 10 ** rng.uniform(-5, -1, 12), strict=True))
    work = dict(zip(names, 10 ** rng.uniform(0, 2, 12), strict=True))
    loss = {name: 100 * noise[name] * rng.uniform(0.5, 1.5) for name in names} if losses else None
    return Numbers(noise, work, loss)


def searched(model, budget, tmp_path):
    accuracy = None if budget is None else {"max_drop": budget, "metric": "top1", "data": {}}
    settings = settings_for(tmp_path / "x.npz", accuracy=accuracy)
    return Search(model, settings, Recipe(), silent).run()


@pytest.mark.parametrize("losses", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_share_is_near_that_of_the_best_subset(seed, losses, tmp_path):
    model = random_model(seed, losses=losses)
    budget = 0.3 if losses else None
    outcome = searched(model, budget, tmp_path)
    assert outcome.met
    assert outcome.best.sound
    assert budget is None or outcome.best.drop.value <= budget
    assert outcome.best.recipe.method == "mse"  # the one with the least noise
    assert outcome.best.macs_share >= 0.9 * best_of_all(model, BONUS["mse"], budget)
    assert model.evaluations <= 12 + 16 + RESTORES + EXCHANGES


def test_what_was_left_out_on_the_way_comes_back(tmp_path):
    """Small nodes with much noise for their work go first, and nearly all of them fit in again beside the large one."""
    model = Numbers(
        {"loud": 1.0, "a": 1e-5, "b": 1e-5, "c": 1e-5, "large": 1e-3},
        {"loud": 1e6, "a": 1.0, "b": 1.0, "c": 1.0, "large": 1e4},
    )
    outcome = searched(model, None, tmp_path)
    assert outcome.left == ("loud",)


def test_a_method_alone_is_enough_where_it_is(tmp_path):
    model = Numbers({"a": 0.012}, {"a": 1.0})
    outcome = searched(model, None, tmp_path)
    assert outcome.best.recipe.method == "mse"
    assert (outcome.left, outcome.ranking) == ((), ())


def test_the_best_of_those_over_the_budget_is_sound_and_loses_least(tmp_path):
    model = Numbers({"a": 1e-4, "b": 1e-4, "c": 1e-1}, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 2.0, "b": 2.0, "c": 2.0})
    outcome = searched(model, 1.0, tmp_path)
    assert not outcome.met
    assert outcome.best.sound
    assert outcome.best.drop.value == 2.0
    assert len(outcome.best.nodes) == 1


def test_without_a_sound_candidate_the_least_noise_is_the_best(tmp_path):
    outcome = searched(Numbers({"a": 0.1, "b": 0.3}, {"a": 1.0, "b": 1.0}), None, tmp_path)
    assert not outcome.met
    assert outcome.best.nodes == ("a",)
    assert outcome.best.recipe.method == "mse"
