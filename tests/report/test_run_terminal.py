"""The tables of runs on narrow terminals: names stay readable, and nothing is cut off in silence."""

from io import StringIO

import pytest
from rich.console import Console
from run_summaries import scores, split_facts, stage, summary

from distilcal.report.console import build_console
from distilcal.report.runs.terminal import show_runs

LONG = "student_from_unlabelled_texts_of_all_four_kinds"


def printed(runs, width):
    file = StringIO()
    show_runs(runs, Console(width=width, file=file, highlight=False))
    return file.getvalue()


@pytest.fixture
def runs():
    sets = {name: split_facts(scores(), scores(ece=0.021)) for name in ("test", "tweets")}
    return summary(
        {
            "teacher": stage(sets, parameters=22_000_000, ms=12.25),
            "student": stage(sets, teacher="teacher"),
            LONG: stage(sets, teacher="teacher"),
            "alone": stage(sets),
        },
        ood=["tweets"],
    )


@pytest.mark.parametrize("width", [60, 80, 100, 120, 150])
def test_model_names_are_whole_at_any_width(runs, width):
    text = printed(runs, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    cells = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    for name in ("teacher", "student", "alone"):
        assert name in cells
    assert LONG in "".join(cells)  # folded over several lines
    assert "…" not in text
    assert (
        text.count("[0.810, 0.850]") + text.count("0.810–0.850") == 8
    )  # accuracies of four models in two domains, with intervals


def test_narrow_windows_name_the_columns_that_they_leave_out(runs):
    assert "a wider window also shows" not in printed(runs, 150)
    narrow = printed(runs, 80)
    assert "a wider window also shows Brier, size" in narrow
    assert "Brier ┃" not in narrow
    assert "12.25" in narrow


def test_piped_output_is_as_wide_as_columns_say(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert build_console().width == 150
    monkeypatch.setenv("COLUMNS", "80")
    assert build_console().width == 80
    monkeypatch.setenv("COLUMNS", "0")  # a width that is not known
    assert build_console().width == 150
    monkeypatch.setenv("COLUMNS", "1")  # no table would have numbers
    assert build_console().width == 72
