"""The plot: where dots stand, how large they are, and that nothing covers a number."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from deploykit import render
from deploykit.render.plot import scatter
from deploykit.report import Report


def row(name: str, p50_ms: float | None = 1.0, accuracy: float | None = None, **more) -> dict:
    return {"artifact": name, "label": name, "p50_ms": p50_ms, "accuracy": accuracy, "execution": "real", **more}


def numbered(plot) -> list:
    return sorted(plot.dots, key=lambda dot: dot.number)


def test_nothing_is_drawn_without_latency_or_without_anything_to_draw_it_against() -> None:
    assert scatter([]) is None
    assert scatter([row("a")]) is None
    assert scatter([row("a", None, 99.0, size_mb=3.0)]) is None
    assert scatter([row("a", accuracy=math.nan)]) is None


def test_faster_is_left_and_better_is_up() -> None:
    plot = scatter([row("a", 5.0, 90.0), row("b", 1.0, {"value": 99.0})])
    assert plot is not None
    slow, fast = numbered(plot)
    assert fast.x < slow.x
    assert fast.y < slow.y
    assert all(plot.left <= dot.x <= plot.right and plot.top <= dot.y <= plot.bottom for dot in plot.dots)
    assert plot.title == "Latency against accuracy"


def test_areas_are_sizes() -> None:
    plot = scatter([row("a", 1.0, 90.0, size_bytes=100e6), row("b", 2.0, 91.0, size_mb=25.0)])
    assert plot is not None
    large, small = numbered(plot)
    assert large.radius**2 / small.radius**2 == pytest.approx(4, rel=0.01)
    assert plot.notes == ("The largest dot is 100 MB; areas are sizes on disk.",)
    assert [dot.number for dot in plot.dots] == [1, 2]  # the small one is drawn on top


def test_without_accuracy_size_is_the_height() -> None:
    plot = scatter([row("a", 1.0, size_mb=90.0), row("b", 2.0, size_mb=30.0)])
    assert plot is not None
    large, small = numbered(plot)
    assert plot.title == "Latency against size"
    assert large.y < small.y
    assert large.radius == small.radius
    assert plot.y_ticks[0][1] == "0"


def test_those_without_accuracy_are_counted_where_others_have_it() -> None:
    plot = scatter([row("a", accuracy=90.0), row("b", size_mb=1.0), row("c", size_mb=2.0)])
    assert plot is not None
    assert len(plot.dots) == 1
    assert plot.notes == ("2 without accuracy are not drawn.",)


def test_equal_numbers_divide_by_nothing() -> None:
    assert scatter([row(name, 0.0, 0.0) for name in "ab"]) is not None
    assert scatter([row(name, 0.0, size_mb=0.0) for name in "ab"]) is not None


def test_percentages_do_not_go_beyond_100() -> None:
    plot = scatter([row(name, accuracy=99.9) for name in "ab"])
    assert plot is not None
    assert max(float(text) for _, text in plot.y_ticks) == 100


def test_latencies_far_apart_stand_on_a_logarithmic_axis() -> None:
    plot = scatter([row("a", 0.1, 90.0), row("b", 1.0, 90.0), row("c", 10.0, 90.0)])
    assert plot is not None
    first, second, third = (dot.x for dot in numbered(plot))
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert "logarithmic" in plot.x_title
    assert {"0.1", "1", "10"} <= {text for _, text in plot.x_ticks}


@pytest.mark.parametrize("count", [1, 2, 5, 10, 20])
@pytest.mark.parametrize("seed", range(4))
def test_numbers_stand_clear_of_each_other_and_of_all_dots(count: int, seed: int) -> None:
    draws = random.Random(seed)
    rows = [
        row(f"artifact {at}", draws.choice([1, 1.1, 2, 8]) * draws.uniform(0.98, 1.02), draws.choice([98.5, 99.3]),
            size_mb=draws.uniform(1, 90))
        for at in range(count)
    ]  # fmt: skip
    plot = scatter(rows)
    assert plot is not None
    for one, other in itertools.combinations(plot.dots, 2):
        assert abs(one.mark_x - other.mark_x) >= 16 or abs(one.mark_y - other.mark_y) >= 13
        assert abs(one.legend_y - other.legend_y) >= 19
    for mark, dot in itertools.product(plot.dots, plot.dots):
        assert math.hypot(mark.mark_x - dot.x, mark.mark_y - dot.y) >= dot.radius + 6
    assert all(0 < dot.mark_x < plot.right + 30 and 0 < dot.mark_y < plot.height for dot in plot.dots)
    assert all(dot.legend_y < plot.height for dot in plot.dots)


def test_a_reader_hears_every_name_with_its_numbers_and_no_script_runs() -> None:
    hostile = "<script>alert(1)</script>" + "x" * 60 + ".onnx"
    rows = [row(hostile, 1.5, 99.25, size_mb=3.0), row("b", 2.0, 98.0, size_mb=1.0, execution="simulated")]
    page = render.render(Report("bench", metrics={"rows": rows, "verdict": ""}), "html")
    assert "<script" not in page
    described = page[page.index("<desc") : page.index("</desc>")]
    assert "x.onnx, 1.5 ms, 99.25, 3 MB." in described
    assert "2: b, 2 ms, 98.00, 1 MB (simulated)." in described
    assert 'role="img"' in page
    assert 'class="dot simulated"' in page


def test_run_draws_the_same() -> None:
    rows = [
        {"target": "openvino", "precision": "int8", "status": "passed", "execution": "real", "artifact": "m.xml",
         "accuracy": 99.0, "p50_ms": 1.0, "size_bytes": 5_000_000, "parity": None}
    ]  # fmt: skip
    plot = scatter(rows)
    assert plot is not None
    assert (plot.dots[0].name, plot.dots[0].label) == ("openvino int8", "1 ms, 99.00, 5 MB")
