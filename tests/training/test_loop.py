"""The loop: the same weights as a plain one, the same gradient in parts, the same end after an interruption."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from small import DEV, TRAIN, Interrupted, pictures, student, teacher, teacher_features, teacher_predictions, term, weights
from tiny import reviews, save_model
from torch.nn.functional import cross_entropy

from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.data import Dataset
from distilcal.errors import InputError, TrainingError
from distilcal.io.folders import DamagedWarning
from distilcal.losses import BY_EXAMPLE, LOSSES
from distilcal.models import build_classifier
from distilcal.models.inputs import crop_and_flip
from distilcal.predictions import Predictions
from distilcal.training import Features, compute_outputs, fit, predict
from distilcal.training.schedule import build_optimizer, epoch_batches, rate_factor
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
    assert set(best) == {"accuracy", "nll", "ece", "brier", "entropy"}


@pytest.mark.parametrize("choose", ["nll", "accuracy", "last"])
def test_the_best_epoch_is_kept(choose):
    made = student()
    result = fit(
        made, TRAIN, DEV, [term("cross_entropy")], TrainSettings(epochs=6, lr=0.5, batch=8, choose=choose, schedule="none")
    )
    figures = [h["dev"]["nll" if choose == "last" else choose] for h in result.history]
    wanted = {"nll": int(np.argmin(figures)), "accuracy": int(np.argmax(figures)), "last": 5}[choose]
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


def test_patience_stops_early():
    how = TrainSettings(epochs=50, lr=1.0, batch=8, patience=2, schedule="none", clip=0.0)
    result = fit(student(), TRAIN, DEV, [term("cross_entropy")], how)
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


@pytest.mark.parametrize("name", ["kd", "rkd", "crd"])
def test_a_term_without_its_teacher_is_refused(name):
    with pytest.raises(InputError, match="needs teacher_"):
        fit(student(), TRAIN, DEV, [term(name)])


def shuffled_teacher():
    """The same teacher with 7 rows more, in another order and with other classes first."""
    order = np.random.default_rng(0).permutation(97)
    ids = np.r_[TRAIN.ids, [f"extra {i}" for i in range(7)]][order]
    columns = [2, 0, 1]
    logits = np.r_[teacher_predictions().logits, np.ones((7, 3), np.float32)][order][:, columns]
    values = np.r_[teacher_features().values, np.ones((7, 4), np.float32)][order]
    classes = [TRAIN.classes[c] for c in columns]
    return Predictions(logits, np.zeros(97, np.int64), ids=ids, classes=classes), Features(ids, values)


@pytest.mark.parametrize("name", ["kd", "rkd"])
def test_rows_of_a_teacher_are_found_by_id_and_classes_by_name(name):
    predictions, features = shuffled_teacher()
    how = TrainSettings(epochs=2, batch=16, lr=0.05)
    expected, made = student(), student()
    fit(expected, TRAIN, DEV, [term(name)], how, **teacher())
    fit(made, TRAIN, DEV, [term(name)], how, teacher=predictions, teacher_features=features)
    assert torch.equal(weights(made), weights(expected))


@pytest.mark.parametrize("kind", ["predictions", "features"])
def test_a_missing_row_of_a_teacher_is_named(kind):
    missing = ~np.isin(np.arange(90), [17, 40])
    given = teacher()
    if kind == "predictions":
        given["teacher"] = given["teacher"].select(missing)
    else:
        given["teacher_features"] = Features(TRAIN.ids[missing], teacher_features().values[missing])
    with pytest.raises(
        InputError, match=f"the teacher's {kind} lack 2 of the 90 rows of .*, the first with id '{TRAIN.ids[17]}'"
    ):
        fit(student(), TRAIN, DEV, [term("cross_entropy")], **given)


def test_a_teacher_needs_ids_and_the_classes_of_the_data():
    logits = teacher_predictions().logits
    with pytest.raises(InputError, match="have no ids"):
        fit(student(), TRAIN, DEV, [term("kd")], teacher=Predictions(logits, TRAIN.labels, classes=TRAIN.classes))
    with pytest.raises(InputError, match="has classes"):
        fit(student(), TRAIN, DEV, [term("kd")], teacher=Predictions(logits, TRAIN.labels, ids=TRAIN.ids))


def test_features_have_one_unique_id_per_row():
    with pytest.raises(InputError, match="2 ids for 3 rows"):
        Features(np.array(["a", "b"]), np.zeros((3, 4)))
    with pytest.raises(InputError, match="the same id"):
        Features(np.array(["a", "a"]), np.zeros((2, 4)))


def test_logits_of_a_teacher_reach_the_loss_bit_for_bit():
    predictions, received = teacher_predictions(), []

    def spy(logits, teacher_logits, ids):
        received.append((teacher_logits.clone(), ids.clone()))
        return logits.sum() * 0

    fit(student(), TRAIN, DEV, [build_term(spy)], TrainSettings(epochs=1, batch=16), teacher=predictions)
    for logits, ids in received:
        assert logits.dtype == torch.float32
        assert torch.equal(logits, torch.from_numpy(predictions.logits.copy())[ids])


def test_a_loss_that_explodes_says_so():
    with pytest.raises(TrainingError, match="became nan in epoch 1.*lower lr|not finite any more.*lower lr"):
        fit(student(), TRAIN, DEV, [term("cross_entropy")], TrainSettings(lr=1e30, epochs=3, clip=0.0, optimizer="sgd"))


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


def test_a_view_of_ones_own_needs_no_change_to_the_loop():
    def noisy(network, batch):
        said = network({"vectors": batch.inputs["vectors"] + 1.0})
        return View(said.logits, said.features, batch.labels, batch.targets, batch.ids)

    terms = [term("cross_entropy"), build_term("cross_entropy", view="noisy")]
    result = fit(student(), TRAIN, DEV, terms, TrainSettings(epochs=1), views={**VIEWS, "noisy": noisy})
    assert set(result.history[0]["losses"]) == {"cross_entropy", "cross_entropy(noisy)"}


# ---- schedules and batches ---------------------------------------------------------------------------------------------


def test_schedules():
    def factors(**settings):
        return [round(rate_factor(TrainSettings(**settings), s, 10, 2), 6) for s in range(10)]

    assert factors(schedule="none") == [1.0] * 10
    assert factors(schedule="linear") == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert factors(schedule="linear", warmup=0.2)[:4] == [0.5, 1.0, 1.0, 0.875]
    assert factors(schedule="steps", milestones=(1, 3), gamma=0.1) == [1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01]
    cosine = factors(schedule="cosine")
    assert cosine[0] == 1
    assert cosine[5] == 0.5
    assert all(a > b for a, b in pairwise(cosine))


def test_decay_spares_biases_and_norms():
    made = build_optimizer(
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)), [], TrainSettings(weight_decay=0.3)
    )
    assert [(g["weight_decay"], [p.dim() for p in g["params"]]) for g in made.param_groups] == [(0.3, [2]), (0.0, [1, 1, 1])]


def test_every_row_once_and_little_padding():
    lengths = np.random.default_rng(0).integers(3, 100, 1003)
    batches = epoch_batches(1003, lengths, 16, seed=0, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(1003))
    assert {len(b) for b in batches} <= {16, 1003 % 16}
    padded = sum(len(b) * lengths[b].max() for b in batches)
    assert padded < 1.1 * lengths.sum()
    other = epoch_batches(1003, lengths, 16, seed=0, epoch=1)
    assert not np.array_equal(np.concatenate(batches), np.concatenate(other))
    assert np.corrcoef([lengths[b].mean() for b in batches], np.arange(len(batches)))[0, 1] < 0.5


# ---- resuming ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cross_entropy", "crl", "pskd", "adafocal", "crd", "kd"])
@pytest.mark.parametrize("stop", [1, 2])
def test_an_interrupted_run_ends_with_the_same_numbers(tmp_path, name, stop):
    how = TrainSettings(epochs=4, batch=16, lr=0.05, choose="accuracy")
    settings = ModelSettings(name="mlp", hidden=(7,), dropout=0.3)
    whole = student(settings=settings)
    expected = fit(whole, TRAIN, DEV, [term("cross_entropy"), term(name)], how, **teacher(), checkpoint_dir=tmp_path / "whole")

    def interrupt(step):
        if step.epoch == stop and step.step > 2:
            raise Interrupted

    broken = student(settings=settings)
    import distilcal.training.loop as loop

    before, loop.PROGRESS_INTERVAL = loop.PROGRESS_INTERVAL, -1.0
    try:
        with pytest.raises(Interrupted):
            fit(
                broken,
                TRAIN,
                DEV,
                [term("cross_entropy"), term(name)],
                how,
                **teacher(),
                checkpoint_dir=tmp_path / "b",
                on_progress=interrupt,
            )
    finally:
        loop.PROGRESS_INTERVAL = before
    again = student(settings=settings)
    result = fit(again, TRAIN, DEV, [term("cross_entropy"), term(name)], how, **teacher(), checkpoint_dir=tmp_path / "b")
    assert result.resumed_at == stop
    assert torch.equal(weights(again), weights(whole))
    assert [h["dev"] for h in result.history] == [h["dev"] for h in expected.history]
    assert [h["losses"] for h in result.history] == [h["losses"] for h in expected.history]


def test_the_state_of_another_run_or_a_damaged_one_is_not_used(tmp_path):
    how = TrainSettings(epochs=2, lr=0.05)
    fit(student(), TRAIN, DEV, [term("cross_entropy")], how, checkpoint_dir=tmp_path)
    with pytest.warns(DamagedWarning, match="another run"):
        result = fit(student(), TRAIN, DEV, [term("focal")], how, checkpoint_dir=tmp_path)
    assert result.resumed_at == 0
    content = (tmp_path / "last.safetensors").read_bytes()
    (tmp_path / "last.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.warns(DamagedWarning):
        assert fit(student(), TRAIN, DEV, [term("focal")], how, checkpoint_dir=tmp_path).resumed_at == 0


@pytest.mark.parametrize("change", ["soft labels", "settings of a memory", "a function of one's own"])
def test_a_state_is_resumed_by_the_same_fit_only(tmp_path, change):
    soft = Dataset(TRAIN.inputs, TRAIN.labels, TRAIN.classes, label_probs=np.full((90, 3), 1 / 3))
    how = TrainSettings(epochs=1, lr=0.05)

    def once(logits, labels):
        return cross_entropy(logits, labels)

    def twice(logits, labels):
        return 2 * cross_entropy(logits, labels)

    calls = {
        "soft labels": [([term("cross_entropy")], False), ([term("cross_entropy")], True)],
        "settings of a memory": [([term("pskd", alpha=0.1)], False), ([term("pskd", alpha=0.9)], False)],
        "a function of one's own": [([build_term(once)], False), ([build_term(twice)], False)],
    }[change]
    fit(student(), soft, DEV, calls[0][0], how, soft_labels=calls[0][1], checkpoint_dir=tmp_path)
    with pytest.warns(DamagedWarning, match="another run"):
        assert fit(student(), soft, DEV, calls[1][0], how, soft_labels=calls[1][1], checkpoint_dir=tmp_path).resumed_at == 0


def test_a_live_teacher_must_read_what_the_student_reads(tmp_path):
    save_model(tmp_path / "m", labels=("neg", "pos"))
    short = build_classifier(ModelSettings(name=str(tmp_path / "m"), max_length=8), reviews())
    long = build_classifier(ModelSettings(name=str(tmp_path / "m"), max_length=16), reviews())
    with pytest.raises(InputError, match="must read the same inputs"):
        fit(short, reviews(), reviews(30, 1), [build_term("kd")], TrainSettings(epochs=1), live_teacher=long)


def test_a_finished_run_trains_nothing_more(tmp_path):
    how = TrainSettings(epochs=2, lr=0.05)
    first, second = student(), student()
    fit(first, TRAIN, DEV, [term("cross_entropy")], how, checkpoint_dir=tmp_path)
    result = fit(
        second, TRAIN, DEV, [term("cross_entropy")], how, checkpoint_dir=tmp_path, on_progress=lambda s: pytest.fail("trained")
    )
    assert result.resumed_at == 2
    assert torch.equal(weights(first), weights(second))


# ---- text, images, teachers --------------------------------------------------------------------------------------------


def test_text_is_learned_and_distilled(tmp_path):
    save_model(tmp_path / "m", head=False)
    train, dev = reviews(300, 0), reviews(100, 1)
    big = build_classifier(ModelSettings(name=str(tmp_path / "m"), dropout=0.0), train)
    fit(big, train, dev, [build_term("cross_entropy")], TrainSettings(epochs=6, lr=5e-3, batch=32), store=tmp_path / "store")
    assert predict(big, dev).correct.mean() > 0.7
    small = build_classifier(ModelSettings(name=str(tmp_path / "m"), layers=(0,), dropout=0.0), train)
    fit(
        small,
        train,
        dev,
        [build_term("kd")],
        TrainSettings(epochs=6, lr=5e-3),
        teacher=predict(big, train),
        store=tmp_path / "store",
    )
    assert (predict(small, dev).predicted == predict(big, dev).predicted).mean() > 0.8


def test_teacher_outputs_are_computed_once_and_found_by_content(tmp_path, monkeypatch):
    save_model(tmp_path / "m", labels=("neg", "pos"))
    data = reviews(40)
    made = build_classifier(ModelSettings(name=str(tmp_path / "m")), data)
    first = compute_outputs(made, data, ("logits", "features"), store=tmp_path / "store")
    monkeypatch.setattr(type(made.network), "forward", lambda *_: pytest.fail("the teacher ran again"))
    order = np.random.default_rng(0).permutation(40)[:23]
    again = compute_outputs(made, data.select(order), ("logits", "features"), store=tmp_path / "store")
    for name in ("logits", "features"):
        np.testing.assert_array_equal(again[name], first[name][order])


def test_a_live_teacher_sees_what_the_student_sees():
    train = pictures()
    big = build_classifier(ModelSettings(name="resnet8", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)), train, seed=1)
    small = build_classifier(ModelSettings(name="resnet8", augment=True), train, seed=2)
    seen = []

    def spying(network, batch):
        raw = batch.inputs["pixels"] * torch.tensor(small.inputs.std).view(1, 3, 1, 1) + torch.tensor(small.inputs.mean).view(
            1, 3, 1, 1
        )
        own = (raw - torch.tensor(big.inputs.mean).view(1, 3, 1, 1)) / torch.tensor(big.inputs.std).view(1, 3, 1, 1)
        with torch.no_grad():
            seen.append((batch.teacher_logits, big.network({"pixels": own}).logits))
        return VIEWS["plain"](network, batch)

    fit(
        small,
        train,
        pictures(8, 1),
        [build_term("kd")],
        TrainSettings(epochs=2, batch=8),
        live_teacher=big,
        views={"plain": spying},
    )
    assert len(seen) == 6
    for given, expected in seen:
        torch.testing.assert_close(given, expected, atol=1e-4, rtol=1e-4)


def test_images_are_cropped_and_flipped_one_by_one():
    images = torch.arange(5 * 3 * 8 * 8, dtype=torch.float32).view(5, 3, 8, 8) + 1
    made = crop_and_flip(images, torch.Generator().manual_seed(0), pad=2)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    for image, whole in zip(made, padded, strict=True):
        found = [
            (y, x, flip)
            for y in range(5)
            for x in range(5)
            for flip in (False, True)
            if torch.equal(image, whole[:, y : y + 8, x : x + 8].flip(2) if flip else whole[:, y : y + 8, x : x + 8])
        ]
        assert len(found) == 1
    many = crop_and_flip(images[:1].expand(400, 3, 8, 8), torch.Generator().manual_seed(1), pad=2)
    assert len({tuple(m.flatten().tolist()) for m in many}) == 50
    assert torch.equal(made, crop_and_flip(images, torch.Generator().manual_seed(0), pad=2))
