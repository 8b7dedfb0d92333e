"""From Python a run prints nothing; it speaks when the application configures logging, and then once."""

import logging
import subprocess
import sys

import pytest
from tiny import save_model, write_csv

from distilcal.config.loading import load_recipe
from distilcal.pipeline import run_recipe

RUN = """
import logging, sys
from pathlib import Path
from distilcal.config.loading import load_recipe
from distilcal.pipeline import run_recipe
if sys.argv[1] == "logged":
    logging.basicConfig(level=logging.INFO)
folder = Path(sys.argv[2])
run_recipe(load_recipe(folder / "r.toml"), folder / "run", folder / "store")
"""


@pytest.fixture
def recipe(tmp_path):
    write_csv(tmp_path / "train.csv", 240, 0)
    save_model(tmp_path / "trained", labels=("neg", "pos"))
    (tmp_path / "r.toml").write_text(f"""
name = "small"
[data]
train = {str(tmp_path / "train.csv")!r}
[stages.model]
model = {{ name = {str(tmp_path / "trained")!r} }}
[stages.student]
model = {{ name = {str(tmp_path / "trained")!r}, head = "new", layers = [0] }}
train = {{ epochs = 1, lr = 0.005 }}
teacher = "model"
scale_teacher = true
terms = [{{ loss = "kd" }}]
""")
    return tmp_path


def python(*arguments):
    done = subprocess.run([sys.executable, "-c", RUN, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_from_python_nothing_is_printed_until_logging_is_configured(recipe):
    silent = python("silent", recipe)
    assert (silent.stdout, silent.stderr) == ("", "")
    spoken = python("logged", recipe)
    assert spoken.stdout == ""
    assert "INFO:distilcal.pipeline.train:student: already trained, loaded from the store" in spoken.stderr
    assert "INFO:distilcal.pipeline.run:evaluating every model on every split" in spoken.stderr


def test_the_temperature_of_a_teacher_may_come_from_a_grid(recipe, caplog):
    caplog.set_level(logging.INFO, logger="distilcal")
    changed = load_recipe(recipe / "r.toml", ["stages.student.teacher_grid=[0.5, 2.0, 0.5]"])
    run_recipe(changed, recipe / "gridded", recipe / "store")
    (line,) = [text for text in (record.getMessage() for record in caplog.records) if "logits are divided by" in text]
    assert any(f"divided by {value}," in line for value in ("0.500", "1.000", "1.500", "2.000"))


def test_a_run_logs_its_data_stages_and_doubts(recipe, caplog):
    caplog.set_level(logging.INFO, logger="distilcal")
    steps, epochs = [], []
    run_recipe(
        load_recipe(recipe / "r.toml"),
        recipe / "run",
        recipe / "store",
        on_progress=lambda *step: steps.append(step),
        on_epoch=lambda *epoch: epochs.append(epoch),
    )
    lines = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    for expected in (
        "INFO data: train ",
        "WARNING dev or test are held out of ",
        "INFO student: predictions of model on the training data",
        "INFO student: the teacher's logits are divided by ",
        "INFO student: training ",
        "INFO student: kept epoch 1 of 1, dev accuracy ",
        "INFO evaluating every model",
    ):
        assert any(line.startswith(expected) for line in lines), expected
    assert {name for name, _ in steps} == {"student"}
    assert steps[-1][1].epochs == 1
    assert [(name, entry["epoch"]) for name, entry in epochs] == [("student", 0)]


def test_other_processes_than_the_first_log_nothing(caplog, monkeypatch):
    from distilcal.pipeline.logs import main_process_logger

    caplog.set_level(logging.INFO, logger="distilcal")
    logger = main_process_logger("distilcal.test_of_processes")
    monkeypatch.setenv("RANK", "1")
    logger.warning("twice")
    monkeypatch.setenv("RANK", "0")
    logger.warning("once")
    assert [record.getMessage() for record in caplog.records] == ["once"]
