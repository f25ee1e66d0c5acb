import numpy as np
import pytest
from quantize_models import sqnr_db

from deploykit.quantize.blocks import in_blocks, pack, round_to_nearest, rounded, searched_grid
from deploykit.quantize.gptq import Gptq

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def correlated(count, columns, rank=24):
    """Activations whose columns vary together, as those of trained models do, some much more than others."""
    mixing = normal(rank, columns) * np.logspace(0, -1.5, columns, dtype=np.float32)
    return normal(count, rank) @ mixing + 0.05 * normal(count, columns)


def test_two_codes_a_byte_the_first_in_the_low_half():
    assert pack(np.array([[1, 2, 3], [15, 0, 8]], np.uint8)).tolist() == [[0x21, 0x03], [0x0F, 0x08]]


@pytest.mark.parametrize("columns", [64, 80, 33])
@pytest.mark.parametrize("symmetric", [False, True])
def test_values_lie_within_half_a_step_or_at_the_end_of_the_range(columns, symmetric):
    weight = normal(20, columns)
    made = round_to_nearest(weight, 32, symmetric=symmetric)
    assert made.codes.shape == (20, -(-columns // 32) * 32)
    assert made.codes.max() <= 15
    if symmetric:
        assert (made.zero == 8).all()
    blocks, found = in_blocks(weight, 32), in_blocks(made.dequantized(), 32)
    scale, zero = made.scale[..., None], made.zero[..., None].astype(np.float32)
    inside = np.clip(blocks, -zero * scale, (15 - zero) * scale)
    assert np.abs(found - inside).max() <= 0.5001 * made.scale.max()
    assert sqnr_db(weight, made.dequantized()) > 19


def test_zeros_and_constants_are_exact():
    weight = np.zeros((3, 64), np.float32)
    weight[1], weight[2] = 2.5, -1e-30
    found = round_to_nearest(weight, 32).dequantized()
    assert np.array_equal(found[0], weight[0])
    assert np.allclose(found[1], weight[1])
    assert np.isfinite(found).all()


def test_a_searched_range_is_never_worse_than_the_whole_one():
    blocks = in_blocks(normal(50, 128) ** 3, 32)
    low, high = np.minimum(blocks.min(-1, keepdims=True), 0), np.maximum(blocks.max(-1, keepdims=True), 0)
    scale = (high - low) / 15
    zero = np.clip(np.rint(-low / scale), 0, 15)
    whole = ((blocks - (rounded(blocks, scale, zero) - zero) * scale) ** 2).sum(-1)
    scale, zero = searched_grid(blocks, np.ones((), np.float32))
    found = ((blocks - (rounded(blocks, scale, zero) - zero) * scale) ** 2).sum(-1)
    assert (found <= whole * 1.0001).all()
    assert found.sum() < 0.98 * whole.sum()


@pytest.mark.parametrize("symmetric", [False, True])
def test_gptq_loses_less_at_the_output_than_rounding_to_nearest(symmetric):
    weight, vectors = normal(96, 160), correlated(800, 160)
    data, fresh = vectors[:600], vectors[600:]
    made = Gptq(data.T @ data).quantize(weight, 32, symmetric=symmetric)
    plain = round_to_nearest(weight, 32, symmetric=symmetric)
    ours, nearest = (sqnr_db(fresh @ weight.T, fresh @ q.dequantized().T) for q in (made, plain))
    assert ours > nearest + 3
    # It is no miracle of the grid: the weights themselves are further from float.
    assert sqnr_db(weight, made.dequantized()) < sqnr_db(weight, plain.dequantized())


def test_gptq_with_independent_columns_is_rounding_to_nearest():
    weight = normal(8, 64)
    made = Gptq(np.eye(64, dtype=np.float32)).quantize(weight, 32)
    assert np.array_equal(made.codes, round_to_nearest(weight, 32).codes)


def test_gptq_follows_the_recursion_of_the_paper():
    """One column after another, with the inverse of what is left of the Hessian taken anew each time."""
    weight, data = normal(6, 40), correlated(300, 40)
    hessian = data.T @ data
    made = Gptq(hessian).quantize(weight, 40)
    scale, zero = made.scale[:, :1], made.zero[:, :1].astype(np.float64)
    order = np.argsort(-np.diag(hessian), kind="stable")
    damped = hessian.astype(np.float64) + 0.01 * np.diag(hessian).astype(np.float64).mean() * np.eye(40)
    left, found = weight.astype(np.float64).copy(), np.zeros((6, 40))
    for position, column in enumerate(order):
        rest = order[position:]
        inverse = np.linalg.inv(damped[np.ix_(rest, rest)])
        level = np.clip(np.rint(left[:, [column]] / scale + zero), 0, 15)
        found[:, [column]] = level
        error = (left[:, [column]] - (level - zero) * scale) / inverse[0, 0]
        left[:, rest] -= error * inverse[[0], :]
    assert np.mean(found == made.codes) > 0.99


def test_gptq_takes_dead_columns_and_too_little_data():
    weight, data = normal(32, 128), correlated(20, 128)
    data[:, 40:60] = 0
    made = Gptq(data.T @ data).quantize(weight, 32)
    assert np.isfinite(made.dequantized()).all()
    assert sqnr_db(data @ weight.T, data @ made.dequantized().T) > 20
    assert sqnr_db(weight[:, 40:60], made.dequantized()[:, 40:60]) > 10
    nothing = Gptq(np.zeros((128, 128), np.float32)).quantize(weight, 32)
    assert np.array_equal(nothing.codes, round_to_nearest(weight, 32).codes)


def test_rows_in_parts_are_the_rows_in_one(monkeypatch):
    from deploykit.quantize import slices

    weight, data = normal(70, 64), correlated(200, 64)
    solver = Gptq(data.T @ data)
    whole = [solver.quantize(weight, 32), round_to_nearest(weight, 32)]
    monkeypatch.setattr(slices, "SLICE", 1000)
    parts = [solver.quantize(weight, 32), round_to_nearest(weight, 32)]
    for one, other in zip(whole, parts, strict=True):
        assert np.mean(one.codes == other.codes) > 0.999  # sums of matrix products may differ in the last bit
        assert np.array_equal(one.scale, other.scale)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    "solve", [round_to_nearest, lambda *a, **k: Gptq(np.eye(64, dtype=np.float32)).quantize(*a, **k)]
)
def test_a_block_of_zeros_stays_one(symmetric, solve):
    weight = normal(6, 64)
    weight[2], weight[4, :32] = 0, 0
    made = solve(weight, 32, symmetric=symmetric)
    assert not made.dequantized()[weight == 0].any()
    if symmetric:
        assert (made.zero == 8).all()
