"""The search within a time: candidates, rungs, the clock. Nothing is trained here."""

import json

import pytest

from distilcal.config.schema import ModelSettings, StageSettings, TermSettings
from distilcal.errors import InputError
from distilcal.pipeline.budget import Situation, build_candidates, format_duration, parse_duration
from distilcal.pipeline.budget.candidates import control_of
from distilcal.pipeline.budget.halving import (
    FEWEST_LAST_STEPS,
    Halving,
    Trial,
    Workload,
    affordable_steps,
    fitting_count,
    pareto_front,
    rank,
    rung_share,
    rung_sizes,
)
from distilcal.pipeline.budget.ledger import Ledger

TERMS = (TermSettings(weight=0.1), TermSettings(loss="kd", weight=0.9, settings={"temperature": 1.0}))
STUDENT = StageSettings(model=ModelSettings(name="bert", layers=(0, 2, 4)), terms=TERMS, teacher="teacher")


# ---- durations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("1h30m", 5400), ("90s", 90), ("2H", 7200), (" 1.5m ", 90), (45, 45), (0.5, 0.5), ("1h30m10s", 5410)],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("30", "has no unit"),
        ("abc", "is not a duration"),
        ("", "is not a duration"),
        ("30m1h", "is not a duration"),
        ("-5m", "is not a duration"),
        ("0", "not a time"),
        ("0m", "not a time"),
        (0, "not a time"),
        (-3, "not a time"),
        (float("nan"), "not a time"),
        (float("inf"), "not a time"),
        (True, "is not a duration"),
        (None, "is not a duration"),
    ],
)
def test_what_is_no_duration_is_refused_with_an_example(text, problem):
    with pytest.raises(InputError, match=problem) as error:
        parse_duration(text)
    assert "1h30m" in str(error.value)


def test_durations_are_shown_to_the_second():
    assert [format_duration(s) for s in (0.2, 59.6, 61, 3661, -4)] == ["0 s", "1 min", "1 min 1 s", "1 h 1 min", "0 s"]


# ---- candidates --------------------------------------------------------------------------------------------------------


def names(**situation):
    settings = {"inputs": "texts", "labelled": 600, **situation}
    return [candidate.name for candidate in build_candidates(STUDENT, Situation(**settings))]


def test_the_first_candidate_is_the_student_as_it_is():
    assert build_candidates(STUDENT, Situation("texts", 600))[0].stage == STUDENT


def test_candidates_follow_from_the_situation():
    assert "small-kd" in names(layers=6)
    assert "small-kd" not in names(layers=0)  # the user named the student
    assert "small-kd" not in names(layers=9)  # every third layer is not fewer than the student has
    assert "kd-half-labelled" in names(unlabelled=6000)
    assert "kd-half-labelled" not in names(unlabelled=600)
    assert "kd-mixup" in names(inputs="images")
    assert "kd-mixup" not in names()
    assert {"kd-t2", "kd-t4"} <= set(names())
    assert not {"kd-t2", "kd-t4"} & set(names(graded=False))


def test_candidates_differ_in_their_settings_and_names():
    for situation in (Situation("texts", 600, 6000, layers=12), Situation("images", 100)):
        candidates = build_candidates(STUDENT, situation)
        assert len({candidate.name for candidate in candidates}) == len(candidates)
        stages = [candidate.stage for candidate in candidates]
        assert all(a != b for i, a in enumerate(stages) for b in stages[:i])
    only = STUDENT.replace(terms=(TermSettings(loss="kd", settings={"temperature": 1.0}),))
    assert "kd-only" not in [candidate.name for candidate in build_candidates(only, Situation("texts", 600))]


def test_candidates_have_the_settings_that_they_are_named_for():
    stages = {c.name: c.stage for c in build_candidates(STUDENT, Situation("texts", 600, 6000, layers=6))}
    assert stages["small-kd"].model.layers == (0, 3)
    assert stages["kd-fast"].train.lr == 1e-4
    assert stages["kd-slow"].train.lr == 2e-5
    assert [term.settings for term in stages["kd-t2"].terms] == [{}, {"temperature": 2.0}]
    assert [term.loss for term in stages["kd-only"].terms] == ["kd"]
    assert stages["kd-half-labelled"].train.labelled_share == 0.5
    assert all(stage.teacher == "teacher" for stage in stages.values())


