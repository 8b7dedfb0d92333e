"""From a study to jobs: equal stages once, an axis of epochs as one run."""

from __future__ import annotations

from study_cases import near_recipe

from distilcal.config.loading import with_values
from distilcal.study.expand import collapse_epochs, expand
from distilcal.study.loading import load_study
from distilcal.study.schema import GridSettings


def test_equal_stages_are_trained_once_and_only_what_is_looked_at(place):
    graph = expand(load_study(str(place / "tiny.toml")))
    assert len(graph.cells) == 2 * 6
    assert graph.cells["Alone", "near", 0] == graph.cells["Alone, scaled", "near", 0]
    variants = [graph.jobs[graph.cells[f"Taught, T {t}", "near", 0]].stage.terms[1].settings["temperature"] for t in (1, 4)]
    assert variants == [1, 4]
    per_seed = 2 + 1 + 3  # two rates (all epochs in one run), alone, taught and its two variants
    assert len(graph.jobs) == 2 * per_seed
    assert graph.points == 2 * 8
    order = graph.order()
    for id_ in order:
        assert all(order.index(needed) < order.index(id_) for needed in graph.needs(id_))
    some = expand(load_study(str(place / "tiny.toml")), methods=["Alone"])
    assert len(some.jobs) == 2


def test_an_axis_of_epochs_is_one_run_only_where_nothing_depends_on_it(place):
    stage = near_recipe(place).stages["big"]
    grid = GridSettings(stages=("big",), axes=({"train.epochs": [2, 4]}, {"train.lr": [1.0]}))
    axes, whole = collapse_epochs(grid, stage)
    assert axes == [{"train.lr": [1.0]}]
    assert (whole.train.epochs, whole.train.choose, whole.train.choose_among) == (4, "calibrated_nll", (2, 4))
    assert len(collapse_epochs(grid, with_values(stage, [("record", True)]))[0]) == 2
    for other in ({"train.schedule": ["none", "linear"]}, {"terms.0.loss": ["cross_entropy", "pskd"]}):
        assert len(collapse_epochs(GridSettings(stages=("big",), axes=(*grid.axes, other)), stage)[0]) == 3
    for path, value in [("train.schedule", "linear"), ("train.warmup", 0.1), ("train.choose", "nll"), ("train.patience", 2)]:
        assert len(collapse_epochs(grid, with_values(stage, [(path, value)]))[0]) == 2
    assert len(collapse_epochs(grid, with_values(stage, [("terms.0.loss", "pskd")]))[0]) == 2
