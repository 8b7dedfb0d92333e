"""Mixing in the loop and in whole runs: the right examples, places and targets, the same however a batch is cut."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import launch
from small import DEV, TRAIN, Interrupted, student, teacher_predictions, vectors, weights

from distilcal.config.schema import TrainSettings, ViewSettings
from distilcal.dynamics import Recorder
from distilcal.errors import InputError
from distilcal.training import fit
from distilcal.training.schedule import epoch_batches
from distilcal.views import VIEWS, build_term, build_view, plain

HOW = TrainSettings(epochs=3, batch=20, lr=0.05, optimizer="sgd", choose="last")


def recorder(data=TRAIN, **named):
    return Recorder(data.ids, data.labels, data.classes, **named)


def trained(terms, *, how=HOW, views=None, data=TRAIN, **named):
    made = student(data=data)
    fit(made, data, DEV, terms, how, views={**VIEWS, **(views or {})}, **named)
    return made


def a_map(data=TRAIN):
    """The dynamics of a short plain training."""
    kept = recorder(data, width=7)
    trained([build_term("cross_entropy")], data=data, recorder=kept)
    return kept.dynamics()


def test_means_are_over_the_examples_that_were_mixed():
    """A view of few rows: its mean loss is theirs, not diluted by batches in which nobody was mixed."""
    view = build_view(ViewSettings(kind="manifold", pairs="regions", fraction=0.03), 3, a_map())
    terms = [build_term("cross_entropy"), build_term("cross_entropy", view="mixed")]
    made = student()
    how = TrainSettings(epochs=1, batch=6, lr=1e-9, optimizer="sgd", choose="last")
    losses = fit(made, TRAIN, DEV, terms, how, views={**VIEWS, "mixed": view}).history[0]["losses"]
    assert losses["cross_entropy(mixed)"] > 0.5  # nothing was learned: about log 3, as the plain one


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: {"terms": [build_term("cross_entropy", view="other")]}, "no term on the plain view"),
        (lambda: {"recorder": Recorder([f"x{i}" for i in range(90)], TRAIN.labels, TRAIN.classes)}, "is not of"),
    ],
)
def test_a_recorder_must_fit(given, words):
    given = {"terms": [build_term("cross_entropy")], "recorder": recorder(), **given()}
    with pytest.raises(InputError, match=words):
        fit(student(), TRAIN, DEV, given["terms"], HOW, recorder=given["recorder"], views={**VIEWS, "other": plain})


# ---- recording ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("second", ["brier", "mdca"])
def test_the_loop_records_what_the_network_says_before_each_step(accumulate, second):
    """Against a view that notes by hand what goes by; ``mdca`` makes parts go through twice."""
    seen = []

    def noting(network, batch):
        view = plain(network, batch)
        assert network.training
        seen.append((batch.rows.copy(), view.logits.detach().clone()))
        return view

    kept = recorder(width=7)
    how = TrainSettings(epochs=4, batch=20, lr=0.05, accumulate=accumulate, choose="last")
    trained([build_term("cross_entropy"), build_term(second)], how=how, views={"plain": noting}, recorder=kept)
    found = kept.dynamics()
    assert (found.epochs == 4).all()
    twice = accumulate == 2 and second == "mdca"
    passes = np.concatenate([rows for rows, _ in seen])
    assert len(passes) == 90 * 4 * (2 if twice else 1)
    by_hand = Recorder(TRAIN.ids, TRAIN.labels, TRAIN.classes)
    for i, (rows, logits) in enumerate(seen):
        if not twice or i % 4 < 2:  # first the parts, then the parts again
            by_hand.record(rows, logits)
    expected = by_hand.dynamics()
    for name in ("confidence", "variability", "correctness", "forgotten", "aum", "logits"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-6, err_msg=name)
    assert found.feature_saliency.shape == (90, 7)
    assert (found.feature_saliency >= 0).all()


def test_recording_changes_no_weight():
    assert torch.equal(weights(trained([build_term("cross_entropy")])),
                       weights(trained([build_term("cross_entropy")], recorder=recorder())))  # fmt: skip


def test_an_interrupted_record_ends_with_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("distilcal.training.loop.PROGRESS_INTERVAL", -1.0)
    mixed = ViewSettings(kind="manifold", pairs="regions")
    views = {"mixed": build_view(mixed, 3, a_map())}
    terms = [build_term("cross_entropy"), build_term("cross_entropy", view="mixed")]
    straight = recorder(width=7)
    expected = trained(terms, views=views, recorder=straight, checkpoint_dir=tmp_path / "a")
    stop = {"at": 7}

    def progress(step):
        stop["at"] -= 1
        if stop["at"] == 0:
            raise Interrupted

    later = recorder(width=7)
    with pytest.raises(Interrupted):
        trained(terms, views=views, recorder=later, checkpoint_dir=tmp_path / "b", on_progress=progress, how=HOW)
    later = recorder(width=7, folder=tmp_path / "mapped")
    found = trained(terms, views=views, recorder=later, checkpoint_dir=tmp_path / "b")
    assert torch.equal(weights(found), weights(expected))
    for name in ("confidence", "variability", "correctness", "forgotten", "aum", "logits", "feature_saliency"):
        np.testing.assert_array_equal(getattr(later.dynamics(), name), getattr(straight.dynamics(), name))


def test_a_state_of_other_views_is_not_used(tmp_path):
    terms = [build_term("cross_entropy"), build_term("cross_entropy", view="mixed")]
    one, two = a_map(), a_map(vectors(90, seed=3))
    regions = ViewSettings(kind="manifold", pairs="regions")
    given = [(ViewSettings(), None), (ViewSettings(alpha=0.2), None), (ViewSettings(kind="manifold"), None)]
    for i, (settings, dynamics) in enumerate([*given, (regions, one), (regions, two)]):
        with pytest.warns(UserWarning, match="of another run") if i else pytest.MonkeyPatch.context():
            made = student()
            views = {**VIEWS, "mixed": build_view(settings, 3, dynamics)}
            result = fit(made, TRAIN, DEV, terms, HOW, views=views, checkpoint_dir=tmp_path)
        assert result.resumed_at == 0


# ---- parts -------------------------------------------------------------------------------------------------------------

SETTINGS = {
    "mixup": ViewSettings(),
    "mixup by sample": ViewSettings(shares="sample"),
    "manifold": ViewSettings(kind="manifold"),
    "regions": ViewSettings(kind="manifold", pairs="regions"),
    "regions in the batch": ViewSettings(kind="manifold", pairs="regions", candidates="batch"),
    "regions at the input": ViewSettings(kind="mixup", pairs="regions"),
    "similar": ViewSettings(kind="manifold", pairs="similar"),
    "dissimilar features": ViewSettings(kind="manifold", pairs="dissimilar", saliency="features"),
    "halves": ViewSettings(kind="manifold", pairs="halves"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_parts_of_a_batch_train_the_weights_of_the_whole(name):
    views = {"mixed": build_view(SETTINGS[name], 3, a_map())}
    terms = [build_term("cross_entropy", 0.7), build_term("cross_entropy", 0.3, "mixed", {"smoothing": 0.1}),
             build_term("kd", 0.5, "mixed")]  # fmt: skip
    found = []
    for accumulate in (1, 4):
        how = TrainSettings(epochs=2, batch=20, lr=0.05, optimizer="sgd", choose="last", accumulate=accumulate)
        found.append(weights(trained(terms, how=how, views=views, teacher=teacher_predictions())))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_halves_are_spread_over_the_batches():
    rng = np.random.default_rng(0)
    high = rng.random(500) < 0.5
    for lengths in (None, rng.integers(4, 60, 500)):
        batches = epoch_batches(500, lengths, 20, seed=0, epoch=0, groups=high)
        assert sorted(np.concatenate(batches).tolist()) == list(range(500))
        shares = [high[b].mean() for b in batches]
        assert max(abs(s - high.mean()) for s in shares) < 0.08
        other = epoch_batches(500, lengths, 20, seed=0, epoch=1, groups=high)
        assert any((a[: len(b)] != b[: len(a)]).any() for a, b in zip(batches, other, strict=True))
        if lengths is not None:
            padding = sum(lengths[b].max() * len(b) for b in batches) / lengths.sum()
            assert padding < 1.35


PROGRAM = """
import sys, json
import numpy as np, torch
torch.set_num_threads(1)
sys.path[:0] = sys.argv[2:4]
from pathlib import Path
from small import DEV, TRAIN, pictures, student, weights
from test_mixing import SETTINGS, a_map, recorder
from distilcal.data import Dataset
from distilcal.training import fit
from distilcal.training.distributed import build_accelerator
from distilcal.models import build_classifier
from distilcal.config.schema import ModelSettings, TrainSettings, ViewSettings
from distilcal.views import VIEWS, build_term, build_view
out = Path(sys.argv[1])
found = {}
dynamics = None
for name, settings in SETTINGS.items():
    if name.startswith("regions in"):
        continue
    kept = recorder(width=7)
    if dynamics is None:
        how = TrainSettings(epochs=2, batch=20, lr=0.05)
        fit(student(), TRAIN, DEV, [build_term("cross_entropy")], how, recorder=kept, checkpoint_dir=out / "map")
        dynamics = kept.dynamics()
        kept = recorder(width=7)
    view = build_view(settings, 3, dynamics)
    made = student()
    terms = [build_term("cross_entropy", 0.7), build_term("cross_entropy", 0.3, "mixed"), build_term("mdca", 0.1, "mixed")]
    how = TrainSettings(epochs=2, batch=19, lr=0.05, optimizer="sgd", choose="last")
    fit(made, TRAIN, DEV, terms, how, views={**VIEWS, "mixed": view}, recorder=kept)
    table = kept.dynamics()
    found[name] = {"weights": weights(made).tolist(), "aum": table.aum.tolist(), "epochs": table.epochs.tolist()}
