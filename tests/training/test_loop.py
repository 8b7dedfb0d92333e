"""The loop: the same weights as a plain one, the same gradient in parts, and what it promises."""

import copy
import math

import numpy as np
import pytest
import torch
from small import DEV, TRAIN, student, teacher, teacher_predictions, term, weights
from torch.nn.functional import cross_entropy

from distilcal.calibrate import fit_temperature
from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.data import Dataset, Vectors
from distilcal.errors import InputError, TrainingError
from distilcal.losses import BY_EXAMPLE, LOSSES
from distilcal.training import compute_outputs, fit, predict
from distilcal.training.schedule import epoch_batches
from distilcal.views import VIEWS, View, build_term

# ---- against a plain loop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_loop_trains_what_a_plain_one_does(optimizer):
    settings = TrainSettings(
        epochs=3, batch=16, optimizer=optimizer, lr=0.05, schedule="cosine", warmup=0.2, clip=0.5, choose="last"
    )
    made, plain = student(), student()
    fit(made, TRAIN, DEV, [term("cross_entropy", 0.3), term("kd", 0.7, temperature=2.0)], settings, **teacher(), seed=4)
    network, labels, x = plain.network, torch.from_numpy(TRAIN.labels), torch.from_numpy(TRAIN.inputs.values)
    said = torch.tensor(teacher_predictions().logits)
    decayed = [p for p in network.parameters() if p.dim() > 1]
    rest = [p for p in network.parameters() if p.dim() <= 1]
    if optimizer == "adamw":
        optim = torch.optim.AdamW([{"params": decayed}, {"params": rest, "weight_decay": 0.0}], 0.05, weight_decay=0.01)
    else:
        optim = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=0.01)
    step, per_epoch = 0, math.ceil(90 / 16)
    steps, warm = 3 * per_epoch, round(0.2 * 3 * per_epoch)
    for epoch in range(3):
        for rows in epoch_batches(90, None, 16, seed=4, epoch=epoch):
            factor = (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))
            for group in optim.param_groups:
                group["lr"] = 0.05 * factor
            logits = network({"vectors": x[rows]}).logits
            p, q = (said[rows] / 2).log_softmax(1), (logits / 2).log_softmax(1)
            loss = 0.3 * cross_entropy(logits, labels[rows]) + 0.7 * 4 * (p.exp() * (p - q)).sum(1).mean()
            optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optim.step()
            step += 1
    torch.testing.assert_close(weights(made), weights(plain), atol=2e-5, rtol=1e-4)


def test_a_term_without_weight_is_followed_and_changes_nothing():
    settings = TrainSettings(epochs=2, batch=8, lr=0.05, choose="last")
    plain, followed = student(), student()
    fit(plain, TRAIN, DEV, [term("cross_entropy")], settings, seed=4)
    result = fit(followed, TRAIN, DEV, [term("confidence_penalty", 0.0), term("cross_entropy")], settings, seed=4)
    torch.testing.assert_close(weights(followed), weights(plain))
    for epoch in result.history:
        assert list(epoch["followed"]) == ["confidence_penalty"]
        parts = epoch["followed"]["confidence_penalty"]
        assert len(parts) == 10  # of twelve steps
        assert all(-math.log(len(TRAIN.classes)) - 1e-6 <= value <= 0 for value in parts)
        mean = np.average(parts, weights=[2, 2, *[1] * 8])
        assert mean == pytest.approx(epoch["losses"]["confidence_penalty"], abs=0.02)  # the last step is a short one
    first, last = (epoch["followed"]["confidence_penalty"] for epoch in result.history)
    assert last[-1] > first[0]  # the entropy falls


@pytest.mark.parametrize("name", LOSSES)
def test_parts_give_the_gradient_of_the_whole_batch(name):
    found = []
    for accumulate in (1, 3):
        made = student()
        terms = [term("cross_entropy", 0.5), term(name, 0.5)]
        settings = TrainSettings(epochs=2, batch=30, accumulate=accumulate, lr=0.01, optimizer="sgd", clip=0.0, choose="last")
        result = fit(made, TRAIN, DEV, terms, settings, **teacher())
        found.append((weights(made), [h["losses"][k] for h in result.history for k in h["losses"]]))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in LOSSES if n not in BY_EXAMPLE])
