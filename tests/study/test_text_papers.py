"""The studies of texts are what their papers describe: regions, halves, places, losses and chosen points."""

from __future__ import annotations

import math

import pytest

from distilcal.study.claim_settings import claim_pairs
from distilcal.study.expand import expand
from distilcal.study.loading import load_study
from distilcal.study.places import merge_places
from distilcal.study.schema import claim_places, pair_premises


def jobs_of(name, scale="full"):
    """(method, task) → the stage of its job, with one seed."""
    study = load_study(name, scale, seeds=1)
    graph = expand(study)
    first = {choice.id: choice.jobs[0] for choice in graph.choices.values()}
    return study, {(m, t): graph.jobs[first.get(id_, id_)] for (m, t, _), id_ in graph.cells.items()}


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("network", ["BERT", "RoBERTa"])
def test_informed_mixup_mixes_disjoint_regions_and_its_baseline_inputs_alone(network, scale):
    study, jobs = jobs_of("informed-mixup", scale)
    assert study.temperature_grid == (0.01, 5.0, 0.01)
    for task in study.tasks:
        ours = jobs[f"{network}+Ours", task].stage
        view = ours.views["mixed"]
        assert (view.kind, view.pairs, view.regions, view.fraction, view.disjoint, view.alpha, view.layers) == (
            ("manifold", "regions", ("easy", "ambiguous"), 0.33, True, 0.4, ())
        )
        assert [term.view for term in ours.terms] == ["plain", "mixed"]
        for smoothed in ("", "+(LS+TS)"):
            mixup = jobs[f"{network}+Mixup{smoothed}", task].stage
            assert [term.view for term in mixup.terms] == ["mixed"]
            assert mixup.views["mixed"].pairs == "random"
            at_input = mixup.views["mixed"].kind == "mixup" or mixup.views["mixed"].layers == (0,)
            assert at_input
        control = jobs[f"{network}+Uninformed", task].stage
        assert (control.views["mixed"].pairs, control.views["mixed"].halves) == ("halves", "random")
        assert (control.terms, control.views["mixed"].kind) == (ours.terms, view.kind)
        taught = jobs[f"SD{network}+Ours+(LS+TS)", task].stage
        assert taught.scale_teacher
        assert taught.teacher_grid == (0.01, 5.0, 0.01)
        assert not taught.views


def test_informed_mixup_searches_what_the_paper_searched():
    study, jobs = jobs_of("informed-mixup")
    tried = {
        "fraction": {job.stage.views["mixed"].fraction for (m, _), job in jobs.items() if ", fraction" in m},
        "alpha": {job.stage.views["mixed"].alpha for (m, _), job in jobs.items() if ", alpha" in m},
        "smoothing": {job.stage.terms[1].settings["smoothing"] for (m, _), job in jobs.items() if ", smoothing" in m},
    }
    assert tried == {"fraction": {0.5, 0.33, 0.25}, "alpha": {0.3, 0.4, 0.5}, "smoothing": {0.05, 0.1, 0.2, 0.3, 0.4}}
    searches = [table for table in study.tables if table.name.startswith("search")]
    assert {table.common.set for table in searches} == {"dev"}
    assert not any(", fraction" in method for method in load_study("informed-mixup", "paper").methods)


def test_guided_mixup_without_aum_divides_at_random_and_keeps_everything_else():
    study, jobs = jobs_of("aum-saliency")
    assert study.temperature_grid == (0.01, 5.0, 0.01)
    for network in ("BERT", "RoBERTa"):
        for task in study.tasks:
            ours, without = (jobs[f"{network} Ours + LS{part}", task].stage for part in ("", " - AUM"))
            changed = {name: view.replace(halves="random") for name, view in ours.views.items()}
            assert without == ours.replace(views=changed)
            assert [term.weight for term in ours.terms] == [0.8, 0.1, 0.1]
            weights = [[t.weight for t in jobs[f"{network} Ours + LS - {part}", task].stage.terms] for part in
                       ("Saliency", "similar", "dissimilar")]  # fmt: skip
            assert weights == [[0.8, 0.2], [0.9, 0.1], [0.9, 0.1]]


def test_models_of_guided_mixup_that_cannot_differ_are_one():
    """With two classes, similar and dissimilar partners are told apart by nothing."""
    _, jobs = jobs_of("aum-saliency", "small")
    for network in ("BERT", "RoBERTa"):
        same = [jobs[f"{network} Ours + LS - similar", t] == jobs[f"{network} Ours + LS - dissimilar", t] for t in
                ("SNLI", "QQP", "SWAG")]  # fmt: skip
        assert same == [False, True, False]


def test_claims_about_what_was_learned_follow_the_scale():
    for scale in ("full", "small"):
        study = load_study("aum-saliency", scale)
        claims = [claim for claim in study.claims if "in domain" in claim.text or "out of domain" in claim.text]
        for claim in claims:
            for place in claim_places(study, claim):
                at_home = study.tasks[place.task].sets[place.set] == "test"
                if "in and out of domain" not in claim.text:
                    assert at_home == ("out of domain" not in claim.text.lower()), (scale, claim.text, place)


NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")


