"""Settings of studies: scales, names that do not exist, values along paths."""

from __future__ import annotations

import pytest
from shell import command
from study_cases import near_recipe

from distilcal.config.loading import with_values
from distilcal.errors import InputError
from distilcal.study.loading import load_study
from distilcal.study.schema import MetricSettings


def test_a_scale_changes_data_and_stages_and_nothing_else(place):
    small, full = (load_study(str(place / "tiny.toml"), scale) for scale in ("small", "full"))
    assert (small.seeds, full.seeds) == ((0, 1), (0, 1, 2))
    assert "limit" not in small.tasks["near"].data
    assert full.tasks["near"].data["limit"] == 100
    assert str(small.tables) == str(full.tables)  # as text: nan is not nan
    assert load_study(str(place / "tiny.toml"), seeds=4).seeds == (0, 1, 2, 3)
    assert load_study(str(place / "tiny.toml"), seeds=1).seeds == (0,)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[scales.full]", "[scales.full]\ntables = []", "scales.full.tables cannot be changed by a scale"),
        ('stage = "kd"', 'stage = "kdd"', "there is no stage 'kdd'; did you mean kd"),
        ('{ method = "Large" },', '{ method = "Larg" },', "there is no method 'Larg'; did you mean Large"),
        ('teacher = "big"', 'teacher = "huge"', "tasks.near: stages.kd depends on 'huge', which is not a stage"),
        ('[stages.big]', '[stages.big]\nteacher = "kd"', "in a cycle"),
        ('task = "near" }', 'task = "nera" }', "there is no task 'nera'; did you mean near"),
        ('set = "away"', 'set = "far"', "task 'near' has no set 'far'; its sets are test, home, away"),
        ('metric = "error", task', 'metric = "eror", task', "there is no metric 'eror'; did you mean error"),
        ('stages = ["big"]', 'stages = ["bg"]', "grids.rates: there is no stage 'bg'; did you mean big"),
        ('temperature" = [1, 4]', 'temperature" = [1, 4, 4.0]', "there already is a stage 'kd-T4'"),
        ('temperature" = [1, 4]', 'temperature" = [1, 4, 1.0000001]', "there already is a stage 'kd-T1'"),
        ("[stages.kd]", '[stages.kd-T4]\nlike = "small"\n\n[stages.kd]', "variants: there already is a stage 'kd-T4'"),
        ("[methods]", '[methods]\n"Taught, T 4" = { stage = "big" }', "variants: there already is a method 'Taught, T 4'"),
        ("[1.0, [2.0, 0.5], nan]", "[1.0]", "the paper's values do not fit"),
        ("[1.0, [2.0, 0.5], nan]", '["1.0", 2, 3]', "the paper's value '1.0' is not a number"),
        ("seeds = [0, 1, 2]", "seeds = [0, 0]", "seeds contains 0 twice"),
        ("seeds = [0, 1, 2]", "seeds = []", "seeds = [], expected at least 1 entries"),
        ("[scales.full]", "[scales.full.grids.rats]\nsample = 2\n[scales.full]", "there is no 'rats'; did you mean rates"),
        ('than = "Alone"', 'than = "Alone"\nat_least = 5', "at_least = 5 of 1 comparisons"),
        ('than = "Alone"', 'than = "Alone"\nlower = "Taught"', "needs lower or higher, and than"),
        ('than = "Alone"', 'than = "Large"', "compares 'Large' with itself"),
        ('x = "accuracy"', 'x = "acuracy"', "there is no metric 'acuracy'; did you mean accuracy"),
        ('y = "entropy"', 'y = "entropie"', "training does not record 'entropie'; did you mean entropy"),
        ('classes = ["0", "1", "2"]', 'classes = ["0", "1"]', "expected three classes"),
        ("bins = 10", "binz = 10", "ece has no parameter 'binz'"),
        ('metric = "ece"', 'metric = "ecee"', "there is no metric 'ecee'; did you mean ece"),
        ("digits = 1 }", "digits = -1 }", "digits = -1, expected at least 0"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "teacher" = ["big", "kd"] }', "teacher cannot be searched"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lr" = [] }', "empty or not of one length"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lrr" = [1] }', "unknown key train.lrr"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lr.x" = [1] }', "lr is not a table, so train.lr.x is no setting"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lr" = [-1.0] }', "train.lr = -1.0, expected a number above 0"),
        ('names = ["T"]', "names = []", "give a name for each axis"),
        ("[metrics]", "[metrics]\nbrier = true", "metrics.brier = true, expected a table"),
        ("[[theorems]]", "[[theorem]]", "unknown key theorem"),
        ('{ "train.lr" = [1e-4, 1e-2] }', '{ "train.lr" = [1e-4, 1e-2], "train.batch" = [8] }', "not of one length"),
        ("values = [1, 4]", "values = [1]", "give a value for each method"),
        ('of = "Taught"', 'of = "Taugt"', "there is no method 'Taugt'; did you mean Taught"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_refused_before_anything_runs(place, tmp_path, old, new, words):
    text = (place / "tiny.toml").read_text()
    assert old in text
    (tmp_path / "s.toml").write_text(text.replace(old, new, 1))
    done = command("study", tmp_path / "s.toml", "--scale", "full", "--store", tmp_path / "store", code=2)
    assert words in done.stderr
    assert not (tmp_path / "store").exists()


def test_unknown_names_list_the_near_ones(place, tmp_path):
    assert "there is no study 'p03'; did you mean p003" in command("study", "p03", code=2).stderr
    assert "the scales are" in command("study", "kd-or-smoothing", "--scale", "huge", code=2).stderr
    study = place / "tiny.toml"
    assert "did you mean Large" in command("study", study, "--only", "method=Lage", code=2).stderr
    assert "did you mean near" in command("study", study, "--only", "task=neer", code=2).stderr
    assert "write it as method=A,task=B" in command("study", study, "--only", "Large", code=2).stderr
    assert "none.toml: there is no such file" in command("study", tmp_path / "none.toml", code=2).stderr


def test_a_value_is_set_along_its_path(place):
    stage = near_recipe(place).stages["kd"]
    assert with_values(stage, [("train.lr", 3)]).train.lr == 3.0
    assert with_values(stage, [("terms.1.temperature", 4)]).terms[1].settings == {"temperature": 4}
    assert with_values(stage, [("terms.0.weight", 0.25)]).terms[0].weight == 0.25
    for path, value, words in [
        ("train.lrr", 1, "unknown key train.lrr; did you mean lr"),
        ("terms.7.weight", 1, "there is no entry '7' in a list of 2"),
        ("train.lr", "fast", "train.lr = 'fast', expected a number"),
    ]:
        with pytest.raises(InputError) as error:
            with_values(stage, [(path, value)])
        assert words in str(error.value)


def test_a_metric_has_its_own_name_and_parameters(place):
    study = load_study(str(place / "tiny.toml"))
    assert study.metrics["error"] == MetricSettings(
        metric="ece", percent=True, digits=3, settings={"bins": 10, "closed": "left"}
    )