def test_losses_of_the_whole_batch_need_more_than_a_mean_of_parts(name):
    """That the test above can fail: taken part by part these losses give another gradient."""
    made = [student(), student()]
    for which, accumulate in zip(made, (1, 3), strict=True):
        terms = [term("cross_entropy", 0.5), copy.copy(term(name, 0.5))]
        object.__setattr__(terms[1], "by_example", True)
        settings = TrainSettings(epochs=2, batch=30, accumulate=accumulate, lr=0.01, optimizer="sgd", clip=0.0, choose="last")
        fit(which, TRAIN, DEV, terms, settings, **teacher())
    assert (weights(made[0]) - weights(made[1])).abs().max() > 1e-6


def test_parts_see_the_same_dropout_twice():
    settings = ModelSettings(name="mlp", hidden=(7,), dropout=0.5)
    made, seen = student(settings=settings), []

    def spying(network, batch):
        view = VIEWS["plain"](network, batch)
        seen.append(view.logits.detach().clone())
        return view

    how = TrainSettings(epochs=1, batch=90, accumulate=3, lr=1e-9, clip=0.0)
    fit(made, TRAIN, DEV, [term("mdca")], how, views={"plain": spying})
    assert len(seen) == 6
    for first, second in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(first, second)


# ---- what it promises --------------------------------------------------------------------------------------------------


def test_it_learns_and_follows_dev():
    made = student()
    before = predict(made, DEV)
    result = fit(made, TRAIN, DEV, [term("cross_entropy")], TrainSettings(epochs=8, lr=0.02, batch=16))
    after = predict(made, DEV)
    assert after.row_nll.mean() < 0.8 * before.row_nll.mean()
    assert len(result.history) == 8
    best = result.history[result.best_epoch]["dev"]
    assert best["nll"] == pytest.approx(after.row_nll.mean(), abs=1e-6)
    assert best["accuracy"] == pytest.approx(after.correct.mean())
    assert best["entropy"] == pytest.approx(after.row_entropy.mean(), abs=1e-6)
    assert best["calibrated_nll"] == pytest.approx(fit_temperature(after).fit.nll_after, abs=1e-6)
    assert set(best) == {"accuracy", "nll", "ece", "brier", "entropy", "calibrated_nll"}


@pytest.mark.parametrize("choose", ["calibrated_nll", "nll", "accuracy", "last"])
def test_the_best_epoch_is_kept(choose):
    made = student()
    result = fit(
        made, TRAIN, DEV, [term("cross_entropy")], TrainSettings(epochs=6, lr=0.5, batch=8, choose=choose, schedule="none")
    )
    figures = [h["dev"]["nll" if choose == "last" else choose] for h in result.history]
    wanted = {"accuracy": int(np.argmax(figures)), "last": 5}.get(choose, int(np.argmin(figures)))
    assert result.best_epoch == wanted
    said = predict(made, DEV)
    assert result.history[wanted]["dev"]["accuracy"] == pytest.approx(said.correct.mean())
    assert result.history[wanted]["dev"]["nll"] == pytest.approx(said.row_nll.mean(), abs=1e-5)


@pytest.mark.parametrize("among", [(6,), (2, 5), (1, 2, 3)])
def test_only_some_epochs_may_be_kept(among):
    how = TrainSettings(epochs=6, lr=0.5, batch=8, choose="accuracy", choose_among=among, schedule="none")
    made = student()
    result = fit(made, TRAIN, DEV, [term("cross_entropy")], how)
    figures = {epoch: result.history[epoch - 1]["dev"]["accuracy"] for epoch in among}
    assert result.best_epoch + 1 == max(figures, key=figures.get)
    assert predict(made, DEV).correct.mean() == pytest.approx(figures[result.best_epoch + 1])


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_the_logits_on_dev_are_those_of_the_epoch_that_is_kept(epoch):
    made = student()
    how = TrainSettings(epochs=3, lr=0.05, choose="nll", choose_among=(epoch + 1,))
    result = fit(made, TRAIN, DEV, [term("cross_entropy")], how)
    assert result.best_epoch == epoch
    np.testing.assert_allclose(result.dev_logits, predict(made, DEV).logits, atol=1e-6)


