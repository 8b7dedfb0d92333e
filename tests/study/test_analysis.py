"""What a study measured: samples, intervals, tables with the rows that every study has."""

from __future__ import annotations

import numpy as np
import pytest

from distilcal.study.analysis import StudyResults, all_tables, fill_table, interval
from distilcal.study.expand import expand
from distilcal.study.inference import Sample
from distilcal.study.loading import load_study
from distilcal.study.places import PlaceSettings
from distilcal.study.scheduler import Outcome


def sample(values, spread, seed, shared=None, n=200):
    rng = np.random.default_rng(seed)
    draws = np.array(values)[:, None] + rng.normal(size=(len(values), 500)) * spread
    return Sample(tuple(range(len(values))), np.array(values), draws if shared is None else draws + shared, n)


@pytest.fixture(scope="module")
def results(finished_study):
    folder, study, outcome, _ = finished_study
    return StudyResults(study, expand(study), outcome, folder / "store")


def test_the_interval_grows_with_the_spread_over_seeds_and_over_examples():
    calm, seeds, rows = sample([0.2, 0.2, 0.2], 0.001, 0), sample([0.1, 0.2, 0.3], 0.001, 0), sample([0.2, 0.2, 0.2], 0.05, 0)
    widths = [interval(s)[2] - interval(s)[1] for s in (calm, seeds, rows)]
    assert widths[0] < 0.01
    assert widths[1] > 0.1
    assert widths[2] > 0.05
    assert interval(seeds)[0] == pytest.approx(0.2)


def test_the_interval_of_one_seed_is_that_of_its_rows():
    one = sample([0.2], 0.05, 0)
    low, high = np.quantile(one.draws[0], [0.025, 0.975]) - one.draws[0].mean() + 0.2
    assert interval(one) == pytest.approx((0.2, low, high))
    assert np.isnan(interval(Sample((0,), np.array([np.inf]), one.draws, 200))[1:]).all()


def test_a_place_says_whether_a_method_is_scaled(place):
    study = load_study(str(place / "tiny.toml"))
    results = StudyResults(study, expand(study), Outcome(), place / "store")
    for method, as_it_is in (("Alone", False), ("Alone, scaled", True)):
        given = [results.is_scaled(PlaceSettings(method=method, scaled=scaled)) for scaled in (None, False, True)]
        assert given == [as_it_is, False, True]


def test_a_set_of_several_splits_is_their_mean(results):
    task = results.study.tasks["near"]
    both = task.replace(sets={**task.sets, "both": ["test", "other"]})
    study = results.study.replace(tasks={"near": both})
    mixed = StudyResults(study, results.graph, results.outcome, results.store)
    place = PlaceSettings(method="Alone", task="near", metric="accuracy")
    home, away, mean = (mixed.sample(place.replace(set=name)) for name in ("home", "away", "both"))
    np.testing.assert_allclose(mean.values, (home.values + away.values) / 2)
    np.testing.assert_allclose(mean.draws, (home.draws + away.draws) / 2)
    assert mean.examples == home.examples + away.examples
    assert len(mixed.predictions(place.replace(set="both"))) == 2 * len(mixed.predictions(place.replace(set="home")))


def test_chance_is_the_most_frequent_class(results):
    (first, *_) = results.predictions(PlaceSettings(method="Alone", task="near"))
    share = np.bincount(first.labels).max() / len(first)
    assert results.chance(PlaceSettings(method="Alone", task="near")) == pytest.approx(share)
    assert np.isnan(results.chance(PlaceSettings(method="Nobody", task="near")))


def test_every_study_has_rows_with_a_temperature_and_tables_of_scores(results):
    study = results.study.replace(temperature_rows=True, score_tables=True)
    table, *scores = all_tables(study)
    rows = [(row.method, row.name, row.scaled) for row in table.rows]
    # "Alone, scaled" is shown already, and is the same model as "Alone"
    assert rows == [
        ("Large", "", None),
        ("Large", "Large + temperature", True),
        ("Alone", "", None),
        ("Alone, scaled", "", None),
        ("Taught", "", None),
        ("Taught", "Taught + temperature", True),
    ]
    assert [len(row) for row in table.paper] == [3] * 6
    assert [table.title for table in scores] == ["Every score: near, home", "Every score: near, away"]
    filled = fill_table(results, scores[1])
    assert filled["columns"] == ["accuracy (%)", "ece (%)", "nll", "brier", "aurc"]
    assert filled["rows"] == ["Large", "Large + temperature", "Alone", "Alone + temperature", "Taught", "Taught + temperature"]
    means = np.array([[cell["mean"] for cell in row] for row in filled["cells"]])
    assert np.isfinite(means).all()
    assert (means[::2, 0] == means[1::2, 0]).all()  # a temperature changes no prediction
    assert (means[::2, 2] != means[1::2, 2]).all()


def test_a_model_that_is_shown_with_its_temperature_only_has_its_scores(results):
    study = results.study.replace(temperature_rows=True, score_tables=True)
    rows = [row for row in study.tables[0].rows if row.method != "Alone"]
    table = study.tables[0].replace(rows=rows, paper=())
    _, scores, *_ = all_tables(study.replace(tables=[table]))
    assert [row.method for row in scores.rows] == ["Large", "Large", "Alone, scaled", "Taught", "Taught"]


def test_accuracy_alone_gets_no_rows_with_a_temperature(place):
    study = load_study(str(place / "tiny.toml")).replace(temperature_rows=True)
    table = study.tables[0].replace(common=PlaceSettings(metric="accuracy", task="near"))
    assert len(all_tables(study.replace(tables=[table]))[0].rows) == len(table.rows)