def test_a_control_is_the_same_network_with_the_terms_of_the_student_alone():
    alone = StageSettings(model=ModelSettings(name="other"), terms=(TermSettings(),))
    student = STUDENT.replace(train=STUDENT.train.replace(lr=1e-3, labelled_share=0.5))
    control = control_of(student, alone)
    assert control.model == student.model
    assert control.terms == alone.terms
    assert (control.train.lr, control.train.labelled_share, control.teacher) == (1e-3, None, "")


# ---- how much training fits --------------------------------------------------------------------------------------------


def test_an_amount_is_whole_epochs_or_a_share_of_one():
    workload = Workload(steps_per_epoch=100, seconds_per_step=0.1, overhead=2.0)
    assert (workload.amount(250).epochs, workload.amount(250).share) == (2, 1.0)
    assert workload.amount(295).epochs == 3  # nearly three
    assert (workload.amount(25).epochs, workload.amount(25).share) == (1, 0.25)
    assert workload.amount(25, whole=True).share == 1.0
    assert workload.amount(10**6).epochs == 10
    assert Workload(10, 0.1, 2.0).amount(10**6).epochs == 100  # small data: epochs are short
    assert workload.seconds(workload.amount(25)) == pytest.approx(2.0 + 2.5)


def test_affordable_steps_fill_the_time_and_no_more():
    workloads = [Workload(1, 0.5, 3.0), Workload(1, 0.25, 1.0)]
    steps = affordable_steps(100.0, workloads)
    assert sum(w.seconds(w.amount(steps)) for w in workloads) <= 100
    assert sum(w.seconds(w.amount(steps + 1)) for w in workloads) > 100
    assert affordable_steps(2.0, workloads) == 0


def test_the_last_rung_has_half_of_the_time():
    left, spent = 1.0, []
    for rung in range(4):
        spent.append(left * rung_share(rung, 4))
        left -= spent[-1]
    assert spent == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_more_time_means_more_candidates_and_no_time_none():
    workloads = [Workload(40, 0.1, 2.0)] * 9
    counts = [fitting_count(workloads, workloads, seconds) for seconds in (10, 40, 120, 300, 3000)]
    assert counts == sorted(counts)
    assert (counts[0], counts[1], counts[-1]) == (0, 1, 9)


def test_a_large_data_set_is_not_searched_where_one_epoch_takes_the_time():
    epoch = Workload(steps_per_epoch=3000, seconds_per_step=0.1, overhead=2.0)
    assert fitting_count([epoch] * 9, [None] * 9, 400.0) == 1
    assert fitting_count([epoch] * 9, [None] * 9, 290.0) == 0


# ---- the rungs, with a clock that training moves -----------------------------------------------------------------------


class Machine:
    """Trains nothing: a training takes the time that it costs here, and its NLL is looked up."""

    def __init__(self, nll, *, slower=1.0, steps_per_epoch=20, seconds_per_step=0.1, sizes=None, control=True):
        self.nll, self.slower, self.sizes = nll, slower, sizes or {}
        self.known = Workload(steps_per_epoch, seconds_per_step, 2.0)
        self.time, self.calls, self.started, self.rungs = 0.0, [], [], []
        self.has_control = control

    def search(self, end, slack=0.0):
        halving = Halving(
            names=[name for name in self.nll if not name.endswith("-alone")],
            rungs=self.rungs,
            workload=lambda name: self.known,
            control=lambda name: f"{name}-alone" if self.has_control else None,
            train=self.train,
            used=lambda: self.time,
            save=lambda: json.dumps(self.rungs),
            start=lambda *rung: self.started.append(rung),
            slack=slack,
        )
        return halving.run(end)

    def train(self, name, amount, deadline):
        self.calls.append((name, amount, deadline))
        seconds = self.slower * self.known.seconds(amount)
        if deadline is not None and self.time + seconds > deadline:
            self.time = max(self.time, deadline)
            return None
        self.time += seconds
        nll = self.nll.get(name, 9.0)
        nll = nll(amount.epochs) if callable(nll) else nll
        size = self.sizes.get(name, 100)
        dev = {"calibrated_nll": nll, "accuracy": 0.5}
        return Trial(name, f"key-{name}-{amount.epochs}", amount.epochs, amount.share, seconds, dev, size)


