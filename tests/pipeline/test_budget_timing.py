"""What a search expects training to cost, measured on a few steps."""

import numpy as np
import pytest
from small import vectors

from distilcal.config.schema import ModelSettings, Recipe, StageSettings, TermSettings, TrainSettings
from distilcal.data.splits import Splits
from distilcal.pipeline.budget.timing import (
    Speed,
    closing_seconds,
    expected_workload,
    measure_speed,
    network_key,
    steps_per_epoch,
)

STUDENT = StageSettings(
    model=ModelSettings(name="linear"), terms=(TermSettings(loss="kd"),), teacher="teacher", train=TrainSettings(batch=16)
)
TEACHER = StageSettings(model=ModelSettings(name="mlp"), terms=(TermSettings(),), train=TrainSettings(batch=0))
SPLITS = Splits(vectors(90), vectors(40, seed=1), vectors(30, seed=2))
RECIPE = Recipe.model_validate({"data": {"train": "x"}, "stages": {"teacher": TEACHER, "student": STUDENT}})


def partly_labelled(labelled, rows=90):
    data = vectors(rows)
    labels = data.labels.copy()
    labels[labelled:] = -1
    return type(data)(data.inputs, labels, data.classes)


@pytest.mark.parametrize("stage", [STUDENT, TEACHER])
def test_a_network_is_measured_without_labels_or_a_teacher(stage, tmp_path):
    for splits in (SPLITS, Splits(partly_labelled(30), SPLITS.dev, SPLITS.test)):
        speed = measure_speed(stage, RECIPE, splits, tmp_path)
        assert 0 < speed.seconds_per_row < 1
        assert speed.parameters > 0
    assert not (tmp_path / "stages").exists()


def test_a_network_that_starts_from_another_stage_is_measured_as_that(tmp_path):
    child = STUDENT.replace(model=ModelSettings(start_from="teacher"))
    recipe = RECIPE.replace(stages={**RECIPE.stages, "student": child})
    assert (
        measure_speed(child, recipe, SPLITS, tmp_path).parameters == measure_speed(TEACHER, RECIPE, SPLITS, tmp_path).parameters
    )


def test_steps_of_an_epoch_are_those_of_the_loop():
    assert steps_per_epoch(STUDENT, SPLITS.train) == 6
    assert steps_per_epoch(STUDENT, partly_labelled(30)) == 6
    half = STUDENT.replace(train=STUDENT.train.replace(labelled_share=0.5))
    assert steps_per_epoch(half, partly_labelled(30)) == 8  # 60 unlabelled, and as many labelled


def test_a_workload_grows_with_the_batch_and_with_dev():
    speed = Speed(seconds_per_row=0.01, overhead=1.0, parameters=10)
    workload = expected_workload(STUDENT, SPLITS, speed)
    assert workload.steps_per_epoch == 6
    assert workload.seconds_per_step == pytest.approx(0.16 + 40 * 0.01 / 3 / 6)
    larger = expected_workload(STUDENT.replace(train=TrainSettings(batch=32)), SPLITS, speed)
    assert larger.seconds_per_step > 1.9 * 0.16


def test_the_evaluation_costs_more_with_more_rows_models_and_slower_networks():
    fast, slow = Speed(0.001, 0.1, 1), Speed(0.1, 0.1, 1)
    base = closing_seconds(2, {"a": fast}, SPLITS)
    assert base < closing_seconds(3, {"a": fast}, SPLITS)
    assert base < closing_seconds(2, {"a": fast}, SPLITS, slowdown=2.0) < 2 * base
    assert base < closing_seconds(2, {"a": fast, "b": slow}, SPLITS)
    assert base < closing_seconds(2, {"a": fast}, Splits(SPLITS.train, SPLITS.dev, SPLITS.test, (vectors(500),)))


def test_networks_are_told_apart_by_their_model_only():
    faster = STUDENT.replace(train=TrainSettings(lr=1.0))
    assert network_key(STUDENT.model) == network_key(faster.model) != network_key(TEACHER.model)
    assert np.unique([network_key(ModelSettings(name="bert", layers=layers)) for layers in ((0,), (0, 1))]).size == 2