def test_logits_of_reduced_precision_are_not_those_of_the_network_as_it_is_used():
    how = TrainSettings(epochs=1, precision="bfloat16")
    assert fit(student(), TRAIN, DEV, [term("cross_entropy")], how).dev_logits is None


def test_the_default_keeps_an_epoch_that_is_better_once_calibrated():
    """Later epochs rank better and are too sure: raw NLL prefers an early one, NLL after a temperature does not."""
    kept = {}
    for choose in ("nll", "calibrated_nll"):
        how = TrainSettings(epochs=8, lr=0.1, batch=16, choose=choose)
        result = fit(student(), TRAIN, DEV, [term("cross_entropy")], how)
        kept[choose] = result.history[result.best_epoch]
    assert TrainSettings().choose == "calibrated_nll"
    assert kept["calibrated_nll"]["epoch"] > kept["nll"]["epoch"]
    assert kept["calibrated_nll"]["dev"]["nll"] > kept["nll"]["dev"]["nll"]
    assert kept["calibrated_nll"]["dev"]["calibrated_nll"] < kept["nll"]["dev"]["calibrated_nll"]


@pytest.mark.parametrize("labels", ["no mistakes", "one class", "hundred classes"])
def test_an_epoch_is_chosen_on_any_dev_set(labels):
    rng = np.random.default_rng(0)
    classes = tuple(str(k) for k in range(100 if labels == "hundred classes" else 2))
    inputs = Vectors(np.eye(len(classes), 8, dtype=np.float32).repeat(200 // len(classes), axis=0))
    targets = np.zeros(200, int) if labels == "one class" else np.arange(len(classes)).repeat(200 // len(classes))
    data = Dataset(inputs, targets, classes)
    made = student(settings=ModelSettings(name="linear"), data=data)
    dev = data.select(rng.permutation(200)[:50])
    result = fit(made, data, dev, [term("cross_entropy")], TrainSettings(epochs=3, lr=0.5, batch=16))
    figures = [entry["dev"]["calibrated_nll"] for entry in result.history]
    assert np.isfinite(figures).all()
    assert all(entry["dev"]["calibrated_nll"] <= entry["dev"]["nll"] + 1e-9 for entry in result.history)


@pytest.mark.parametrize("choose", ["calibrated_nll", "nll"])
def test_patience_stops_early(choose):
    how = TrainSettings(epochs=50, lr=1.0, batch=8, patience=2, schedule="none", clip=0.0, choose=choose)
    result = fit(student(), TRAIN, DEV, [term("cross_entropy")], how)
    assert result.best_epoch == int(np.argmin([entry["dev"][choose] for entry in result.history]))
    assert len(result.history) == result.best_epoch + 3 < 50


def test_the_same_seed_trains_the_same_and_another_does_not():
    made = [student() for _ in range(3)]
    for which, seed in zip(made, (1, 1, 2), strict=True):
        fit(which, TRAIN, DEV, [term("cross_entropy")], TrainSettings(epochs=1, lr=0.02), seed=seed)
    assert torch.equal(weights(made[0]), weights(made[1]))
    assert not torch.equal(weights(made[0]), weights(made[2]))


def test_the_callers_random_numbers_are_left_alone():
    made, terms = student(), [term("cross_entropy")]
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fit(made, TRAIN, DEV, terms, TrainSettings(epochs=1))
    assert torch.equal(torch.rand(2), expected)


def test_a_function_of_ones_own_is_a_loss():
    def gap(logits, teacher_logits):
        return (logits - teacher_logits).square().mean()

    made = student()
    fit(made, TRAIN, DEV, [build_term(gap)], TrainSettings(epochs=30, lr=0.02, batch=16, choose="last"), **teacher())
    logits = torch.from_numpy(compute_outputs(made, TRAIN)["logits"])
    target = torch.tensor(teacher_predictions().logits)
    assert (logits - target).square().mean() < target.square().mean()

    def odd(logits, colours):
        return logits.sum()

    with pytest.raises(InputError, match="asks for 'colours'"):
        build_term(odd)


def test_soft_labels_are_targets_only_when_asked():
    probs = np.full((90, 3), 1 / 3)
    soft = Dataset(TRAIN.inputs, TRAIN.labels, TRAIN.classes, label_probs=probs)
    made = [student(), student()]
    for which, use in zip(made, (False, True), strict=True):
        fit(
            which,
            soft,
            DEV,
            [term("cross_entropy")],
            TrainSettings(epochs=20, lr=0.05, batch=30, choose="last"),
            soft_labels=use,
        )
    entropies = [predict(which, DEV).row_entropy.mean() for which in made]
    assert entropies[1] > 1.05 > entropies[0]


@pytest.mark.parametrize(
    ("role", "place"), [("test", "train"), ("ood", "train"), ("dev", "train"), ("test", "dev"), ("ood", "dev")]
)
def test_nothing_is_fitted_on_test(role, place):
    train = TRAIN.with_role(role) if place == "train" else TRAIN
    dev = DEV.with_role(role) if place == "dev" else DEV
    with pytest.raises(InputError, match=f"is {role} data"):
        fit(student(), train, dev, [term("cross_entropy")])


def test_a_loss_that_explodes_says_so_and_leaves_nothing(tmp_path):
    settings = TrainSettings(lr=1e30, epochs=3, clip=0.0, optimizer="sgd")
    with pytest.raises(TrainingError, match="became nan in epoch 1.*lower lr|not finite any more.*lower lr"):
        fit(student(), TRAIN, DEV, [term("cross_entropy")], settings, checkpoint_dir=tmp_path / "work")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "words"), [({"gama": 2}, "no setting 'gama'"), ({}, "no loss 'focl'; did you mean|did you mean")]
)
def test_terms_are_checked(settings, words):
    with pytest.raises(InputError, match=words):
        build_term("focal" if settings else "focl", settings=settings)
    with pytest.raises(InputError, match="no view 'mixed'; views: plain"):
        fit(student(), TRAIN, DEV, [build_term("focal", view="mixed")])


def test_steps_are_told():
    told = []
    fit(student(), TRAIN, DEV, [term("cross_entropy")], TrainSettings(epochs=2, batch=30), on_progress=told.append)
    assert (told[-1].epoch, told[-1].step, told[-1].steps) == (1, 3, 3)
    assert set(told[-1].losses) == {"cross_entropy"}
    assert told[-1].dev["accuracy"] >= 0


def test_on_epoch_gets_the_history_entry_of_each_epoch_that_is_trained(tmp_path):
    entries = []
    settings = TrainSettings(epochs=3, batch=30)
    result = fit(
        student(), TRAIN, DEV, [term("cross_entropy")], settings, checkpoint_dir=tmp_path / "state", on_epoch=entries.append
    )
    assert entries == result.history
    fit(student(), TRAIN, DEV, [term("cross_entropy")], settings, checkpoint_dir=tmp_path / "state", on_epoch=entries.append)
    assert len(entries) == 3  # the second call resumed after the last epoch


def test_a_view_of_ones_own_needs_no_change_to_the_loop():
    def noisy(network, batch):
        said = network({"vectors": batch.inputs["vectors"] + 1.0})
        return View(said.logits, said.features, batch.labels, batch.targets, batch.ids)

    terms = [term("cross_entropy"), build_term("cross_entropy", view="noisy")]
    result = fit(student(), TRAIN, DEV, terms, TrainSettings(epochs=1), views={**VIEWS, "noisy": noisy})
    assert set(result.history[0]["losses"]) == {"cross_entropy", "cross_entropy(noisy)"}
