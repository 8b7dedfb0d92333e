"""Keys of stages: what was stored by earlier versions is found again."""

from __future__ import annotations

import pytest
from small import DEV, TRAIN

from distilcal.config.loading import parse_recipe
from distilcal.data.splits import Splits
from distilcal.io.folders import DamagedWarning, read_manifest
from distilcal.pipeline.keys import stage_key
from distilcal.pipeline.stage import plan_stages
from distilcal.pipeline.train import run_stage
from distilcal.training.distributed import ProcessGroup

SPLITS = Splits(TRAIN.with_role("train", "train"), DEV.with_role("dev", "dev"), DEV.with_role("test", "test"))


def key_of(train, **stage):
    table = {"model": {"name": "linear"}, "terms": [{"loss": "cross_entropy"}], "train": train, **stage}
    recipe = parse_recipe({"data": {"train": "t.csv"}, "stages": {"a": table}})
    return stage_key("a", recipe, SPLITS, {})


@pytest.mark.parametrize(
    ("train", "key"),
    [
        ({"choose": "nll"}, "193df18c24bcda737ce5"),
        ({"choose": "last", "epochs": 7, "patience": 2}, "b67c38280172687e1d33"),
        ({"choose": "accuracy", "lr": 0.1, "warmup": 0.1}, "8e29c909591b00d5d3a4"),
    ],
)
def test_settings_that_are_stated_keep_their_key(train, key):
    assert key_of(train) == key


def test_the_way_to_choose_is_part_of_the_key_of_what_is_trained_only():
    assert key_of({}) == key_of({"choose": "calibrated_nll"}) != key_of({"choose": "nll"})
    weights = {"terms": [], "model": {"name": "resnet20", "weights": "resnet20.safetensors"}}
    assert key_of({}, **weights) == key_of({"choose": "nll"}, **weights) == "bbba9e9bb86a04a30372"


def test_settings_that_depend_on_the_data_have_the_key_of_what_they_mean(tmp_path):
    """90 rows: 6 batches of 16, so 50 epochs for 300 steps."""
    table = {"model": {"name": "linear"}, "terms": [{"loss": "cross_entropy"}]}
    stages = {
        "auto": {**table, "train": {"batch": 0, "min_steps": 300}},
        "stated": {**table, "train": {"batch": 16, "epochs": 50}},
    }
    planned = plan_stages(parse_recipe({"data": {"train": "t.csv"}, "stages": stages}), SPLITS, tmp_path)
    assert planned["auto"].key == planned["stated"].key
    assert (planned["auto"].settings.train.batch, planned["auto"].settings.train.epochs) == (16, 50)


def test_a_stage_under_the_name_of_another_is_not_used(tmp_path):
    table = {"model": {"name": "linear"}, "terms": [{"loss": "cross_entropy"}]}
    settings = {name: {**table, "train": {"epochs": epochs}} for name, epochs in (("short", 1), ("long", 2))}
    recipe = parse_recipe({"data": {"train": "t.csv"}, "stages": settings})
    stages = plan_stages(recipe, SPLITS, tmp_path)
    run_stage(stages["short"], recipe, SPLITS, stages, ProcessGroup())
    stages["short"].folder.rename(stages["long"].folder)
    with pytest.warns(DamagedWarning, match="of another kind"):
        run_stage(stages["long"], recipe, SPLITS, stages, ProcessGroup())
    assert len(stages["long"].history()) == 2
    assert read_manifest(stages["long"].folder)["key"] == stages["long"].key
