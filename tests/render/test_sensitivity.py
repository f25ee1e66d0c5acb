"""What a quantize report shows of a ranking and of a search."""

import re

from deploykit.render import html, markdown, terminal
from deploykit.render.quantization import MOST, bars
from deploykit.report import Report


def ranked(name: str, level: float | None, **facts: object) -> dict[str, object]:
    row = {
        "node": name,
        "op": "Conv",
        "macs_share": 0.25,
        "sqnr_alone_db": level,
        "exact": False,
        "sqnr_without_db": None,
        "metric_drop": None,
        "measured_with": 1,
    }
    return row | facts


SEARCH = {
    "met": True,
    "recipe": {"exclude": ["/a"], "method": "mse", "smooth_quant": 0.5, "bias_correction": True},
    "best": {"int8_macs_share": 0.75, "sqnr_db": 24.5, "drop": 0.25, "error": 0.1},
    "left_in_float": ["/a"],
    "budget": {"min_sqnr_db": 21.0, "max_drop": 0.5, "metric": "top1"},
    "samples": 16,
    "evaluations": 31,
    "seconds": 12.3,
    "tried": [],
}


def report(rows: list[dict[str, object]], **metrics: object) -> Report:
    return Report("quantize", metrics={"int8_macs_share": 0.75, "sensitivity": rows, **metrics})


def test_a_ranking_is_a_table_with_what_is_not_known_said() -> None:
    rows = [
        ranked("/broken", None),
        ranked("/a", 12.34, sqnr_without_db=30.0, metric_drop=1.5),
        ranked("/z", None, exact=True),
    ]
    text = terminal.render(report(rows))
    assert re.search(r"/broken +Conv +25\.0 % +broken +- +-", text)
    assert re.search(r"/a +Conv +25\.0 % +12\.3 +30\.0 +1\.5", text)
    assert re.search(r"/z +Conv +25\.0 % +exact", text)
    assert "| /a | Conv | 25.0 % | 12.3 | 30.0 | 1.5 |" in markdown.render(report(rows))


def test_a_long_ranking_says_what_it_leaves_away() -> None:
    rows = [ranked(f"/n{index}", 10.0 + index) for index in range(MOST + 3)]
    text = terminal.render(report(rows))
    assert f"and 3 nodes more, from {10 + MOST}.0 dB on: --json lists them" in text
    assert f"/n{MOST} " not in text


def test_a_search_is_told_with_its_budget_and_its_price() -> None:
    text = terminal.render(report([], search=SEARCH))
    assert "SQNR at least 21 dB, top1 drops by at most 0.5" in text
    assert "75.0 % of the MACs in INT8, SQNR 24.5 dB, drop 0.25 (standard error 0.1)" in text
    assert "mse, SmoothQuant 0.5, bias correction" in text
    assert "31 in 12.3 s on 16 samples" in text


def test_bars_grow_with_the_level_and_the_gate_stands_between() -> None:
    drawn = bars([ranked("/low", 10.0), ranked("/high", 40.0), ranked("/exact", None, exact=True)])
    assert drawn is not None
    low, high, exact = drawn.bars
    assert low.length * 4 == high.length < exact.length
    assert drawn.left + low.length < drawn.gate < drawn.left + high.length
    assert (low.kind, high.kind) == ("low", "")
    assert drawn.left + exact.length <= drawn.width


def test_broken_nodes_have_no_bar_and_no_ranking_has_no_drawing() -> None:
    drawn = bars([ranked("/nan", None), ranked("/negative", -3.0)])
    assert drawn is not None
    assert [bar.length for bar in drawn.bars] == [0.0, 0.0]
    assert bars([]) is None


def test_the_page_draws_the_ranking_and_escapes_names() -> None:
    page = html.render(report([ranked("<b>/a", 12.0), ranked("x" * 90, 30.0)]))
    assert page.count("<rect") == 2
    assert "&lt;b&gt;/a" in page
    assert "<b>/a" not in page
    assert "What each node costs alone" in page
    assert "<rect" not in html.render(report([]))