NINE = {f"c{i}": 0.9 - 0.05 * i for i in range(9)}  # the last one is the best


def test_the_best_candidate_survives_all_rungs():
    machine = Machine(NINE)
    finalist, control = machine.search(600.0)
    assert finalist.name == "c8"
    assert control.name == "c8-alone"
    assert [len(rung["candidates"]) for rung in machine.rungs] == [9, 3, 2]
    assert set(machine.rungs[1]["candidates"]) == {"c6", "c7", "c8"}
    epochs = [next(a.epochs for n, a, _ in machine.calls if n == name) for name in ("c0", "c8-alone")]
    assert epochs[0] < epochs[1]  # later rungs train longer


@pytest.mark.parametrize("slower", [0.7, 1.0, 1.2])
def test_the_time_is_kept(slower):
    machine = Machine(NINE, slower=slower, steps_per_epoch=500)
    machine.search(600.0, slack=40.0)
    assert 0.6 * 600 <= machine.time <= 640


@pytest.mark.parametrize("slower", [3.0, 10.0])
def test_a_machine_that_became_much_slower_still_ends_with_a_student(slower):
    machine = Machine(NINE, slower=slower)
    finalist, _ = machine.search(600.0, slack=40.0)
    assert finalist.share == 1
    cheapest = machine.slower * machine.known.seconds(machine.known.amount(FEWEST_LAST_STEPS, whole=True))
    assert machine.time <= 640 + cheapest


def test_a_finalist_that_is_cut_short_is_used_as_an_earlier_rung_trained_it():
    machine = Machine(NINE)
    train = machine.train

    def slow_at_the_end(name, amount, deadline):
        if len(machine.rungs) == 3:
            machine.slower = 50.0
        return train(name, amount, deadline)

    machine.train = slow_at_the_end
    finalist, control = machine.search(600.0)
    assert finalist.name == "c8"
    assert finalist.epochs == next(t["epochs"] for t in [machine.rungs[1]["trials"]["c8"]])
    assert control is None
    assert machine.rungs[2]["trials"] == {"c8": None, "c8-alone": None}


def test_a_finalist_that_grew_worse_is_used_as_an_earlier_rung_trained_it():
    machine = Machine({"a": lambda epochs: 0.3 + 0.01 * epochs, "b": 0.9})
    finalist, _ = machine.search(300.0)
    assert finalist.epochs == machine.rungs[0]["trials"]["a"]["epochs"] < machine.rungs[1]["trials"]["a"]["epochs"]


def test_the_control_is_trained_as_long_as_the_finalist_or_as_long_as_time_allows():
    machine = Machine(NINE)
    machine.search(600.0)
    assert machine.calls[-1][1] == machine.calls[-2][1]
    assert machine.rungs[-1]["control_steps"] == machine.rungs[-1]["steps"]
    slower = Machine(NINE, slower=1.5, steps_per_epoch=200)
    _, control = slower.search(600.0, slack=60.0)
    assert slower.rungs[-1]["control_steps"] < slower.rungs[-1]["steps"]
    assert control.epochs < slower.calls[-2][1].epochs


def test_without_a_control_the_finalist_has_the_last_rung_alone():
    machine = Machine(NINE, control=False)
    _, control = machine.search(600.0)
    assert control is None
    assert machine.rungs[-1]["candidates"] == ["c8"]


