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


def test_many_sources_are_told_by_their_kind():
    sources = ["the engine 1.2", "its front-end", *(f"{name} operator table" for name in "abcd")]
    rows = [row(f"t{at}", None, "runs whole", counts=(1, 0, 0, 0), source=text) for at, text in enumerate(sources)]
    few = text_of(Report("check", metrics={"targets": rows[:3]}))
    assert few.count("judged by") == 3
    many = text_of(Report("check", metrics={"targets": rows}))
    assert "judged by what makes or runs it: t0, t1" in many
    assert "judged by a table of its operators: the other 4 (--json names each source)" in many
    tables = [row(f"t{at}", None, "runs whole", counts=(1, 0, 0, 0), source=f"{at} table") for at in range(6)]
    assert "judged by tables of operators: all (" in text_of(Report("check", metrics={"targets": tables}))


COMMAND = "`deploykit check a-model-with-a-long-name.onnx --target onnxruntime-web@webgl --fix -o fixed.onnx`"


def test_a_command_is_never_broken_nor_said_twice(monkeypatch):
    hints = [f"{COMMAND} may solve it (one)", f"{COMMAND} may solve it (two)", f"{COMMAND} may solve it (two)"]
    findings = [failure("DK201", f"no {at}", target="coreml", hint=hint) for at, hint in enumerate(hints)]
    monkeypatch.setenv("COLUMNS", "60")
    text = text_of(Report("check", findings=findings, metrics=report().metrics))
    assert [line for line in text.splitlines() if COMMAND in line] == [f"    hint: {COMMAND}"]
    assert text.count("hint: the same --fix command may solve it (two)") == 1
    assert text.count("hint: as above") == 1


def test_findings_about_nodes_that_differ_in_quoted_names_only_are_one():
    def refused(at):
        told = f"refuses Reshape: input 1 'v{at}' of 'x' varies"
        return failure("DK201", told, target="coreml", node=f"n{at}", op="Reshape")

    metrics = report().metrics
    findings = [refused(at) for at in range(3)]
    assert "Reshape: input 1 '...' of 'x' varies" in text_of(Report("check", findings=findings, metrics=metrics))
    assert "Reshape: input 1 'v0' of 'x' varies" in text_of(Report("check", findings=findings[:1], metrics=metrics))
    for format in ("markdown", "html"):
        assert render.render(Report("check", findings=findings, metrics=metrics), format).count("varies") == 1


def test_a_node_with_another_hint_stands_with_those_that_are_refused_alike():
    hints = ["simplify it", "simplify it", f"{COMMAND} may solve it"]
    findings = [failure("DK201", "no If", target="coreml", node=str(at), hint=hint) for at, hint in enumerate(hints)]
    shown = Report("check", findings=findings, metrics=report().metrics)
    text = text_of(shown)
    assert text.count("no If") == 1
    assert text.index("hint: for 2 of 3: simplify it") < text.index("hint: for 1 of 3:")
    assert f"  - hint: for 1 of 3: {COMMAND} may solve it" in render.render(shown, "markdown")
    assert "for 1 of 3: <code>deploykit check a-model" in render.render(shown, "html")


def test_what_a_hint_names_cannot_become_markup():
    hint = "rename '`<img src=x>' or `run <b> | *this*`"
    for odd in (hint, hint + " `"):
        shown = Report("check", findings=[failure("DK201", "no", target="coreml", hint=odd)], metrics=report().metrics)
        assert "<img" not in render.render(shown, "html")
        assert re.search(r"(?<!\\)<img", re.sub(r"`[^`]*`", "", render.render(shown, "markdown"))) is None


def test_a_check_of_many_targets_says_the_most_of_each_and_how_much_more_there_is():
    rows = [row(f"t{at}", None, "does not run", counts=(0, 0, 9, 0)) for at in range(6)]
    findings = [
        failure("DK201", f"no operator {kind}", target=f"t{at}", node=f"n{kind}")
        for at in range(6)
        for kind in range(9)
    ]
    shown = Report("check", findings=findings, metrics={"targets": rows})
    assert text_of(shown).count("no operator 4") == 6
    assert text_of(shown).count("no operator 5") == 0
    assert text_of(shown).count("and 4 findings more: --verbose, or --target t") == 6
    assert text_of(shown, verbose=True).count("no operator 8") == 6


def test_lines_below_a_mark_are_indented(monkeypatch):
    long = failure("DK201", "word " * 40, target="coreml", node="n", op="Add", scope="module " * 20, hint="words " * 30)
    monkeypatch.setenv("COLUMNS", "80")
    text = text_of(Report("check", findings=[long], metrics=report().metrics))
    said = text.partition("coreml@iOS17: does not run\n")[2].splitlines()
    starts = {re.match(r" *(--> |hint: |error|)", line).group() for line in said[: said.index("")]}
    assert starts == {"  error", "    ", "    --> ", "        ", "    hint: ", "          "}
    assert max(map(len, said)) <= 80


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
    lines = stream.getvalue().splitlines()
    refused = next(line for line in lines if line.startswith("coreml@iOS17  "))
    pieces = next(line for line in lines if line.startswith("onnxruntime@nnapi  "))
    assert "\x1b[1;31mdoes not run" in refused
    assert "\x1b[33mruns in 12 partitions" in pieces
    assert "\x1b[1;31mdoes not run" in stream.getvalue().partition("\x1b[1mcoreml@iOS17")[2]