def paper_values(study):
    """(metric, stage, scaled, task, set) → the value that the paper's tables have there, the first of two."""
    values = {}
    for table in study.tables:
        for row, numbers in zip(table.rows, table.paper, strict=False):
            for column, number in zip(table.columns, numbers, strict=True):
                place = merge_places(table.common, row, column)
                method = study.methods[place.method]
                key = (place.metric, method.stage, method.scaled or bool(place.scaled), place.task, place.set)
                values.setdefault(key, number[0] if isinstance(number, (list, tuple)) else number)
    return values


@pytest.mark.parametrize("name", ["informed-mixup", "aum-saliency", "kd-or-smoothing"])
def test_claims_hold_in_as_many_places_of_the_paper_s_own_tables_as_they_say(name):
    study = load_study(name, "full")
    values = paper_values(study)
    for claim in study.claims:
        holds = []
        beyond = 0  # places where the paper has a larger difference than δ
        for pair in claim_pairs(claim):
            for place in claim_places(study, claim):
                if place.set == "dev":  # the papers' searches are told in words
                    continue

                def value(method, metric=claim.metric, place=place):
                    settings = study.methods[method]
                    key = (metric, settings.stage, settings.scaled or bool(place.scaled), place.task, place.set)
                    return values.get(key)

                first, second = value(pair.first), value(pair.second)
                assert first is not None, (pair.first, place)
                assert second is not None, (pair.second, place)
                others = [second, *(v for v in map(value, pair.controls) if v is not None)]
                holds.append(all(first > v if claim.expects_higher else first < v for v in others))
                beyond += holds[-1] and abs(first - second) > study.metrics[claim.metric].delta
        if "no effect is expected" in claim.text:
            assert f"{NUMBERS[beyond]} of {len(holds)} places lose more than δ" in claim.text
            continue
        assert not holds or sum(holds) == (claim.at_least or len(holds)), claim.text


@pytest.mark.parametrize("name", ["informed-mixup", "aum-saliency"])
def test_every_claim_needs_a_task_that_was_learned_at_home(name):
    for scale in ("full", "small"):
        study = load_study(name, scale)
        for claim in study.claims:
            for pair in claim_pairs(claim):
                learned = [p for p in pair_premises(claim, pair) if p.kind == "above_chance"]
                # Accuracies away from home must be above chance there, too.
                assert {(p.by, p.set) for p in learned} - {(0, "")} == {(2, "test")}, (claim.text, pair.first)


def test_distillation_of_kd_or_smoothing_divides_both_sides_and_multiplies():
    _, jobs = jobs_of("kd-or-smoothing")
    for method in ("DistilBERT Standard KD, τ", "DistilBERT Self-KD, τ", "BERT Reverse KD, τ"):
        followed, hard, soft = jobs[method, "QNLI"].stage.terms
        assert (followed.loss, followed.weight) == ("confidence_penalty", 0)
        assert (hard.loss, soft.loss) == ("cross_entropy", "kd")
        assert soft.settings["t_squared"] is True
        assert "student_temperature" not in soft.settings
        assert hard.weight + soft.weight == 1


def test_the_scale_of_the_paper_trains_the_points_of_tables_7_and_12():
    study, jobs = jobs_of("kd-or-smoothing", "paper")
    assert len(jobs) == 4 * 12
    chosen = {
        ("BERT ERM", "SST-2"): (1e-5, 9, None, None),
        ("DistilBERT LS", "QNLI"): (2e-5, 8, 0.8, None),
        ("BERT LS, fine", "MRPC"): (7e-5, 6, 0.2332, None),
        ("DistilBERT Standard KD", "MNLI"): (3e-5, 6, 0.7, 1),
        ("DistilBERT Self-KD", "MNLI"): (3e-5, 9, 0.9, 1),
        ("DistilBERT Self-KD", "MRPC"): (6e-5, 7, 0.1, 1),  # not in the paper: that of standard KD
        ("DistilBERT Standard KD, τ", "MRPC"): (3e-5, 3, 1.0, 16),
        ("BERT Reverse KD, τ", "QNLI"): (4e-5, 2, 0.25, 64),
    }
    for (method, task), (rate, epochs, alpha, tau) in chosen.items():
        stage = jobs[method, task].stage
        assert (stage.train.lr, stage.train.epochs, stage.train.choose) == (rate, epochs, "last"), (method, task)
        soft = stage.terms[2] if len(stage.terms) > 2 else None
        if soft is None:
            assert stage.terms[1].settings.get("smoothing") == alpha
        else:
            assert (soft.weight, soft.settings.get("temperature", 1)) == (alpha, tau)
            assert math.isclose(stage.terms[1].weight + soft.weight, 1)
    assert "self-kd" not in study.chosen["MRPC"], "the paper's table has no such row"
    grids = load_study("kd-or-smoothing", "full").grids
    for task, points in study.chosen.items():
        for stage, point in points.items():
            (grid,) = [grid for grid in grids.values() if stage in grid.stages]
            for axis in grid.axes:
                for path, values in axis.items():
                    assert path == "terms.2.temperature" or point[path] in values, (task, stage, path)


@pytest.mark.parametrize("name", ["informed-mixup", "aum-saliency", "kd-or-smoothing"])
def test_titles_name_the_networks_of_the_scale(name):
    full, small = (load_study(name, scale) for scale in ("full", "small"))
    for ours, theirs in zip(small.tables, full.tables, strict=True):
        assert "MiniLM" in ours.title
        assert "MiniLM" not in theirs.title
