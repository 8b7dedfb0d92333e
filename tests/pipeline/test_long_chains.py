"""A recipe of many stages, each of which needs the one before."""

import time

import numpy as np
import pytest

from distilcal.config.loading import as_table, only_stages, parse_recipe, to_toml
from distilcal.config.schema import ordered_stages
from distilcal.errors import InputError
from distilcal.pipeline import plan
from distilcal.runs import main_stage

STAGES = 2000


@pytest.mark.parametrize("by", ["teacher", "start_from", "map"])
def test_a_chain_of_two_thousand_stages_is_planned(tmp_path, by):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", vectors=rng.normal(size=(300, 4)).astype(np.float32), labels=rng.integers(2, size=300))
    stages = {}
    for number in reversed(range(STAGES)):  # the last one first: the order is not that of the file
        before = f"s{number - 1}" if number else ""
        stage = {"model": {"name": "linear"}, "record": by == "map", "terms": [{"loss": "cross_entropy"}]}
        if before and by == "teacher":
            stage |= {"teacher": before, "terms": [{"loss": "kd"}]}
        elif before and by == "start_from":
            stage["model"] = {"start_from": before}
        elif before:
            stage |= {
                "map": before,
                "views": {"mixed": {"pairs": "regions"}},
                "terms": [{"loss": "cross_entropy"}, {"loss": "cross_entropy", "view": "mixed"}],
            }
        stages[f"s{number}"] = stage
    begun = time.process_time()
    recipe = parse_recipe({"name": "chain", "data": {"train": str(tmp_path / "data.npz")}, "stages": stages})
    assert ordered_stages(recipe)[:3] == ["s0", "s1", "s2"]
    planned = plan(recipe, tmp_path / "store")
    assert [stage.name for stage in planned.stages] == [f"s{number}" for number in range(STAGES)]
    assert len({stage.key for stage in planned.stages}) == STAGES
    assert len(only_stages(recipe, ["s1500"]).stages) == 1501
    assert len(str(planned).splitlines()) > STAGES
    assert len(to_toml(recipe)) > STAGES
    assert time.process_time() - begun < 60
    if by == "teacher":
        facts = {name: {"teacher": table.get("teacher", "")} for name, table in as_table(recipe)["stages"].items()}
        assert main_stage(facts) == f"s{STAGES - 1}"


def test_a_circle_of_two_thousand_stages_is_one_error():
    stages = {
        f"s{number}": {"model": {"name": "linear"}, "teacher": f"s{(number + 1) % STAGES}", "terms": [{"loss": "kd"}]}
        for number in range(STAGES)
    }
    with pytest.raises(InputError, match="cycle"):
        ordered_stages(parse_recipe({"data": {"train": "data.npz"}, "stages": stages}))
