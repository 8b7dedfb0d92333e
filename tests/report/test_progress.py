"""Bars on a terminal and in a notebook, and a line a minute elsewhere."""

import sys
import types

import pytest

from distilcal.report import progress
from distilcal.report.progress import LineBar, NotebookBar, TrainingBars, counting_bar, is_notebook, new_bar


class Step:
    epoch, epochs, steps, losses = 0, 2, 4, {"kd": 0.5}

    def __init__(self, step):
        self.step = step


@pytest.fixture
def notebook(monkeypatch):
    """A notebook that remembers what is shown in it."""
    shown = []

    def display(content, raw, display_id):
        return types.SimpleNamespace(update=lambda content, raw: shown.append(content["text/plain"]))

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    monkeypatch.setattr(progress, "is_notebook", lambda: True)
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 0.0)
    return shown


def test_a_notebook_shows_a_line(notebook):
    bars = TrainingBars()
    for stage, step in (("teacher", 4), ("student", 2)):
        bars.show(stage, Step(step))
    bars.stop()
    half, quarter = "━" * 15 + "─" * 15, "━" * 7 + "─" * 23
    assert notebook == [f"teacher epoch 1/2 kd 0.500 {half} 50%", "", f"student epoch 1/2 kd 0.500 {quarter} 25%", ""]


def test_a_notebook_is_updated_a_few_times_a_second(notebook, monkeypatch):
    monkeypatch.setattr(progress, "NOTEBOOK_SECONDS", 60.0)
    bar = NotebookBar()
    for done in range(1, 11):
        bar.update("asking", done, 10)
    assert [line.split()[-1] for line in notebook] == ["10%", "100%"]


def test_elsewhere_short_work_writes_nothing(capsys):
    assert not is_notebook()
    assert isinstance(new_bar(), LineBar)
    TrainingBars().show("student", Step(1))
    with counting_bar("asking", shown=False) as on_progress:
        assert on_progress is None
    with counting_bar("asking") as on_progress:
        on_progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_elsewhere_a_line_is_written_once_a_minute(capsys, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bars = TrainingBars()
    for step in range(1, 5):
        bars.show("student", Step(step))
        now[0] += 45
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["student epoch 1/2 kd 0.500: 38%, about 4 min left"]
    bars.stop()
    bars.show("alone", Step(1))  # another line has just been printed
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "words"), [(20, "20 s"), (600, "10 min"), (9000, "2.5 h")])
def test_times_are_rough(seconds, words):
    assert progress._rough_time(seconds) == words


def test_rich_finds_notebooks(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    assert not is_notebook()  # IPython is imported, but no notebook runs
