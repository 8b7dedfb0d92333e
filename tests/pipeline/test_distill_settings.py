"""The settings of `distilcal distill`, and the recipes that they stand for."""

from inspect import signature

import pytest

from distilcal.api import distill
from distilcal.cli.train import distill_command
from distilcal.errors import InputError

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import save_model

from distilcal.pipeline.distill import DistillSettings, recipe_for_distillation
from distilcal.training.schedule import resolve_settings

OF_THE_COMMAND = {"out", "store", "changes", "dry_run", "track", "budget"}  # where and how it runs, not what
OF_THE_FUNCTION = {*OF_THE_COMMAND, "column_mapping", "progress"}


def test_names_and_defaults_are_those_of_the_options():
    options = distill_command.make_context("distill", ["--train", "t.csv", "--teacher", "m"]).params
    flags = {name: value for name, value in options.items() if name not in OF_THE_COMMAND}
    assert set(DistillSettings.model_fields) == {*flags, "name"}
    assert DistillSettings(**flags) == DistillSettings(train="t.csv", teacher="m")


def test_names_and_defaults_are_those_of_the_function():
    parameters = {name: p.default for name, p in signature(distill).parameters.items() if name not in OF_THE_FUNCTION}
    assert list(parameters) == list(DistillSettings.model_fields)
    values = {**parameters, "train": "t.csv", "teacher": "m"}
    assert DistillSettings(**values) == DistillSettings(train="t.csv", teacher="m")


def test_lists_are_read_from_text():
    settings = DistillSettings(train="t.csv", teacher="m", choices="a, b", layers="0,2", teacher_labels=None)
    assert (settings.choices, settings.layers, settings.teacher_labels) == (("a", "b"), (0, 2), ())
    assert DistillSettings(train="t.csv", teacher="m", layers=[1]).layers == (1,)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"teacher": "m"}, "missing value: train; add train = …"),
        ({"train": "t", "teacher": "m", "layers": "0,x"}, "layers: '0,x' is not a list of numbers; write them as 0,2,4"),
        ({"train": "t", "teacher": "m", "epochs": 0}, "epochs = 0, expected at least 1"),
        ({"train": "t", "teacher": "m", "epoch": 1}, "unknown key epoch; did you mean epochs"),
    ],
)
def test_invalid_settings_are_input_errors(settings, words):
    with pytest.raises(InputError) as caught:
        DistillSettings(**settings)
    assert words in str(caught.value)


def test_a_student_is_every_second_layer_of_its_teacher(tmp_path):
    save_model(tmp_path / "m", head=False)
    settings = DistillSettings(train="t.csv", teacher=str(tmp_path / "m"), epochs=2, alone=False)
    recipe = recipe_for_distillation(settings, ["stages.student.train.batch=8"])
    assert list(recipe.stages) == ["teacher", "student"]
    student = recipe.stages["student"]
    assert (student.model.layers, student.train.epochs, student.train.batch) == ((0, 2), 2, 8)
    assert [str(term) for term in student.terms] == ["0.1·cross_entropy", "0.9·kd"]
    with pytest.raises(InputError, match="no such file"):
        recipe_for_distillation(settings.replace(teacher="none.npz"))
    (tmp_path / "p.csv").write_text("id,label,prob_a,prob_b\n")
    with pytest.raises(InputError, match="no layers for a student"):
        recipe_for_distillation(settings.replace(teacher=str(tmp_path / "p.csv")))


def recipe_of(tmp_path, changes=(), **settings):
    save_model(tmp_path / "m", head=False)
    return recipe_for_distillation(DistillSettings(train="t.csv", teacher=str(tmp_path / "m"), **settings), changes)


def test_every_model_makes_enough_steps_unless_the_user_says_otherwise(tmp_path):
    for stage in recipe_of(tmp_path).stages.values():
        train = resolve_settings(stage.train, 400)
        assert (train.batch, train.epochs, train.lr, train.warmup, train.patience) == (16, 12, 5e-5, 0.1, 4)
        large = resolve_settings(stage.train, 50_000)
        assert (large.batch, large.epochs) == (32, 3)


@pytest.mark.parametrize(
    ("settings", "batch", "epochs", "patience"),
    [
        ({"epochs": 2}, 16, 2, 0),
        ({"batch": 64}, 64, 43, 4),
        ({"epochs": 2, "batch": 64}, 64, 2, 0),
        ({"changes": ["stages.alone.train.epochs=5"]}, 16, 5, 0),
        ({"changes": ["stages.alone.train.epochs=5", "stages.alone.train.patience=2"]}, 16, 5, 2),
        ({"changes": ["stages.alone.train.min_steps=500"]}, 16, 20, 4),
        ({"changes": ["stages.student.train.epochs=5"]}, 16, 12, 4),
    ],
)
def test_what_the_user_asks_for_is_taken_as_it_is(tmp_path, settings, batch, epochs, patience):
    train = resolve_settings(recipe_of(tmp_path, lr=1e-3, **settings).stages["alone"].train, 400)
    assert (train.batch, train.epochs, train.patience, train.lr) == (batch, epochs, patience, 1e-3)


@pytest.mark.parametrize("content", ["null", "[]", "{}", '{"format": 99}', '{"stages": {}}', '{"stages": {"student": 3}}'])
def test_a_damaged_run_is_no_teacher(tmp_path, content):
    (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(InputError, match="metrics.json"):
        recipe_for_distillation(DistillSettings(train="t.csv", teacher=str(tmp_path), student="linear"))
