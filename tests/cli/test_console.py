"""What is shown while a command works: log lines on standard error, a bar on a terminal, one voice of several processes."""

import io
import logging
import sys
import time
import warnings

import pytest

from distilcal.cli import jobs
from distilcal.cli.console import counting_bar, echo, log_to_console, plain_warnings, share_bar
from distilcal.study.scheduler import StudyProgress
from distilcal.training import TrainingProgress

logger = logging.getLogger("distilcal.test")


def step(epoch, done):
    return TrainingProgress(epoch=epoch, epochs=2, step=done, steps=4, losses={"kd": 0.25}, dev={})


def test_log_lines_go_to_standard_error_while_a_command_runs(capsys):
    with log_to_console():
        logger.info("training %d parameters", 7)
        logger.warning("few examples")
        logger.debug("details")
    logger.info("afterwards")
    printed = capsys.readouterr()
    assert printed.err == "training 7 parameters\nnote: few examples\n"
    assert printed.out == ""


def test_a_log_that_cannot_be_written_does_not_stop_the_work(monkeypatch):
    """Its disk is full, or who read it is gone."""

    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    monkeypatch.setattr(sys, "stdout", Full())
    with log_to_console():
        logger.info("training")
    with pytest.raises(OSError, match="No space left"):
        echo("the result")
    sys.stderr.close()


def test_only_the_main_process_speaks(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with log_to_console():
        logger.info("training")
    assert capsys.readouterr().err == ""


def test_without_a_terminal_short_work_shows_nothing(capsys):
    with log_to_console() as console:
        console.show_progress("student", step(0, 1))
    with counting_bar("predicting") as on_progress:
        on_progress(1, 2)
    with share_bar("evaluating") as on_share:
        on_share(0.5)
    with share_bar("evaluating", quiet=True) as on_share:
        assert on_share is None
    assert capsys.readouterr().err == ""


def test_jobs_without_a_terminal_show_a_line_a_minute(capsys, monkeypatch):
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(jobs, "LINE_SECONDS", 0.05)
    lines = []

    def shown_until(line):
        end = time.monotonic() + 60
        while line not in lines and time.monotonic() < end:
            time.sleep(0.01)
            lines.extend(capsys.readouterr().err.splitlines())

    with jobs.job_progress(7) as on_progress:
        shown_until("[0/7] running for 0 min")
        on_progress(StudyProgress(3, 7, 1, (), "kd", None, "no room"))
        shown_until("[3/7] running for 0 min")
    assert lines[0] == "[0/7] running for 0 min"
    assert "[3/7] kd: FAILED: no room" in lines
    assert lines[-1] == "[3/7] running for 0 min"


def test_a_terminal_shows_a_bar_below_the_lines(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with log_to_console() as console:
        console.show_progress("teacher", step(0, 1))
        console.show_progress("student", step(1, 3))
        logger.info("kept epoch 2")
        assert console.bars.bar is None
        console.show_progress("student", step(1, 4))
        assert console.bars.bar.progress.tasks[0].description.startswith("student epoch 2/2 kd 0.250")
        assert (console.bars.bar.progress.tasks[0].completed, console.bars.bar.progress.tasks[0].total) == (8, 8)
    assert console.bars.bar is None
    printed = capsys.readouterr().err
    assert "student epoch 2/2 kd 0.250" in printed
    assert "kept epoch 2\n" in printed
    with counting_bar("predicting") as on_progress:
        on_progress(3, 10)
    assert "predicting" in capsys.readouterr().err


def test_warnings_are_one_line(capsys):
    with plain_warnings(), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("the store\n  is damaged", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "note: the store is damaged\n"


@pytest.mark.parametrize("name", ["distilcal", "distilcal.test"])
def test_the_level_is_restored(name):
    before = logging.getLogger(name).getEffectiveLevel()
    with log_to_console():
        assert logging.getLogger(name).getEffectiveLevel() == logging.INFO
    assert logging.getLogger(name).getEffectiveLevel() == before
