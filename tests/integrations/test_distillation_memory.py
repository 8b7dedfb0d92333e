"""Losses with a memory, and of features, in DistillationTrainer: the numbers of our own loop, and resumed from a checkpoint."""

import shutil

import numpy as np
import pytest
import torch
from distillation_cases import DATA, TEACHER, assert_same_weights, student, train, train_both, weights
from trainer_cases import BrokenOff, StopAt

from distilcal.errors import InputError
from distilcal.integrations.transformers.memory import LOSS_STATE
from distilcal.training import Features

TERMS = {
    "rkd": {"cross_entropy": 1.0, "rkd": 0.01},
    "crl": {"cross_entropy": 1.0, "crl": 1.0},
    "pskd": {"pskd": 1.0},
    "adafocal": {"adafocal": {"bins": 4}},
    "crd": {"cross_entropy": 1.0, "crd": {"weight": 0.8, "dim": 4, "negatives": 6}},
}
FEATURES = Features(TEACHER.ids, np.random.default_rng(0).normal(size=(32, 5)).astype(np.float32))
NAMED = {"teacher_features": FEATURES, "eval_dataset": DATA}


@pytest.mark.parametrize("name", TERMS)
def test_losses_and_weights_are_those_of_our_own_loop(tmp_path, monkeypatch, name):
    own_losses, losses, own_weights, found = train_both(tmp_path, monkeypatch, TERMS[name], epochs=3, clip=0.0)
    assert len(own_losses) == 18
    np.testing.assert_allclose(losses, own_losses, rtol=0, atol=1e-5)
    assert_same_weights(found, own_weights, atol=1e-5)


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("step", [6, 9])  # in the middle of an epoch, and later
def test_a_resumed_training_ends_with_the_same_weights(tmp_path, name, step):
    named = {**NAMED, "terms": TERMS[name]}
    changes = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 3, "eval_strategy": "epoch"}
    straight = train(tmp_path / "a", named=named, **changes)
    with pytest.raises(BrokenOff):
        train(tmp_path / "b", named={**named, "callbacks": [StopAt(step + 1)]}, **changes)
    resumed = train(tmp_path / "b", model=student(seed=5), named=named, resume=True, **changes)
    assert_same_weights(weights(resumed), weights(straight), atol=0)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(tmp_path / "b" / f"checkpoint-{step}", elsewhere)
    again = train(tmp_path / "c", model=student(seed=5), named=named, resume=str(elsewhere), **changes)
    assert_same_weights(weights(again), weights(straight), atol=0)


def test_a_checkpoint_without_the_memory_is_refused(tmp_path):
    named = {**NAMED, "terms": TERMS["crl"]}
    changes = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    train(tmp_path, named=named, **changes)
    with pytest.raises(InputError, match="memory of crl is not in this checkpoint.*other terms"):
        train(tmp_path, named={**NAMED, "terms": {"cross_entropy": 2.0, "crl": 1.0}}, resume=True, **changes)
    (tmp_path / "checkpoint-8" / LOSS_STATE).unlink()
    with pytest.raises(InputError, match="memory of crl is not in this checkpoint"):
        train(tmp_path, named=named, resume=True, **changes)


def test_a_memory_holds_the_labelled_rows_only(tmp_path):
    data = [{**e, "label": -1} if i % 3 == 0 else e for i, e in enumerate(DATA)]
    terms = {"kd": 1.0, "crl": 1.0, "pskd": 1.0, "crd": {"dim": 4, "negatives": 6}}
    named = {"terms": terms, "teacher_features": FEATURES}
    trainer = train(tmp_path, data=data, named=named, learning_rate=0.0, train_sampling_strategy="random")
    labelled = [e for i, e in enumerate(DATA) if i % 3]
    predicted = trainer.predict(labelled).predictions
    crl, pskd, crd = (term.loss for term in trainer.objective.terms[1:])
    assert crl.times_right.tolist() == [float(p.argmax() == e["label"]) for p, e in zip(predicted, labelled, strict=True)]
    torch.testing.assert_close(pskd.last, torch.from_numpy(predicted).softmax(dim=1))
    assert crd.labels.tolist() == [e["label"] for e in labelled]


def test_a_second_training_starts_with_an_empty_memory(tmp_path):
    trainer = train(tmp_path, named={**NAMED, "terms": TERMS["pskd"]})
    assert bool(trainer.objective.terms[0].loss.seen.all())
    trainer._prepare_objective()
    assert not bool(trainer.objective.terms[0].loss.seen.any())


def test_crd_learns_its_own_parameters(tmp_path):
    terms = {"crd": {"dim": 4, "negatives": 6}}
    trainer = train(tmp_path, named={**NAMED, "terms": terms}, weight_decay=0.1)
    fresh = train(tmp_path, named={**NAMED, "terms": terms}, max_steps=0, learning_rate=0.0)
    layer, same = trainer.objective.terms[0].loss.embed_student, fresh.objective.terms[0].loss.embed_student
    assert not torch.equal(layer.weight, same.weight)
    assert layer.weight.grad is None
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0, 0.1, 0.0]


def test_adafocal_follows_the_evaluation_of_each_epoch(tmp_path):
    with pytest.raises(InputError, match='pass one eval_dataset and set eval_strategy="epoch"'):
        train(tmp_path, named={"terms": TERMS["adafocal"], "eval_dataset": DATA}, eval_strategy="steps", eval_steps=2)
    unlabelled = [{**e, "label": -1} if i % 3 == 0 else e for i, e in enumerate(DATA)]
    changes = {"eval_strategy": "epoch", "eval_on_start": True}
    found = train(tmp_path / "a", named={"terms": TERMS["adafocal"], "eval_dataset": unlabelled}, **changes)
    dev = [e for i, e in enumerate(DATA) if i % 3]
    expected = train(tmp_path / "b", named={"terms": TERMS["adafocal"], "eval_dataset": dev}, **changes)
    gamma = found.objective.terms[0].loss.gamma
    assert not torch.equal(gamma, torch.ones_like(gamma))
    # Not bit by bit: a row's logits are rounded by its place in a batch, and the two have other batches.
    torch.testing.assert_close(gamma, expected.objective.terms[0].loss.gamma, rtol=1e-6, atol=0)