# A network with buffers, whose every pass is a meeting of the processes: as many passes on each, whoever has partners.
from tiny import reviews, save_model
if int(__import__("os").environ.get("RANK", "0")) == 0:
    save_model(out / "model", head=False)
    (out / "saved").touch()
while not (out / "saved").exists():
    __import__("time").sleep(0.2)
text = reviews(21, 0)
rng = np.random.default_rng(0)
from distilcal.dynamics import Recorder
table = Recorder(text.ids, text.labels, text.classes)
table.record(np.arange(21), rng.normal(size=(21, 2)))
table.own_rows = False
table = table.dynamics()
by_region = {"kind": "manifold", "pairs": "regions"}
for settings in (ViewSettings(**by_region), ViewSettings(**by_region, candidates="batch"), ViewSettings(kind="manifold"),
                 ViewSettings(shares="sample", alpha=0.01), ViewSettings(probability=0.5)):
    made = build_classifier(ModelSettings(name=str(out / "model"), dropout=0.0), text)
    view = build_view(settings, 2, table)
    terms = [build_term("cross_entropy"), build_term("cross_entropy", view="mixed")]
    fit(made, text, text, terms, TrainSettings(epochs=2, batch=4, lr=1e-3), views={**VIEWS, "mixed": view}, seed=84)
