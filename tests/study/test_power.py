"""What a design could see: against simulated studies, from results that are there, without data."""

from __future__ import annotations

import json

import numpy as np
import pytest
from shell import command

from distilcal.study.expand import expand
from distilcal.study.inference import Sample, estimate_each
from distilcal.study.loading import load_study
from distilcal.study.power import UNKNOWN_ROWS, USUAL, design_power, detectable, known_spread


@pytest.mark.parametrize(("seeds", "comparisons"), [(3, 12), (5, 4), (1, 4)])
def test_a_difference_of_that_size_is_seen_in_about_four_of_five_studies(seeds, comparisons):
    rng = np.random.default_rng(0)
    rows, spread = 1000, {"rows": 0.4, "seeds": 0.02}
    effect = detectable(spread, rows, seeds, comparisons)
    error = spread["rows"] / np.sqrt(rows)
    draws = error * rng.standard_normal(400)
    seen = []
    for _ in range(150):
        samples = []
        for _ in range(comparisons):
            of_seeds = rng.normal(size=seeds) * spread["seeds"] if seeds > 1 else np.zeros(1)
            values = effect + of_seeds + error * rng.normal()
            samples.append(Sample(tuple(range(seeds)), values, np.tile(draws, (seeds, 1)), rows))
        seen += [estimate.interval(0.05 / comparisons)[0] > 0 for estimate in estimate_each(samples)]
    assert 0.7 < np.mean(seen) < 0.92


def test_more_rows_seeds_or_fewer_comparisons_see_more():
    spread = {"rows": 0.4, "seeds": 0.02}
    base = detectable(spread, 1000, 3, 12)
    assert detectable(spread, 4000, 3, 12) < base
    assert detectable(spread, 1000, 5, 12) < base
    assert detectable(spread, 1000, 3, 12, alpha=0.1) < base  # a test of equivalence
    assert detectable(spread, 1000, 5, 1) < detectable(spread, 1000, 5, 12)


def test_spreads_come_from_results_of_the_study_where_there_are_any(place, tmp_path):
    study = load_study(str(place / "tiny.toml"))
    spread, source = known_spread(study, tmp_path)
    assert source == USUAL
    assert spread["error"] == spread["ece"]  # the same metric under another name
    for name, seeds, rows in (("tiny-small", [0], 0.5), ("tiny-full", [0, 1, 2], 0.7), ("tiny-other", [0, 1], 0.9)):
        (tmp_path / name).mkdir()
        found = {"scale": name, "seeds": seeds, "spread": {"error": {"rows": rows, "seeds": 0.01}, "gone": {"rows": 1.0}}}
        (tmp_path / name / "results.json").write_text(json.dumps(found))
    (tmp_path / "tiny-broken").mkdir()
    (tmp_path / "tiny-broken" / "results.json").write_text("{")
    spread, source = known_spread(study, tmp_path)
    assert spread["error"] == {"rows": 0.7, "seeds": 0.01}
    assert "tiny-full" in source
    assert "3 seeds" in source
    assert "gone" not in spread


def test_the_sizes_are_those_of_the_data_or_those_stated(place, tmp_path):
    study = load_study(str(place / "tiny.toml"))
    (claim,) = design_power(study, expand(study)).claims
    assert claim.comparisons == 1
    assert claim.rows[0] == claim.rows[1] == 100
    missing = (place / "tiny.toml").read_text().replace(str(place / "train.npz"), str(tmp_path / "none.npz"))
    (tmp_path / "s.toml").write_text(missing)
    study = load_study(str(tmp_path / "s.toml"))
    power = design_power(study, expand(study))
    assert list(power.unread) == ["near"]
    assert power.claims[0].rows == (UNKNOWN_ROWS, UNKNOWN_ROWS)


def test_the_same_models_count_once(place):
    study = load_study(str(place / "tiny.toml"))
    places = [{"task": "near", "set": "home"}, {"task": "near"}]  # both are the test set
    claim = study.claims[0].replace(places=places)
    assert design_power(study.replace(claims=[claim]), expand(study)).claims[0].comparisons == 1


def test_the_command_shows_it_and_trains_nothing(place, tmp_path):
    text = (place / "tiny.toml").read_text().replace('than = "Alone"', 'than = "Alone"\ndelta = 1.0', 1)
    (tmp_path / "s.toml").write_text(text)
    for option in ("--power", "--dry-run"):
        said = command("study", tmp_path / "s.toml", option, "--store", tmp_path / "store").output
        assert "What each claim could see with a power of 80%" in said
        assert "accuracy, 1 comparison, 2 seeds, 100 rows: differences from" in said
        assert "no effect above δ = 1.0% could not be shown (from" in said
    assert not (tmp_path / "store").exists()