@pytest.mark.parametrize("killed_after", range(1, 14))
def test_a_killed_search_goes_on_with_the_same_amounts_and_the_same_choice(killed_after):
    whole = Machine(NINE)
    expected = whole.search(600.0)
    machine = Machine(NINE)
    train = machine.train

    def killed(name, amount, deadline):
        if len(machine.calls) == killed_after:
            raise KeyboardInterrupt
        return train(name, amount, deadline)

    machine.train = killed
    with pytest.raises(KeyboardInterrupt):
        machine.search(600.0)
    machine.rungs = json.loads(json.dumps(machine.rungs))  # as from disk
    machine.train = train
    found = machine.search(600.0)
    assert [(t.name, t.epochs, t.nll) for t in found] == [(t.name, t.epochs, t.nll) for t in expected]
    assert [(n, a) for n, a, _ in machine.calls] == [(n, a) for n, a, _ in whole.calls]


# ---- ranking -----------------------------------------------------------------------------------------------------------


def trial(name, nll, size=100):
    return Trial(name, name, 1, 1.0, 1.0, {"calibrated_nll": nll}, size)


def test_ties_prefer_the_smaller_and_then_the_earlier():
    assert [t.name for t in rank([trial("a", 0.400), trial("b", 0.401, size=50)])] == ["b", "a"]
    assert [t.name for t in rank([trial("a", 0.400), trial("b", 0.410, size=50)])] == ["a", "b"]
    assert [t.name for t in rank([trial("a", 0.4), trial("b", 0.4)])] == ["a", "b"]


def test_a_smaller_tie_is_chosen_by_the_search():
    machine = Machine({"large": 0.4, "small": 0.4015}, sizes={"small": 10, "small-alone": 10})
    assert machine.search(600.0)[0].name == "small"


def test_rungs_keep_a_third():
    assert [rung_sizes(n) for n in (1, 2, 3, 7, 11)] == [[1], [2, 1], [3, 1], [7, 3, 1], [11, 4, 2, 1]]


def test_the_frontier_holds_what_nothing_beats_in_both():
    assert pareto_front([(1, 3), (2, 2), (3, 1), (3, 2), (2, 2)]) == [True, True, True, False, True]


# ---- the ledger --------------------------------------------------------------------------------------------------------


def test_the_time_used_before_a_kill_counts(tmp_path):
    now = [100.0]
    first = Ledger(tmp_path / "budget.json", "key", 60.0, clock=lambda: now[0])
    first.facts["rungs"].append({"steps": 5})
    now[0] += 25
    first.save()
    now[0] = 7.0  # another process, whose clock begins elsewhere
    second = Ledger(tmp_path / "budget.json", "key", 60.0, clock=lambda: now[0])
    now[0] += 5
    assert (second.used(), second.left(), second.resumed) == (30.0, 30.0, 25.0)
    assert second.facts["rungs"] == [{"steps": 5}]


def test_findings_of_another_search_are_not_used(tmp_path):
    Ledger(tmp_path / "budget.json", "key", 60.0).save()
    other = Ledger(tmp_path / "budget.json", "other", 60.0, clock=lambda: 0.0)
    assert (other.resumed, other.facts["rungs"], other.facts["key"]) == (0.0, [], "other")


def test_a_minute_without_a_line_is_broken_by_one(tmp_path, caplog):
    now = [0.0]
    ledger = Ledger(tmp_path / "budget.json", "key", 600.0, clock=lambda: now[0])
    ledger.begin("rung 1 of 2, kd")
    with caplog.at_level("INFO", "distilcal"):
        for _ in range(30):
            now[0] += 5
            ledger.tick()
    assert [record.getMessage() for record in caplog.records] == [
        "rung 1 of 2, kd (1 min used, 9 min left)",
        "rung 1 of 2, kd (2 min used, 8 min left)",
    ]
    assert json.loads((tmp_path / "budget.json").read_text())["used"] == 150.0


def test_time_that_is_over_is_called_so(tmp_path, caplog):
    now = [0.0]
    ledger = Ledger(tmp_path / "budget.json", "key", 60.0, clock=lambda: now[0])
    now[0] = 75.0
    with caplog.at_level("INFO", "distilcal"):
        ledger.log("finished")
    assert caplog.messages == ["finished (1 min 15 s used, 15 s over)"]