# Batch norms and several passes a step: it must run, though norms see the own part only.
train = pictures(24)
made = build_classifier(ModelSettings(name="resnet8", augment=False), train)
terms = [build_term("cross_entropy"), build_term("cross_entropy", view="cutmix"), build_term("cross_entropy", view="cutout")]
views = {k: build_view(ViewSettings(kind=k), 2) for k in ("cutmix", "cutout")}
fit(made, train, train, terms, TrainSettings(epochs=1, batch=8, lr=0.01, optimizer="sgd"), views={**VIEWS, **views})
if build_accelerator("float32").is_main_process:
    (out / "found.json").write_text(json.dumps(found))
"""


@pytest.mark.slow
def test_two_processes_mix_and_record_as_one(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    found = {}
    for processes in (1, 2):
        out = tmp_path / str(processes)
        out.mkdir()
        done = launch([tmp_path / "program.py", out, Path(__file__).parent, Path(__file__).parents[1]], processes)
        assert done.returncode == 0, done.stderr[-3000:]
        found[processes] = json.loads((out / "found.json").read_text())
    for name, one in found[1].items():
        for key in ("weights", "aum", "epochs"):
            np.testing.assert_allclose(found[2][name][key], one[key], atol=1e-4, err_msg=f"{name} {key}")
