"""A check of several targets, as a person reads it: grouped by target, long lists folded, notes counted when many."""

from __future__ import annotations

import io
import re

import pytest

from deploykit import render
from deploykit.render.terminal import compose, show
from deploykit.report import Report, failure, note, warning


def row(name, version, verdict, *, counts, share=None, partitions=None, source="its operator table"):
    keys = ("supported", "conditional", "unsupported", "unknown")
    return {
        "name": name,
        "version": version,
        "source": source,
        **dict(zip(keys, counts, strict=True)),
        "nodes": sum(counts),
        "macs_share": share,
        "partitions": partitions,
        "verdict": verdict,
    }


def report(notes: int = 2) -> Report:
    rows = [
        row("onnxruntime", "cpu", "runs whole", counts=(60, 0, 0, 0), share=1.0, partitions=1, source="the engine"),
        row("onnxruntime", "nnapi", "runs in 12 partitions", counts=(40, 8, 12, 0), share=0.75, partitions=12),
        row("coreml", "iOS17", "does not run", counts=(18, 0, 42, 0), share=0.2),
        row("tvm", None, "unknown", counts=(50, 0, 0, 10), share=0.9),
    ]
    refused = [
        failure(
            "DK201",
            "Core ML refuses Det: it has no determinant (says deploykit's lowerings)",
            target="coreml",
            node=f"det_{at}",
            op="Det",
            hint="compute it before the model",
            scope="Net.solver (Solver)",
        )
        for at in range(42)
    ]
    findings = [
        warning("DK212", "NNAPI runs the model in 12 partitions", target="onnxruntime@nnapi", hint="measure it"),
        *(
            note("DK209", f"taken on condition {at}", target="onnxruntime@nnapi", node=f"n{at}", op="Erf")
            for at in range(notes)
        ),
        *refused,
        warning("DK210", "nobody says whether TVM takes Loop 'loop'", target="tvm", node="loop", op="Loop"),
        note("DK320", "said before the table"),
        warning("DK999", "about no target at all"),
    ]
    return Report("check", findings=findings, metrics={"model": "model.onnx", "targets": rows}, seconds=1.25)


@pytest.mark.parametrize("format", ["table", "markdown", "junit"])
def test_check_of_several_targets_letter_by_letter(golden, format):
    suffix = {"table": "txt", "markdown": "md", "junit": "xml"}[format]
    golden(f"reports/check_targets.{suffix}", render.render(report(), format))


def text_of(shown, **how):
    stream = io.StringIO()
    show(shown, stream, **how)
    return stream.getvalue()


def test_long_lists_are_folded_until_all_is_asked_for():
    assert "and 37 more like it (--verbose lists all)" in text_of(report())
    everything = text_of(report(), verbose=True)
    assert "more like it" not in everything
    assert all(f"node 'det_{at}' (Det) in Net.solver" in everything for at in range(42))


def test_many_notes_are_counted_until_all_is_asked_for():
    assert "taken on condition 10" in text_of(report(notes=11))
    folded = text_of(report(notes=40))
    assert "taken on condition" not in folded
    assert "40 notes: --verbose shows them" in folded
    assert "taken on condition 39" in text_of(report(notes=40), verbose=True)


@pytest.mark.parametrize("format", ["table", "markdown", "html"])
def test_findings_stand_under_their_target_in_the_order_of_the_table(format):
    text = render.render(report(), format)
    places = [
        text.index(words)
        for words in ("NNAPI runs the model", "it has no determinant", "nobody says whether", "about no target")
    ]
    assert places == sorted(places)
    assert re.search(r"coreml@iOS17: .*does not run", text)
    assert text.count("coreml: node") == 0


@pytest.mark.parametrize("width", [80, 100, 160])
def test_rows_fit_their_terminal(width):
    from rich.console import Console

    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(compose(report(), width))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    (nnapi,) = [line for line in lines if line.startswith("onnxruntime@nnapi ")]
    assert "runs in 12 partitions" in nnapi
    assert "75.0 %" in nnapi


def test_colours_follow_the_verdict():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", "110")
        show(report(), stream)
    assert "\x1b[1;31mdoes not run" in stream.getvalue()
