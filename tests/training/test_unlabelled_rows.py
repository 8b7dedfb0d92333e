"""Unlabelled rows, and teachers that know only some: each loss is a mean over the rows that count, however it is computed."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from small import DEV, SMALL, TRAIN, Interrupted, student, teacher_features, teacher_predictions, vectors, weights

from distilcal.config.schema import ModelSettings, TrainSettings, ViewSettings
from distilcal.data import Dataset, labelled_first
from distilcal.dynamics import Recorder
from distilcal.errors import InputError
from distilcal.losses import LOSSES, confidence_penalty, cross_entropy, kd, needs_labels, needs_teacher, required_inputs
from distilcal.training import Features, fit
from distilcal.training.schedule import epoch_batches, mixed_epoch_batches
from distilcal.views import VIEWS, View, build_term, build_view

LABELLED = 40
MIXED = replace(TRAIN, labels=np.where(np.arange(90) < LABELLED, TRAIN.labels, -1))  # 40 of 90 rows are labelled
KNOWN = np.r_[np.arange(10, 90)]  # of the teacher: not the first ten, which are labelled
HOW = TrainSettings(epochs=2, batch=30, lr=0.05, optimizer="sgd", clip=0.0, choose="last")


def known_context():
    labels = torch.from_numpy(MIXED.labels[:LABELLED])
    return {"n_data": LABELLED, "classes": 3, "labels": labels, "features": 7, "teacher_features": 4}


def term(name, weight=1.0, view="plain"):
    torch.manual_seed(0)
    settings = {"negatives": 10} if name == "crd" else {}
    return build_term(name, weight, view, settings, known_context())


def partial_teacher(rows=KNOWN):
    features = teacher_features()
    return {
        "teacher": teacher_predictions().select(np.isin(np.arange(90), rows)),
        "teacher_features": Features(TRAIN.ids[rows], features.values[rows]),
    }


def trained(names, how=HOW, data=MIXED, settings=SMALL, **more):
    """Weights and history of a student that is trained with these losses, each with its own weight."""
    made = student(settings=settings)
    terms = [name if not isinstance(name, str) else term(name, 0.3 + 0.2 * i) for i, name in enumerate(names)]
    result = fit(made, data, DEV, terms, how, **{**partial_teacher(), **more})
    return weights(made), [entry["losses"] for entry in result.history]


def assert_same(found, expected, atol=1e-6):
    torch.testing.assert_close(found[0], expected[0], atol=atol, rtol=1e-4)
    for one, other in zip(found[1], expected[1], strict=True):
        assert one.keys() == other.keys()
        np.testing.assert_allclose(list(one.values()), list(other.values()), rtol=1e-4, atol=atol)


# ---- which rows a loss sees --------------------------------------------------------------------------------------------


def test_what_losses_need():
    labels = {name for name, loss in LOSSES.items() if needs_labels(loss)}
    assert set(LOSSES) - labels == {"kd", "hard_kd", "rkd", "confidence_penalty", "mbls", "acls"}
    assert {name for name, loss in LOSSES.items() if needs_teacher(loss)} == {"kd", "hard_kd", "rkd", "crd"}
    assert term("crd").needs_labels  # it is built from labels
    assert not term("kd").needs_labels


@pytest.mark.parametrize("accumulate", [1, 3])
def test_each_loss_sees_the_rows_that_have_what_it_reads(accumulate):
    seen = {}

    def spy(name):
        def loss(*values):
            seen.setdefault(name, []).append(dict(zip(names, values, strict=True)))
            return values[0].sum() * 0.0

        names = required_inputs(SPIES[name])
        loss.__signature__ = __import__("inspect").signature(SPIES[name])
        return build_term(loss)

    terms = [spy(name) for name in SPIES]
    how = TrainSettings(epochs=1, batch=30, accumulate=accumulate)
    fit(student(), MIXED, DEV, terms, how, **partial_teacher())
    expected = {
        "labels": np.arange(LABELLED),
        "targets": np.arange(LABELLED),
        "teacher": KNOWN,
        "both": np.arange(10, LABELLED),
        "neither": np.arange(90),
    }
    for name, rows in expected.items():
        ids = torch.cat([values["ids"] for values in seen[name]]).numpy()
        np.testing.assert_array_equal(np.sort(ids), rows)
        for values in seen[name]:
            assert (values.get("labels", torch.zeros(1)) >= 0).all()
            assert not values.get("teacher_logits", torch.zeros(1)).isnan().any()


SPIES = {
    "labels": lambda logits, labels, ids: None,
    "targets": lambda logits, targets, ids: None,
    "teacher": lambda logits, teacher_logits, ids: None,
    "both": lambda logits, teacher_features, labels, ids: None,
    "neither": lambda logits, ids: None,
}


def test_losses_are_those_of_a_plain_loop_over_the_rows_that_count():
    made, plain = student(), student()
    how = TrainSettings(epochs=2, batch=16, lr=0.05, optimizer="sgd", momentum=0.0, weight_decay=0.0, clip=0.0, schedule="none")
    terms = [term("cross_entropy", 0.3), term("kd", 0.7), term("confidence_penalty", 0.1)]
    result = fit(made, MIXED, DEV, terms, how.replace(choose="last"), **partial_teacher(), seed=4)
    x, labels = torch.from_numpy(MIXED.inputs.values), torch.from_numpy(MIXED.labels)
    teacher_logits = torch.from_numpy(np.array(teacher_predictions().logits))
    optimizer = torch.optim.SGD(plain.network.parameters(), 0.05)
    for epoch in range(2):
        sums, counts = np.zeros(3), np.zeros(3)
        for batch in mixed_epoch_batches(MIXED.is_labelled, None, 16, seed=4, epoch=epoch):
            rows = torch.from_numpy(batch)
            logits = plain.network({"vectors": x[rows]}).logits
            has_label, has_teacher = labels[rows] >= 0, rows >= 10
            losses = [
                cross_entropy(logits[has_label], labels[rows][has_label]),
                kd(logits[has_teacher], teacher_logits[rows][has_teacher]),
                confidence_penalty(logits),
            ]
            optimizer.zero_grad()
            sum(weight * loss for weight, loss in zip((0.3, 0.7, 0.1), losses, strict=True)).backward()
            optimizer.step()
            count = np.array([int(has_label.sum()), int(has_teacher.sum()), len(rows)])
            sums, counts = sums + count * [float(loss.detach()) for loss in losses], counts + count
        np.testing.assert_allclose(list(result.history[epoch]["losses"].values()), sums / counts, rtol=1e-5)
    torch.testing.assert_close(weights(made), weights(plain), atol=1e-6, rtol=1e-5)


def test_a_batch_without_rows_that_count_adds_nothing():
    few = replace(TRAIN, labels=np.where(np.arange(90) < 2, TRAIN.labels, -1))
    found = trained(["cross_entropy", "kd"], HOW.replace(batch=10), few, teacher=teacher_predictions())
    assert all(np.isfinite(value) for entry in found[1] for value in entry.values())
    in_parts = trained(["cross_entropy", "kd"], HOW.replace(batch=10, accumulate=5), few, teacher=teacher_predictions())
    assert_same(in_parts, found)


# ---- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_parts_give_the_gradient_of_the_whole_batch(name):
    names = ["cross_entropy", "kd", "confidence_penalty", name]
    assert_same(trained(names, HOW.replace(accumulate=3)), trained(names), atol=1e-5)


def test_by_example_losses_need_no_second_pass(monkeypatch):
    from distilcal.training import gradients

    monkeypatch.setattr(gradients, "_add_gradient_in_two_passes", lambda *a: pytest.fail("a second pass"))
    names = ["cross_entropy", "kd", "confidence_penalty", "pskd", "adafocal"]
    trained(names, HOW.replace(accumulate=3))


def test_parts_need_the_numbers_of_rows_that_count(monkeypatch):
    """That the test above can fail: parts weighted by their numbers of rows give another gradient."""
    from distilcal.training import gradients

    expected = trained(["cross_entropy", "kd"])
    monkeypatch.setattr(gradients, "_count_rows", lambda objective, rows: [len(rows)] * len(objective.terms))
    found = trained(["cross_entropy", "kd"], HOW.replace(accumulate=3))
    assert (found[0] - expected[0]).abs().max() > 1e-5


@pytest.mark.parametrize("kind", ["mixup", "manifold", "hidden"])
@pytest.mark.parametrize("name", ["cross_entropy", "kd"])
def test_mixed_rows_count_if_both_examples_have_what_is_read(name, kind):
    layers = [1] if kind == "hidden" else []
    view = build_view(ViewSettings(kind="manifold" if layers else kind, shares="sample", layers=layers), 3)
    counts = []

    def watched(network, batch):
        made = view(network, batch)
        partners, _ = view.pairs(network, batch, 0)
        labelled = (batch.rows < LABELLED) & (partners < LABELLED)
        np.testing.assert_array_equal(labelled, batch.rows < LABELLED)  # partners are of the same kind
        known = (batch.rows >= 10) & (partners >= 10)
        np.testing.assert_array_equal(made.labels.numpy() >= 0, labelled)
        if made.teacher_logits is not None:
            np.testing.assert_array_equal(~made.teacher_logits[:, 0].isnan().numpy(), known)
        counts.append(int((labelled if name == "cross_entropy" else known).sum()))
        return made

    views = {**VIEWS, "mixed": watched}
    terms = [term("kd", 0.5), term("confidence_penalty", 0.1), term(name, 0.5, "mixed")]
    fit(student(), MIXED, DEV, terms, HOW, views=views, **partial_teacher())
    assert sum(counts) == 2 * LABELLED if name == "cross_entropy" else 0 < sum(counts) < 160
    if kind == "hidden":  # parts draw other partners
        return
    views["mixed"] = view
    assert_same(trained(terms, HOW.replace(accumulate=3), views=views), trained(terms, views=views), atol=1e-5)


def test_soft_labels_are_seen_of_labelled_rows_only():
    probs = np.random.default_rng(0).dirichlet(np.ones(3), size=90)
    soft = replace(MIXED, label_probs=probs)
    found = trained(["cross_entropy", "kd"], data=soft, soft_labels=True)
    assert_same(trained(["cross_entropy", "kd"], HOW.replace(accumulate=3), soft, soft_labels=True), found, atol=1e-5)
    other = replace(MIXED, label_probs=np.where(np.arange(90)[:, None] < LABELLED, probs, probs[::-1]))
    assert torch.equal(trained(["cross_entropy", "kd"], data=other, soft_labels=True)[0], found[0])


@pytest.mark.parametrize("name", ["rkd", "crl", "pskd", "adafocal", "crd"])
def test_an_interrupted_run_ends_with_the_same_numbers(tmp_path, name, monkeypatch):
    import distilcal.training.loop as loop

    how = HOW.replace(epochs=3, batch=16, labelled_share=0.6)
    settings = ModelSettings(name="mlp", hidden=(7,), dropout=0.3)

    def run(folder, **more):
        return trained(["cross_entropy", "kd", name], how, settings=settings, checkpoint_dir=tmp_path / folder, **more)

    def interrupt(progress):
        if progress.epoch == 1 and progress.step > 2:
            raise Interrupted

    expected = run("whole")
    monkeypatch.setattr(loop, "PROGRESS_INTERVAL", -1.0)
    with pytest.raises(Interrupted):
        run("broken", on_progress=interrupt)
    found = run("broken")
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]


def test_another_share_is_another_run(tmp_path):
    fit_once = [TrainSettings(epochs=1), TrainSettings(epochs=1, labelled_share=0.7)]
    trained(["cross_entropy", "kd"], fit_once[0], checkpoint_dir=tmp_path)
    with pytest.warns(UserWarning, match="another run"):
        trained(["cross_entropy", "kd"], fit_once[1], checkpoint_dir=tmp_path)


# ---- losses with a memory and the recorder ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["crl", "pskd", "crd"])
def test_memories_are_of_labelled_rows_only(name):
    """With no weight on what unlabelled rows do, a memory holds what it would without them, in the same batches."""
    made = copy.deepcopy(term(name))
    fit(student(), MIXED, DEV, [made, term("confidence_penalty", 0.1)], HOW, **partial_teacher(np.arange(90)))
    sizes = {buffer.shape[0] for key, buffer in made.loss.named_buffers() if buffer.dim()}
    assert sizes == {LABELLED}
    if name == "crl":
        assert made.loss.times_right.max() == 2


def test_an_example_that_comes_again_in_an_epoch_is_ranked_once():
    made = term("crl")
    fit(student(), MIXED, DEV, [made, term("kd")], HOW.replace(epochs=3, labelled_share=0.9), **partial_teacher(np.arange(90)))
    assert made.loss.times_right.max() == 3  # of three epochs, though it came eleven times in each


def test_only_labelled_rows_are_recorded():
    recorder = Recorder(MIXED.ids[:LABELLED], MIXED.labels[:LABELLED], MIXED.classes, width=7, own_rows=False)
    trained(["cross_entropy", "kd"], recorder=recorder)
    assert recorder.dynamics().epochs.tolist() == [2] * LABELLED
    with pytest.raises(InputError, match="the recorder is not of"):
        trained(["cross_entropy", "kd"], recorder=Recorder(MIXED.ids, TRAIN.labels, MIXED.classes, own_rows=False))


def test_memories_and_recorders_need_labelled_rows_first():
    shuffled = MIXED.select(np.random.default_rng(0).permutation(90))
    with pytest.raises(InputError, match="unlabelled rows before labelled ones; sort them with distilcal.data.labelled_first"):
        trained(["crl", "kd"], data=shuffled)
    trained(["crl", "kd"], HOW.replace(epochs=1), data=labelled_first(shuffled))
    trained(["cross_entropy", "kd"], HOW.replace(epochs=1), data=shuffled)


# ---- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["cross_entropy"], "50 of the 90 rows of 'data' take part in no term: the first, with id .*, has no label;"),
        (["cross_entropy", "kd"], "1 of the 90 rows of 'data' .* has no label and no output of the teacher"),
    ],
)
def test_a_row_that_takes_part_in_no_term_is_named(names, words):
    with pytest.raises(InputError, match=words):
        trained(names, **partial_teacher(np.arange(89)))


def test_all_rows_may_be_unlabelled():
    without = Dataset(TRAIN.inputs, classes=TRAIN.classes, ids=TRAIN.ids)
    all_minus_one = replace(TRAIN, labels=np.full(90, -1))
    full = partial_teacher(np.arange(90))
    found = trained(["kd"], data=without, **full)
    assert_same(found, trained(["kd"], data=all_minus_one, **full))
    assert_same(found, trained(["kd"], data=TRAIN, **full))
    with pytest.raises(InputError, match="take part in no term"):
        trained(["cross_entropy"], data=without, **full)


def test_dev_needs_all_its_labels():
    for dev, words in ((replace(DEV, labels=None), "has no labels"), (replace(DEV, labels=[-1, *DEV.labels[1:]]), "without a")):
        with pytest.raises(InputError, match=words):
            fit(student(), TRAIN, dev, [build_term("cross_entropy")])


def test_maps_and_a_share_of_one_are_refused():
    with pytest.raises(InputError, match="labelled_share = 1 leaves no room"):
        trained(["cross_entropy", "kd"], HOW.replace(labelled_share=1.0))
    with pytest.raises(InputError, match="pairs that a map decides cannot be drawn"):
        trained(["cross_entropy", "kd"], groups=np.arange(90) % 2)


def test_a_view_of_ones_own_needs_no_knowledge_of_labels():
    def noisy(network, batch):
        output = network({"vectors": batch.inputs["vectors"] + 1.0})
        return View(output.logits, output.features, batch.labels, batch.targets, batch.ids)

    views = {**VIEWS, "noisy": noisy}
    terms = [term("kd"), term("cross_entropy", 0.5, "noisy"), term("confidence_penalty", 0.1)]
    assert_same(trained(terms, HOW.replace(accumulate=3), views=views), trained(terms, views=views), atol=1e-5)


# ---- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, np.random.default_rng(0).integers(3, 60, 700)])
@pytest.mark.parametrize("share", [None, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("labelled", [5, 100, 600])
def test_every_batch_keeps_the_share_and_every_row_is_seen(lengths, share, labelled):
    is_labelled = np.random.default_rng(1).permutation(np.arange(700) < labelled)
    batches = mixed_epoch_batches(is_labelled, lengths, 32, share=share, seed=3, epoch=2)
    expected = labelled / 700 if share is None else share
    assert all(len(rows) == 32 for rows in batches[:-1]) or lengths is not None
    assert sorted(len(rows) for rows in batches)[1:] == [32] * (len(batches) - 1)
    for rows in batches:
        assert abs(is_labelled[rows].sum() - expected * len(rows)) <= 1.1
    seen = np.bincount(np.concatenate(batches), minlength=700)
    assert seen.min() == 1
    for kind in (is_labelled, ~is_labelled):
        assert seen[kind].max() - seen[kind].min() <= 1
    assert min(seen[is_labelled].max(), seen[~is_labelled].max()) == 1
    if labelled > 16:  # enough rows of both kinds: none is twice in a batch
        assert all(len(np.unique(rows)) == len(rows) for rows in batches)
    again = mixed_epoch_batches(is_labelled, lengths, 32, share=share, seed=3, epoch=2)
    other = mixed_epoch_batches(is_labelled, lengths, 32, share=share, seed=3, epoch=3)
    assert all(np.array_equal(one, two) for one, two in zip(batches, again, strict=True))
    assert len(other) == len(batches)
    assert not np.array_equal(np.concatenate(batches), np.concatenate(other))


def test_the_share_holds_in_the_parts_of_a_batch():
    is_labelled = np.arange(640) < 160
    for rows in mixed_epoch_batches(is_labelled, None, 32, seed=0, epoch=0):
        for part in np.array_split(rows, 4):
            assert abs(is_labelled[part].sum() - 2) <= 1


def test_little_padding():
    lengths = np.random.default_rng(0).integers(5, 100, 4000)
    is_labelled = np.arange(4000) < 1000

    def tokens(batches):
        return sum(len(rows) * lengths[rows].max() for rows in batches)

    sorted_by_length = tokens(epoch_batches(4000, lengths, 32, seed=0, epoch=0))
    at_random = tokens(epoch_batches(4000, None, 32, seed=0, epoch=0))
    both_kinds = tokens(mixed_epoch_batches(is_labelled, lengths, 32, seed=0, epoch=0))
    assert both_kinds < 1.15 * sorted_by_length < 0.8 * at_random


def test_data_with_all_labels_are_trained_as_ever():
    data, plain = vectors(), student()
    fit(plain, data, DEV, [build_term("cross_entropy")], HOW)
    made = student()
    fit(made, data, DEV, [build_term("cross_entropy")], HOW.replace(labelled_share=0.3))
    assert torch.equal(weights(made), weights(plain))
