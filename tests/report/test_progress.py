"""Bars on a terminal, in a notebook and nowhere else."""

import sys
import types

import pytest

from distilcal.report import progress
from distilcal.report.progress import NotebookBar, TrainingBars, counting_bar, is_notebook, new_bar


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


def test_elsewhere_nothing_is_shown(capsys):
    assert not is_notebook()
    assert new_bar() is None
    TrainingBars().show("student", Step(1))
    with counting_bar("asking", shown=False) as on_progress:
        assert on_progress is None
    assert capsys.readouterr() == ("", "")


def test_rich_finds_notebooks(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    assert not is_notebook()  # IPython is imported, but no notebook runs
