"""Inputs of transformers models: sizes that are compared, feeds that mean something, limits and fixed dimensions."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from deploykit.artifact import TensorSpec
from deploykit.data.specs import DimRange
from deploykit.errors import ModelError, UsageError
from deploykit.exporters.huggingface_inputs import BATCH, PAST, SEQUENCE, TOTAL, Inputs, inputs_of, size_of


class Model:
    """What is asked of a model before it is run: its class, configuration and modules."""

    def __init__(self, main="input_ids", modules=(), **config):
        self.main_input_name = main
        self.config = SimpleNamespace(get_text_config=lambda: self.config, **config)
        self.modules = modules

    def named_modules(self):
        return self.modules

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, position_ids=None): ...


def task(name="feature-extraction", *, past=False):
    return SimpleNamespace(name=name, past=past, generates=name.startswith("text-generation"))


def with_cache() -> Inputs:
    model = Model(vocab_size=50, max_position_embeddings=20)
    return inputs_of(model, task("text-generation-with-past", past=True), None, [], {}, [((2, 4), (2, 4))])


def test_an_encoder_has_the_inputs_that_its_configuration_gives_a_meaning(tmp_path):
    found = inputs_of(Model(vocab_size=50, type_vocab_size=2, max_position_embeddings=64), task(), tmp_path, [], {})
    assert [spec.name for spec in found.specs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert found.ranges[SEQUENCE] == DimRange(SEQUENCE, 1, 64)
    without = inputs_of(Model(vocab_size=50, type_vocab_size=1), task(), tmp_path, [], {})
    assert [spec.name for spec in without.specs] == ["input_ids", "attention_mask"]


def test_positions_before_the_first_one_are_no_room_for_tokens(tmp_path):
    rows = SimpleNamespace(padding_idx=1, num_embeddings=42)
    model = Model(modules=[("embeddings.position_embeddings", rows)], max_position_embeddings=42)
    assert inputs_of(model, task(), tmp_path, [], {}).limit == 40


def test_every_dimension_is_compared_at_three_sizes_the_ends_included():
    points = with_cache().points()
    sizes = {name: {point[name] for point in points} for name in (BATCH, SEQUENCE, PAST)}
    assert {1, 20} <= sizes[SEQUENCE]
    assert {0, 19} <= sizes[PAST]
    assert 1 in sizes[BATCH]
    assert all(len(found) >= 3 for found in sizes.values())
    assert all(point[SEQUENCE] + point[PAST] <= 20 for point in points)


def test_a_cache_lengthens_the_mask_and_moves_the_positions():
    inputs = with_cache()
    feeds = inputs.feeds({BATCH: 2, SEQUENCE: 3, PAST: 4}, (0, 0), padded=True)
    assert feeds["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1], [1] * 7]
    assert feeds["position_ids"].tolist() == [[4, 5, 6]] * 2
    assert feeds["past_key_values.0.key"].shape == (2, 2, 4, 4)
    assert feeds["input_ids"].max() < 50
    assert inputs.sizes(feeds) == {BATCH: 2, SEQUENCE: 3, PAST: 4}


def test_padding_hides_the_end_of_a_text_and_never_all_of_it():
    feeds = with_cache().feeds({BATCH: 2, SEQUENCE: 5, PAST: 0}, (0, 0), padded=True)
    assert feeds["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    one = with_cache().feeds({BATCH: 1, SEQUENCE: 1, PAST: 0}, (0, 0), padded=True)
    assert one["attention_mask"].tolist() == [[1]]


def test_examples_never_have_a_one_and_no_two_alike():
    sizes = with_cache().example()
    assert min(sizes.values()) > 1
    assert len(set(sizes.values())) == 3


def test_fixed_numbers_go_into_sums():
    model = Model(vocab_size=50, max_position_embeddings=20)
    kind = task("text-generation-with-past", past=True)
    found = inputs_of(model, kind, None, [], {SEQUENCE: [1, 1]}, [((2, 4), (2, 4))])
    assert {spec.name: spec.shape for spec in found.specs}["attention_mask"] == (BATCH, f"{PAST} + 1")
    both = inputs_of(model, kind, None, [], {SEQUENCE: [1, 1], PAST: [7, 7]}, [((2, 4), (2, 4))])
    assert {spec.name: spec.shape for spec in both.specs}["attention_mask"] == (BATCH, 8)
    assert list(both.ranges) == [BATCH]


def test_sums_have_a_size():
    assert size_of(TOTAL, {PAST: 3, SEQUENCE: 4}) == 7
    assert size_of(f"{PAST} + 1", {PAST: 3}) == 4
    assert size_of(5, {}) == 5


@pytest.mark.parametrize(
    ("facts", "size"),
    [
        ({"size": {"height": 30, "width": 40}}, (30, 40)),
        ({"size": {"shortest_edge": 48}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}}, (32, 32)),
        ({"size": {"shortest_edge": 48}}, (48, 48)),
        ({"size": 64}, (64, 64)),
        (None, (224, 224)),
    ],
)
def test_the_size_of_images_is_the_preprocessors(tmp_path, facts, size):
    if facts is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(facts))
    (spec,) = inputs_of(Model("pixel_values", num_channels=1), task(), tmp_path, [], {}).specs
    assert spec == TensorSpec("pixel_values", "float32", (BATCH, 1, *size))


def test_a_configuration_knows_its_images_best(tmp_path):
    (spec,) = inputs_of(Model("pixel_values", image_size=[32, 48]), task(), tmp_path, [], {}).specs
    assert spec.shape == (BATCH, 3, 32, 48)


def test_sound_is_long_enough_for_two_frames(tmp_path):
    found = inputs_of(Model("input_values", conv_kernel=[10, 3], conv_stride=[5, 2]), task(), tmp_path, [], {})
    # Two frames of the second convolution take 5 of the first: 4 * 5 + 10 samples.
    assert found.ranges[SEQUENCE].minimum == 30


def test_spectrograms_have_the_models_own_size(tmp_path):
    (spec,) = inputs_of(Model("input_values", num_mel_bins=16, max_length=32), task(), tmp_path, [], {}).specs
    assert spec.shape == (BATCH, 32, 16)
    (spec,) = inputs_of(Model("input_features", num_mel_bins=8, max_source_positions=5), task(), tmp_path, [], {}).specs
    assert spec.shape == (BATCH, 8, 10)


def test_what_is_not_known_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(ModelError) as refused:
        inputs_of(Model("flattened_patches"), task(), tmp_path, [], {})
    assert refused.value.code == "DK681"
    assert "model.py:factory" in refused.value.hint


def test_a_described_input_replaces_the_inferred_one(tmp_path):
    given = TensorSpec("pixel_values", "float32", (BATCH, 3, "height", "width"))
    found = inputs_of(Model("pixel_values"), task(), tmp_path, [given.as_dict()], {"height": [32, 64]})
    assert found.specs == (given,)
    assert found.ranges["height"] == DimRange("height", 32, 64)
    for wrong in ({"given": [TensorSpec("x", "float32", (1,)).as_dict()]}, {"dims": {"depth": [1, 2]}}):
        with pytest.raises(UsageError) as refused:
            inputs_of(Model("pixel_values"), task(), tmp_path, wrong.get("given", []), wrong.get("dims", {}))
        assert refused.value.code == "DK620"


def test_a_number_in_one_input_is_one_in_all_that_share_the_dimension(tmp_path):
    given = TensorSpec("input_ids", "int32", (1, 16)).as_dict()
    found = inputs_of(Model(vocab_size=50), task(), tmp_path, [given], {})
    assert [(spec.dtype, spec.shape) for spec in found.specs] == [("int32", (1, 16)), ("int64", (1, 16))]


@pytest.mark.parametrize("shape", [("batch", SEQUENCE), (BATCH, SEQUENCE, 3)])
def test_shared_dimensions_keep_their_names_and_ranks(tmp_path, shape):
    given = TensorSpec("input_ids", "int64", shape).as_dict()
    with pytest.raises(UsageError) as refused:
        inputs_of(Model(vocab_size=50), task(), tmp_path, [given], {})
    assert "input_ids:int64[batch_size,sequence_length]" in refused.value.hint


def test_bounds_beyond_the_models_positions_are_refused(tmp_path):
    with pytest.raises(UsageError) as refused:
        inputs_of(Model(vocab_size=50, max_position_embeddings=20), task(), tmp_path, [], {SEQUENCE: [1, 64]})
    assert "has 20 positions" in refused.value.message
    assert refused.value.hint == "--dim sequence_length=1..20"


def test_random_feeds_are_the_same_for_the_same_seed():
    sizes = {BATCH: 2, SEQUENCE: 3, PAST: 1}
    first, second, other = (with_cache().feeds(sizes, seed) for seed in ((0, 1), (0, 1), (0, 2)))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["past_key_values.0.key"], other["past_key_values.0.key"])
